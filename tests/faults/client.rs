//! A caller of the real service, in the words of these tests.

use std::time::{Duration, Instant};

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{
    AcquireRequest, CheckTokenRequest, GetLockRequest, ListLocksRequest, ListNamespacesRequest, LockState, LockSummary,
    NamespaceInfo, ReleaseRequest, RenewRequest,
};
use fencepost::api::status::reason;
use tonic::Status;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::server::{PATIENCE, Server};

/// How soon a condition is looked at again.
const POLL: Duration = Duration::from_millis(10);

/// A lease, and when its caller asked for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// What Renew and Release need.
    pub id: String,
    /// Its token.
    pub token: u64,
    /// Until when its caller may be sure of it: `sent + waited + ttl`.
    pub sure_until: Instant,
    /// What is left of it, or what was granted.
    pub ttl: Duration,
}

/// What an Acquire asks for beyond its lock.
#[derive(Debug, Clone)]
pub struct Ask {
    /// How long to live.
    pub ttl: Duration,
    /// How long to wait.
    pub wait: Duration,
    /// What a retry is recognised by; empty for none.
    pub request_id: String,
    /// Some bytes of metadata.
    pub padding: usize,
}

impl Ask {
    /// A try.
    pub fn once(ttl: Duration) -> Self {
        Self {
            ttl,
            wait: Duration::ZERO,
            request_id: String::new(),
            padding: 0,
        }
    }

    /// The same, waiting that long.
    pub fn waiting(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// The same, with a request id.
    pub fn named(self, request_id: &str) -> Self {
        Self {
            request_id: request_id.into(),
            ..self
        }
    }
}

/// A caller of one namespace on one connection. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Caller {
    connection: Channel,
    namespace: &'static str,
}

impl Caller {
    /// A caller with a connection of its own.
    pub fn of(server: &Server) -> Self {
        Self {
            connection: server.connection(),
            namespace: "default",
        }
    }

    /// The same caller in another namespace.
    pub fn within(self, namespace: &'static str) -> Self {
        Self { namespace, ..self }
    }

    fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.connection.clone())
    }

    /// Takes a lock.
    pub async fn acquire(&self, name: &str, ask: Ask) -> Result<Held, Status> {
        let sent = Instant::now();
        let request = AcquireRequest {
            namespace: self.namespace.into(),
            name: name.into(),
            owner: "faults".into(),
            ttl: Some(wire(ask.ttl)),
            wait: Some(wire(ask.wait)),
            request_id: ask.request_id,
            metadata: [("padding".into(), "x".repeat(ask.padding))].into(),
            ..AcquireRequest::default()
        };
        let answer = self.locks().acquire(request).await?.into_inner();
        let lease = answer.lease.expect("an OK answer has a lease");
        let ttl = time(lease.ttl);
        Ok(Held {
            id: lease.lease_id,
            token: lease.fencing_token,
            sure_until: sent + time(lease.waited) + ttl,
            ttl,
        })
    }

    /// Takes a lock that must be free.
    pub async fn take(&self, name: &str, ttl: Duration) -> Held {
        let taken = self.acquire(name, Ask::once(ttl)).await;
        taken.unwrap_or_else(|status| panic!("{name:?} is not free: {status:?}"))
    }

    /// The reason why a try for a lock is refused.
    pub async fn refusal(&self, name: &str) -> String {
        let refused = self.acquire(name, Ask::once(Duration::from_secs(30))).await;
        why(&refused.expect_err("a refusal"))
    }

    /// Gives a lease more time and says how much it has then.
    pub async fn renew(&self, lease: &Held, ttl: Option<Duration>) -> Result<Duration, Status> {
        let request = RenewRequest {
            lease_id: lease.id.clone(),
            ttl: ttl.map(wire),
        };
        let renewed = self.locks().renew(request).await?.into_inner().lease;
        Ok(time(renewed.and_then(|lease| lease.ttl)))
    }

    /// Gives a lease back.
    pub async fn release(&self, lease: &Held) -> Result<(), Status> {
        let lease_id = lease.id.clone();
        self.locks().release(ReleaseRequest { lease_id }).await.map(drop)
    }

    /// Whether a token is held now.
    pub async fn holds(&self, name: &str, token: u64) -> bool {
        let request = CheckTokenRequest {
            namespace: self.namespace.into(),
            name: name.into(),
            fencing_token: token,
        };
        let checked = self.locks().check_token(request).await;
        checked.expect("the token is checked").into_inner().held
    }

    /// A lock's queue.
    pub async fn look(&self, name: &str) -> LockState {
        let request = GetLockRequest {
            namespace: self.namespace.into(),
            name: name.into(),
        };
        let shown = self.locks().get_lock(request).await.expect("the lock is shown");
        shown.into_inner().lock.expect("an OK answer has a lock")
    }

    /// The first page of the locks in use.
    pub async fn in_use(&self) -> Vec<LockSummary> {
        let request = ListLocksRequest {
            namespace: self.namespace.into(),
            ..ListLocksRequest::default()
        };
        let listed = self.locks().list_locks(request).await;
        listed.expect("the locks are listed").into_inner().locks
    }

    /// Waits until no lock of the namespace is in use.
    pub async fn all_are_free(&self) {
        until("all locks are free", async || {
            self.in_use().await.is_empty().then_some(())
        })
        .await;
    }

    /// The namespace as operators see it.
    pub async fn info(&self) -> NamespaceInfo {
        let mut admin = AdminServiceClient::new(self.connection.clone());
        let listed = admin.list_namespaces(ListNamespacesRequest {}).await;
        let all = listed.expect("the namespaces are listed").into_inner().namespaces;
        let own = all.into_iter().find(|info| info.name == self.namespace);
        own.expect("the namespace is there")
    }

    /// Whether the health service says that the namespace serves.
    pub async fn serves(&self) -> bool {
        let mut health = HealthClient::new(self.connection.clone());
        let service = format!("namespace/{}", self.namespace);
        let checked = health.check(HealthCheckRequest { service }).await;
        checked.expect("its health is known").into_inner().status() == ServingStatus::Serving
    }
}

/// Asks until there is an answer.
///
/// # Panics
/// When there is none for too long.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// The reason in a refusal; for one of the transport's, its code.
pub fn why(status: &Status) -> String {
    reason(status).unwrap_or_else(|| format!("{:?}", status.code()))
}

fn wire(time: Duration) -> prost_types::Duration {
    time.try_into().expect("a short time")
}

fn time(wire: Option<prost_types::Duration>) -> Duration {
    wire.expect("a time").try_into().expect("not negative")
}
