//! Takes a lock, renews its lease and gives it back.
//!
//! `cargo run --example lock [host:port]`; without an address, 127.0.0.1:50051.

use std::error::Error;
use std::time::Duration;

use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, Lease, ReleaseRequest, RenewRequest};
use fencepost::api::status::reason;
use tonic::Status;
use tonic::transport::Channel;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:50051".into());
    let mut locks = LockServiceClient::connect(format!("http://{address}")).await?;
    hold_once(&mut locks).await.map_err(|status| explain(&status).into())
}

async fn hold_once(locks: &mut LockServiceClient<Channel>) -> Result<(), Status> {
    let lease = acquire(locks).await?;
    println!("took {:?} with fencing token {}", lease.name, lease.fencing_token);
    let renewed = locks
        .renew(RenewRequest {
            lease_id: lease.lease_id.clone(),
            ttl: None,
        })
        .await?;
    println!("renewed: {:?} left", ttl(renewed.into_inner().lease));
    let lease_id = lease.lease_id;
    locks
        .release(ReleaseRequest {
            lease_id,
            keep_for: None,
        })
        .await?;
    println!("released");
    Ok(())
}

/// Waits up to five seconds for the lock `example`.
async fn acquire(locks: &mut LockServiceClient<Channel>) -> Result<Lease, Status> {
    let answer = locks
        .acquire(AcquireRequest {
            namespace: "default".into(),
            name: "example".into(),
            owner: "examples/lock".into(),
            wait: Some(prost_types::Duration { seconds: 5, nanos: 0 }),
            ..AcquireRequest::default()
        })
        .await?;
    let lease = answer.into_inner().lease;
    lease.ok_or_else(|| Status::data_loss("an answer without a lease"))
}

fn ttl(lease: Option<Lease>) -> Duration {
    let ttl = lease.and_then(|lease| lease.ttl);
    ttl.and_then(|ttl| ttl.try_into().ok()).unwrap_or_default()
}

fn explain(status: &Status) -> String {
    let reason = reason(status).unwrap_or_else(|| format!("{:?}", status.code()));
    format!("{reason}: {}", status.message())
}
