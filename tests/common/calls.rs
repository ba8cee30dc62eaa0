//! Calls for leases over gRPC, with the errors of the server.

use std::time::Duration;

use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, GetLockRequest, Lease, LockState, ReleaseRequest, RenewRequest};
use tonic::Status;
use tonic::transport::Channel;

use crate::asks::wire;

/// A connection to a server, for the clients of the tests to build on.
#[derive(Debug, Clone)]
pub struct Calls(pub Channel);

impl Calls {
    /// A client of the server's locks.
    pub fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.0.clone())
    }

    /// Takes a lock, or says why not.
    pub async fn try_acquire(&self, ask: AcquireRequest) -> Result<Lease, Status> {
        let answer = self.locks().acquire(ask).await?;
        Ok(answer.into_inner().lease.expect("a lease"))
    }

    /// Takes a lock that must be granted.
    pub async fn acquire(&self, ask: AcquireRequest) -> Lease {
        self.try_acquire(ask).await.expect("granted")
    }

    /// Renews a lease, or says why not.
    pub async fn try_renew(&self, lease: &Lease, ttl: Option<Duration>) -> Result<Lease, Status> {
        let (lease_id, ttl) = (lease.lease_id.clone(), ttl.map(wire));
        let answer = self.locks().renew(RenewRequest { lease_id, ttl }).await?;
        Ok(answer.into_inner().lease.expect("a lease"))
    }

    /// Releases a lease, or says why not.
    pub async fn try_release(&self, lease: &Lease) -> Result<(), Status> {
        let lease_id = lease.lease_id.clone();
        self.locks()
            .release(ReleaseRequest {
                lease_id,
                keep_for: None,
            })
            .await
            .map(drop)
    }

    /// Releases a lease, and keeps its lock for this time. Returns how long it stays taken.
    pub async fn release_keeping(&self, lease: &Lease, time: Duration) -> Result<Option<Duration>, Status> {
        let ask = ReleaseRequest {
            lease_id: lease.lease_id.clone(),
            keep_for: Some(wire(time)),
        };
        let answer = self.locks().release(ask).await?.into_inner();
        Ok(answer.kept_for.map(|kept| crate::asks::time(Some(kept))))
    }

    /// Releases a lease that must live.
    pub async fn release(&self, lease: &Lease) {
        self.try_release(lease).await.expect("released");
    }

    /// The state of any lock.
    pub async fn look_at(&self, namespace: &str, name: &str) -> LockState {
        let ask = GetLockRequest {
            namespace: namespace.into(),
            name: name.into(),
        };
        let answer = self.locks().get_lock(ask).await;
        answer.expect("a state").into_inner().lock.expect("a state")
    }
}
