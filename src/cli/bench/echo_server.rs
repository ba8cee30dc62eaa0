//! The echo server: the transport and the messages of Acquire and Release, without locks.
//! Benchmarks compare the real server with it. It uses only tonic, so that the comparison includes
//! the cost of the real server's transport. It belongs to the program, so that the library contains no fake lock server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use fencepost::api::proto::lock_service_server::{LockService, LockServiceServer};
use fencepost::api::proto::{
    AcquireAllRequest, AcquireAllResponse, AcquireRequest, AcquireResponse, CheckTokenRequest, CheckTokenResponse,
    GetLockRequest, GetLockResponse, Guarantee, KeepAliveRequest, KeepAliveResponse, Lease, ListLocksRequest,
    ListLocksResponse, ReleaseAllRequest, ReleaseAllResponse, ReleaseRequest, ReleaseResponse, RenewRequest,
    RenewResponse, UpdateMetadataRequest, UpdateMetadataResponse, WatchLockRequest, WatchLockResponse,
};
use fencepost::api::{CONNECTION_WINDOW, LOCAL_RESETS, PENDING_RESETS, Settings};
use futures::stream::Empty;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// A token of realistic size.
const TOKEN: u64 = 1 << 50;
/// The default TTL of a namespace.
const TTL: prost_types::Duration = prost_types::Duration { seconds: 30, nanos: 0 };

/// An echo server on a free port of this machine.
#[derive(Debug)]
pub struct Echo {
    listener: TcpIncoming,
    address: SocketAddr,
    lease_id: String,
}

impl Echo {
    /// Binds the server. Every answer contains this lease id, so that answers are as long as real
    /// ones. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn bind(lease_id: String) -> io::Result<Self> {
        let listener = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into())?.with_nodelay(Some(true));
        let address = listener.local_addr()?;
        Ok(Self {
            listener,
            address,
            lease_id,
        })
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is ready, with the real server's transport settings.
    ///
    /// # Errors
    /// When the transport fails.
    ///
    /// # Cancellation safety
    /// Dropping the future stops accepting.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), tonic::transport::Error> {
        let service = EchoService {
            lease_id: self.lease_id,
        };
        let settings = Settings::default();
        Server::builder()
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(settings.max_streams_per_connection)
            .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS))
            .http2_max_local_error_reset_streams(Some(LOCAL_RESETS))
            .http2_keepalive_interval(Some(settings.keepalive_interval))
            .http2_keepalive_timeout(Some(settings.keepalive_timeout))
            .add_service(LockServiceServer::new(service))
            .serve_with_incoming_shutdown(self.listener, shutdown)
            .await
    }
}

/// The service that returns its request's fields.
struct EchoService {
    lease_id: String,
}

#[tonic::async_trait]
impl LockService for EchoService {
    type WatchLockStream = Empty<Result<WatchLockResponse, Status>>;
    type KeepAliveStream = Empty<Result<KeepAliveResponse, Status>>;

    async fn acquire(&self, request: Request<AcquireRequest>) -> Result<Response<AcquireResponse>, Status> {
        let message = request.into_inner();
        let lease = Lease {
            lease_id: self.lease_id.clone(),
            fencing_token: TOKEN,
            ttl: Some(TTL),
            waited: Some(prost_types::Duration::default()),
            namespace: message.namespace,
            name: message.name,
            owner: message.owner,
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

    async fn acquire_all(&self, _: Request<AcquireAllRequest>) -> Result<Response<AcquireAllResponse>, Status> {
        Err(not_echoed())
    }

    async fn release_all(&self, _: Request<ReleaseAllRequest>) -> Result<Response<ReleaseAllResponse>, Status> {
        Err(not_echoed())
    }

    async fn update_metadata(
        &self,
        _: Request<UpdateMetadataRequest>,
    ) -> Result<Response<UpdateMetadataResponse>, Status> {
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

    async fn keep_alive(
        &self,
        _: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        Err(not_echoed())
    }

    async fn check_token(&self, _: Request<CheckTokenRequest>) -> Result<Response<CheckTokenResponse>, Status> {
        Err(not_echoed())
    }
}

fn not_echoed() -> Status {
    Status::unimplemented("the echo answers Acquire and Release")
}
