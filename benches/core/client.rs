//! The client side: one connection, and the calls that are measured.

use std::time::Duration;

use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, GetLockRequest, Lease, LockState, ReleaseRequest};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::Failure;

/// A client of one connection. Clones share the connection.
pub type Locks = LockServiceClient<Channel>;

/// As large as the server's: bursts of small calls do not end the connection.
const WINDOW: u32 = 16 << 20;

/// Connects with the settings of a client that has many calls under way.
pub async fn connect(address: &str) -> Result<Locks, Failure> {
    Ok(LockServiceClient::new(endpoint("http", address)?.connect().await?))
}

/// The same settings for a connection that is still to be made.
pub fn endpoint(scheme: &str, address: &str) -> Result<Endpoint, Failure> {
    Ok(Endpoint::from_shared(format!("{scheme}://{address}"))?
        .tcp_nodelay(true)
        .initial_connection_window_size(WINDOW)
        .http2_max_local_error_reset_streams(None))
}

/// A request for a lock; `wait` zero tries once.
pub fn ask(namespace: &str, name: impl Into<String>, owner: impl Into<String>, wait: Duration) -> AcquireRequest {
    let seconds = wait.as_secs().try_into().unwrap_or(i64::MAX);
    AcquireRequest {
        namespace: namespace.into(),
        name: name.into(),
        owner: owner.into(),
        wait: (seconds > 0).then_some(prost_types::Duration { seconds, nanos: 0 }),
        ..AcquireRequest::default()
    }
}

/// Takes a lock.
pub async fn acquire(locks: &mut Locks, ask: AcquireRequest) -> Result<Lease, Status> {
    let lease = locks.acquire(ask).await?.into_inner().lease;
    lease.ok_or_else(|| Status::data_loss("an answer without a lease"))
}

/// Gives a lock back.
pub async fn release(locks: &mut Locks, lease: Lease) -> Result<(), Status> {
    let lease_id = lease.lease_id;
    locks
        .release(ReleaseRequest {
            lease_id,
            keep_for: None,
        })
        .await?;
    Ok(())
}

/// Takes a lock and gives it back.
pub async fn pair(locks: &mut Locks, ask: AcquireRequest) -> Result<(), Status> {
    let lease = acquire(locks, ask).await?;
    release(locks, lease).await
}

/// The lock's queue.
pub async fn inspect(locks: &mut Locks, namespace: &str, name: &str) -> Result<LockState, Status> {
    let ask = GetLockRequest {
        namespace: namespace.into(),
        name: name.into(),
    };
    let lock = locks.get_lock(ask).await?.into_inner().lock;
    lock.ok_or_else(|| Status::data_loss("an answer without a lock"))
}

/// A real lease id, already given back.
pub async fn sample(mut locks: Locks, namespace: &str) -> Result<String, Status> {
    let lease = acquire(&mut locks, ask(namespace, "pair-00", "bench", Duration::ZERO)).await?;
    let lease_id = lease.lease_id.clone();
    release(&mut locks, lease).await?;
    Ok(lease_id)
}
