//! The bare echo: the transport and the messages of an Acquire and a Release, and no lock.

use std::future::pending;
use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use fencepost::api::proto::lock_service_server::{LockService, LockServiceServer};
use fencepost::api::proto::{
    AcquireRequest, AcquireResponse, CheckTokenRequest, CheckTokenResponse, GetLockRequest, GetLockResponse, Guarantee,
    Lease, ListLocksRequest, ListLocksResponse, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
    WatchLockRequest, WatchLockResponse,
};
use futures::stream::Empty;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::Failure;

/// The environment variable that makes this program an echo server; its value is the lease id that
/// every answer carries, so that answers are as long as real ones.
pub const ROLE: &str = "FENCEPOST_BENCH_ECHO";
/// What stands before the address in the line that says that it serves.
pub const READY: &str = "echoing on ";

/// A token of the size of real ones.
const TOKEN: u64 = 1 << 50;
/// The default of a namespace.
const TTL: prost_types::Duration = prost_types::Duration { seconds: 30, nanos: 0 };
/// The transport's settings, as the server has them.
const CONNECTION_WINDOW: u32 = 16 << 20;
const STREAMS: u32 = 100_000;
const PENDING_RESETS: usize = 20_000;
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The lease id to answer with, if this process is to be an echo server.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Serves until it is killed.
pub async fn serve(lease_id: String) -> Result<(), Failure> {
    let listener = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into())?.with_nodelay(Some(true));
    println!("{READY}{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    Server::builder()
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS))
        .http2_keepalive_interval(Some(KEEPALIVE))
        .add_service(LockServiceServer::new(Echo { lease_id }))
        .serve_with_incoming_shutdown(listener, pending())
        .await?;
    Ok(())
}

/// Answers what it was asked.
struct Echo {
    lease_id: String,
}

#[tonic::async_trait]
impl LockService for Echo {
    type WatchLockStream = Empty<Result<WatchLockResponse, Status>>;

    async fn acquire(&self, request: Request<AcquireRequest>) -> Result<Response<AcquireResponse>, Status> {
        let ask = request.into_inner();
        let lease = Lease {
            lease_id: self.lease_id.clone(),
            fencing_token: TOKEN,
            ttl: Some(TTL),
            waited: Some(prost_types::Duration::default()),
            namespace: ask.namespace,
            name: ask.name,
            owner: ask.owner,
            guarantee: Guarantee::Ap.into(),
            holds: 1,
        };
        Ok(Response::new(AcquireResponse { lease: Some(lease) }))
    }

    async fn release(&self, _: Request<ReleaseRequest>) -> Result<Response<ReleaseResponse>, Status> {
        Ok(Response::new(ReleaseResponse {}))
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        Err(not_echoed())
    }

    async fn get_lock(&self, _: Request<GetLockRequest>) -> Result<Response<GetLockResponse>, Status> {
        Err(not_echoed())
    }

    async fn list_locks(&self, _: Request<ListLocksRequest>) -> Result<Response<ListLocksResponse>, Status> {
        Err(not_echoed())
    }

    async fn watch_lock(&self, _: Request<WatchLockRequest>) -> Result<Response<Self::WatchLockStream>, Status> {
        Err(not_echoed())
    }

    async fn check_token(&self, _: Request<CheckTokenRequest>) -> Result<Response<CheckTokenResponse>, Status> {
        Err(not_echoed())
    }
}

fn not_echoed() -> Status {
    Status::unimplemented("the echo answers Acquire and Release")
}
