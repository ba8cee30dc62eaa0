//! A server for one case, and its client.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::mode::Kind;
use fencepost::api::proto::{
    AcquireRequest, CheckTokenRequest, ForceReleaseRequest, GetLockRequest, Lease, ListLocksRequest, LockState, Mode,
    WatchLockRequest, mode,
};
use fencepost::api::{Listener, ServeError, Settings, serve};
use fencepost::backend::Backend;
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::namespaces::Namespaces;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::asks;
pub use crate::asks::{living, named, reason, time};
use crate::calls::Calls;
use crate::fixture::{ELSEWHERE, Fixture, NAMESPACE, namespace};

/// The lock of a case that names no other.
pub const LOCK: &str = "lock";
/// The TTL of a claim that names none.
pub const DEFAULT_TTL: Duration = Duration::from_secs(45);

/// The limits of [`NAMESPACE`]: what a case's shortest TTL needs, else the defaults.
pub fn roomy(fixture: &Fixture) -> Limits {
    Limits {
        ttl_min: fixture.short().min(Limits::default().ttl_min),
        ttl_default: DEFAULT_TTL,
        ..Limits::default()
    }
}

/// The limits of [`ELSEWHERE`]: each is near.
pub fn narrow() -> Limits {
    Limits {
        ttl_min: Duration::from_secs(10),
        ttl_default: Duration::from_secs(20),
        ttl_max: Duration::from_secs(30),
        wait_max: Duration::from_secs(60),
        queue: 2,
        name_bytes: 8,
        holds: 2,
        ..Limits::default()
    }
}

/// A running server over the first replica of a case.
pub struct Service {
    calls: Calls,
    /// The port on which it listens.
    pub port: u16,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Result<(), ServeError>>,
}

impl Deref for Service {
    type Target = Calls;

    fn deref(&self) -> &Calls {
        &self.calls
    }
}

impl Service {
    /// Starts a server with the default settings.
    pub async fn start(fixture: &Fixture) -> Self {
        Self::start_with(fixture, Settings::default()).await
    }

    /// Starts a server over the second replica, with the default settings.
    pub async fn start_there(fixture: &Fixture) -> Self {
        Self::start_over(fixture, &fixture.second, Settings::default()).await
    }

    /// Starts a server with settings of its own.
    pub async fn start_with(fixture: &Fixture, settings: Settings) -> Self {
        Self::start_over(fixture, &fixture.first, settings).await
    }

    async fn start_over(fixture: &Fixture, replica: &Arc<dyn Backend>, settings: Settings) -> Self {
        let locks = |name, limits, backend: &Arc<dyn Backend>| Locks::new(namespace(name), limits, Arc::clone(backend));
        let namespaces = Namespaces::new(vec![
            locks(NAMESPACE, roomy(fixture), replica),
            locks(ELSEWHERE, narrow(), &fixture.elsewhere),
        ]);
        let address = "127.0.0.1:0".parse().expect("an address");
        let listener = Listener::bind(&address).await.expect("a free port");
        let uri = format!("http://{}", listener.local_addr());
        let port = uri
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .expect("a port");
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            // A test that ends drops the sender: that stops the server as well.
            let _ = stopped.await;
        };
        let served = tokio::spawn(serve(vec![listener], namespaces, settings, shutdown));
        let channel = Endpoint::from_shared(uri).expect("a URI").connect().await;
        Self {
            port,
            calls: Calls(channel.expect("the server accepts")),
            stop: Some(stop),
            served,
        }
    }

    /// The connection to it.
    pub fn channel(&self) -> Channel {
        self.calls.0.clone()
    }

    /// A client for its operators.
    pub fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel())
    }

    /// Tells it to stop, without waiting for it.
    pub fn tell_to_stop(&mut self) {
        let stop = self.stop.take().expect("it is told once");
        stop.send(()).expect("it still runs");
    }

    /// Waits until it has stopped.
    pub async fn stopped(self) {
        self.served.await.expect("no panic").expect("a clean end");
    }

    /// Begins to wait for a lock, and returns when `waiters` calls are in its queue.
    pub async fn wait_for(&self, ask: AcquireRequest, waiters: u32) -> JoinHandle<Result<Lease, Status>> {
        let (calls, state) = (self.calls.clone(), (ask.namespace.clone(), ask.name.clone()));
        let call = tokio::spawn(async move { calls.try_acquire(ask).await });
        self.until(&state.0, &state.1, |lock| lock.waiter_count == waiters)
            .await;
        call
    }

    /// The same where the server takes few calls at once: the place of a call is free only a moment after
    /// its answer.
    pub async fn wait_for_when_let_in(&self, ask: AcquireRequest) -> JoinHandle<Result<Lease, Status>> {
        loop {
            let (calls, again) = (self.calls.clone(), ask.clone());
            let call = tokio::spawn(async move { calls.try_acquire(again).await });
            self.until(&ask.namespace, &ask.name, |lock| {
                lock.waiter_count == 1 || call.is_finished()
            })
            .await;
            if !call.is_finished() {
                return call;
            }
            super::refused::refused(
                call.await.expect("no panic"),
                tonic::Code::ResourceExhausted,
                "OVERLOADED",
            );
        }
    }

    /// Waits until a lock is in some state.
    pub async fn until(&self, namespace: &str, name: &str, state: impl Fn(&LockState) -> bool) {
        let reached = async {
            while !state(&self.look_at(namespace, name).await) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(10), reached).await;
        reached.expect("the lock gets there");
    }

    /// Removes whoever holds a token of the case's lock.
    pub async fn try_force(&self, fencing_token: u64) -> Result<(), Status> {
        let ask = ForceReleaseRequest {
            namespace: NAMESPACE.into(),
            name: LOCK.into(),
            fencing_token,
            reason: String::new(),
        };
        self.admin().force_release(ask).await.map(drop)
    }

    /// The state of the case's lock.
    pub async fn inspect(&self) -> LockState {
        self.look_at(NAMESPACE, LOCK).await
    }
}

/// A request for the case's lock.
pub fn acquire(owner: &str) -> AcquireRequest {
    AcquireRequest {
        namespace: NAMESPACE.into(),
        name: LOCK.into(),
        owner: owner.into(),
        ..AcquireRequest::default()
    }
}

/// A request for the case's lock in the narrow namespace.
pub fn acquire_elsewhere(owner: &str) -> AcquireRequest {
    AcquireRequest {
        namespace: ELSEWHERE.into(),
        ..acquire(owner)
    }
}

/// The same request, with the patience to wait so long.
pub fn waiting(seconds: u64, ask: AcquireRequest) -> AcquireRequest {
    asks::waiting(Duration::from_secs(seconds), ask)
}

/// The same request, reentrant.
pub fn reentrant(ask: AcquireRequest) -> AcquireRequest {
    AcquireRequest { reentrant: true, ..ask }
}

/// The same request, shared.
pub fn shared(ask: AcquireRequest) -> AcquireRequest {
    in_mode(Some(Kind::Shared(mode::Shared {})), ask)
}

/// The same request, for permits of a limit.
pub fn semaphore(permits: u32, limit: u32, ask: AcquireRequest) -> AcquireRequest {
    in_mode(Some(Kind::Semaphore(mode::Semaphore { permits, limit })), ask)
}

/// The same request in a mode of this kind.
pub fn in_mode(kind: Option<Kind>, ask: AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        mode: Some(Mode { kind }),
        ..ask
    }
}

/// A request to look at a lock.
pub fn get_lock(namespace: &str, name: &str) -> GetLockRequest {
    GetLockRequest {
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// A request to watch a lock.
pub fn watch_lock(namespace: &str, name: &str) -> WatchLockRequest {
    WatchLockRequest {
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// A request for a page of the case's namespace.
pub fn list_locks(prefix: &str, page_size: i32, page_token: &str) -> ListLocksRequest {
    ListLocksRequest {
        namespace: NAMESPACE.into(),
        prefix: prefix.into(),
        page_size,
        page_token: page_token.into(),
    }
}

/// A question about a token of the case's lock.
pub fn check_token(fencing_token: u64) -> CheckTokenRequest {
    CheckTokenRequest {
        namespace: NAMESPACE.into(),
        name: LOCK.into(),
        fencing_token,
    }
}
