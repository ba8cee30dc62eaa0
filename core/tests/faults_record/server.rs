//! One server's engine, in the words of the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_core::backend::record::store::ServerId;
use fencepost_core::backend::record::{Engine, EngineSettings};
use fencepost_core::backend::{
    AcquireOutcome, Backend, BackendError, Grant, Guarantee, InspectLimit, NewClaim, ReleaseTarget, Released,
    WaitPolicy,
};
use fencepost_core::claim::Queue;
use fencepost_core::name::{LeaseKey, LockKey, LockName, Namespace, Ttl};

use crate::claims::numbered;
use crate::record_store::{Connection, Database};

/// An engine and its connection.
pub struct Server {
    pub backend: Arc<dyn Backend>,
    pub connection: Arc<Connection>,
}

/// Opens an engine of its own.
pub fn server(database: &Database) -> Server {
    server_on(database.connect())
}

/// The same over this connection.
pub fn server_on(connection: Arc<Connection>) -> Server {
    server_as(connection, ServerId::random().expect("random numbers"))
}

/// The same by this id.
pub fn server_as(connection: Arc<Connection>, server: ServerId) -> Server {
    let settings = EngineSettings {
        kind: "record",
        guarantee: Guarantee::Ap,
        server,
    };
    let backend = Engine::open(connection.clone(), settings);
    Server { backend, connection }
}

/// The lock of a test that names no other.
pub fn lock() -> LockName {
    LockName::new("lock").expect("a name")
}

/// A claim of its own that waits.
pub fn claim() -> NewClaim {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NewClaim {
        retryable: true,
        ..numbered(NEXT.fetch_add(1, Ordering::Relaxed).into())
    }
}

/// The same claim in another call.
pub fn again(first: &NewClaim) -> NewClaim {
    let NewClaim { call, secret, .. } = claim();
    NewClaim {
        call,
        secret,
        ..first.clone()
    }
}

/// A claim that lives so long.
pub fn living(time: Duration) -> NewClaim {
    NewClaim {
        ttl: Ttl::new(time).expect("a TTL"),
        ..claim()
    }
}

/// The same claim, which does not wait.
pub fn trying(claim: NewClaim) -> NewClaim {
    NewClaim {
        wait_policy: WaitPolicy::NoWait,
        ..claim
    }
}

/// The lease of a grant.
pub fn lease(grant: &Grant) -> LeaseKey {
    grant.lease(LockKey {
        namespace: Namespace::new("test").expect("a name"),
        name: lock(),
    })
}

/// The grant of a claim that must hold.
#[track_caller]
pub fn held(outcome: AcquireOutcome) -> Grant {
    match outcome {
        AcquireOutcome::Held(grant) => grant,
        other => panic!("not held: {other:?}"),
    }
}

impl Server {
    pub async fn acquire(&self, claim: &NewClaim) -> AcquireOutcome {
        self.backend.acquire(&lock(), claim).await.expect("it answers")
    }

    pub async fn hold(&self, claim: &NewClaim) -> Grant {
        held(self.acquire(claim).await)
    }

    pub async fn queue(&self, claim: &NewClaim) {
        let outcome = self.acquire(claim).await;
        assert!(matches!(outcome, AcquireOutcome::Waiting(_)), "{outcome:?}");
    }

    pub async fn promote(&self, claim: &NewClaim) -> AcquireOutcome {
        self.backend.promote(&lock(), claim).await.expect("it answers")
    }

    pub async fn release(&self, grant: &Grant) -> Released {
        let target = lease(grant);
        let released = self.backend.release(&lock(), ReleaseTarget::Hold(&target), None).await;
        released.expect("it answers").released
    }

    pub async fn undo(&self, claim: &NewClaim) -> Result<Released, BackendError> {
        let target = ReleaseTarget::Call(&claim.id, claim.call);
        Ok(self.backend.release(&lock(), target, None).await?.released)
    }

    pub async fn inspect(&self) -> Queue {
        let queue = self.backend.inspect(&lock(), InspectLimit::of_each(1_000)).await;
        queue.expect("it answers")
    }

    pub async fn is_free(&self) -> bool {
        self.inspect().await == Queue::default()
    }
}
