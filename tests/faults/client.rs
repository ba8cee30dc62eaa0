//! Calls to a server over gRPC.

use std::ops::Deref;
use std::time::{Duration, Instant};

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::{
    AcquireRequest, CheckTokenRequest, Lease, ListNamespacesRequest, LockState, NamespaceHealth, NamespaceInfo,
};
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::asks::wire;
pub use crate::asks::{living, named, reason, time, waiting};
use crate::calls::Calls;
use crate::server::PATIENCE;

/// The namespace of every test.
pub const NAMESPACE: &str = "faults";
/// The TTL of a claim that names none; longer than any round of a test.
pub const TTL: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(5);

/// A connection to a server.
#[derive(Debug, Clone)]
pub struct Client(Calls);

impl Deref for Client {
    type Target = Calls;

    fn deref(&self) -> &Calls {
        &self.0
    }
}

impl Client {
    /// Connects to an address that is listened on.
    pub async fn connect(address: &str) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URI");
        Self(Calls(endpoint.connect().await.expect("the server accepts")))
    }

    /// The state of a lock.
    pub async fn inspect(&self, name: &str) -> LockState {
        self.look_at(NAMESPACE, name).await
    }

    /// Whether a lease's token is held at this moment.
    pub async fn holds(&self, lease: &Lease) -> bool {
        let ask = CheckTokenRequest {
            namespace: NAMESPACE.into(),
            name: lease.name.clone(),
            fencing_token: lease.fencing_token,
        };
        let answer = self.locks().check_token(ask).await;
        answer.expect("an answer").into_inner().held
    }

    /// What operators see of the namespace.
    pub async fn namespace(&self) -> NamespaceInfo {
        let mut admin = AdminServiceClient::new(self.0.0.clone());
        let answer = admin.list_namespaces(ListNamespacesRequest {}).await;
        answer.expect("a list").into_inner().namespaces.remove(0)
    }

    /// What the health service says of the namespace.
    pub async fn health(&self) -> ServingStatus {
        let service = format!("namespace/{NAMESPACE}");
        let answer = HealthClient::new(self.0.0.clone())
            .check(HealthCheckRequest { service })
            .await;
        answer.expect("an answer").into_inner().status()
    }

    /// Whether operators and the health service see a namespace that is away, and why.
    pub async fn is_unavailable(&self, why: &str) -> bool {
        let seen = self.namespace().await;
        let says_why = !seen.reason.is_empty() && seen.reason.contains(why);
        seen.health() == NamespaceHealth::Unavailable && says_why && self.health().await == ServingStatus::NotServing
    }

    /// Waits until the health service says that the namespace serves.
    pub async fn until_serving(&self) {
        let start = Instant::now();
        while self.health().await != ServingStatus::Serving {
            assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until so many claims wait for a lock.
    pub async fn until_waiting(&self, name: &str, waiters: u32) {
        self.until(name, |lock| lock.waiter_count == waiters).await;
    }

    /// Waits until a lock is in some state.
    pub async fn until(&self, name: &str, reached: impl Fn(&LockState) -> bool) {
        let start = Instant::now();
        loop {
            let lock = self.inspect(name).await;
            if reached(&lock) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {lock:?}");
            tokio::time::sleep(POLL).await;
        }
    }
}

/// A try for a lock.
pub fn ask(name: &str, owner: &str) -> AcquireRequest {
    AcquireRequest {
        namespace: NAMESPACE.into(),
        name: name.into(),
        owner: owner.into(),
        ttl: Some(wire(TTL)),
        ..AcquireRequest::default()
    }
}

/// Asserts that an answer is this error.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, why: &str) {
    let status = answer.expect_err("refused");
    assert_eq!((status.code(), reason(&status).as_str()), (code, why), "{status:?}");
}
