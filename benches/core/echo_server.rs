//! The echo server: the transport and the messages of Acquire and Release, as calls and on sessions, without locks.
//! Benchmarks compare the real server with it. It uses only tonic, so that the comparison includes
//! the cost of the real server's transport.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use fencepost::api::proto::lock_service_server::{LockService, LockServiceServer};
use fencepost::api::proto::session_command::Command;
use fencepost::api::proto::session_event::command_result::Outcome;
use fencepost::api::proto::session_event::{CommandResult, Event, Opened};
use fencepost::api::proto::{
    AcquireAllRequest, AcquireAllResponse, AcquireRequest, AcquireResponse, CheckTokenRequest, CheckTokenResponse,
    GetLockRequest, GetLockResponse, Guarantee, KeepAliveRequest, KeepAliveResponse, Lease, ListLocksRequest,
    ListLocksResponse, ReleaseAllRequest, ReleaseAllResponse, ReleaseRequest, ReleaseResponse, RenewRequest,
    RenewResponse, SessionCommand, SessionEvent, SessionRequest, SessionResponse, UpdateMetadataRequest,
    UpdateMetadataResponse, WatchLockRequest, WatchLockResponse,
};
use fencepost::api::{CONNECTION_WINDOW, LOCAL_RESETS, PENDING_RESETS, Settings};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, Empty, StreamExt};
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
#[derive(Clone)]
struct EchoService {
    lease_id: String,
}

impl EchoService {
    fn granted(&self, message: AcquireRequest) -> AcquireResponse {
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
        AcquireResponse { lease: Some(lease) }
    }

    /// The result of a command of a session.
    fn result(&self, SessionCommand { id, command }: SessionCommand) -> SessionEvent {
        let outcome = match command {
            Some(Command::Acquire(acquire)) => {
                Some(Outcome::Acquire(self.granted(acquire.request.unwrap_or_default())))
            }
            Some(Command::Release(_)) => Some(Outcome::Release(ReleaseResponse::default())),
            _ => None,
        };
        event(Event::Result(CommandResult { id, outcome }))
    }
}

/// The methods that are not echoed, as `async_trait` makes them.
macro_rules! not_echoed {
    ($($method:ident($request:ty) -> $answer:ty,)+) => {$(
        fn $method<'own, 'call>(
            &'own self,
            _: Request<$request>,
        ) -> BoxFuture<'call, Result<Response<$answer>, Status>>
        where
            'own: 'call,
        {
            let answer = Status::unimplemented("the echo answers Acquire, Release and Session");
            ready(Err(answer)).boxed()
        }
    )+};
}

fn event(event: Event) -> SessionEvent {
    SessionEvent { event: Some(event) }
}

#[tonic::async_trait]
impl LockService for EchoService {
    type WatchLockStream = Empty<Result<WatchLockResponse, Status>>;
    type KeepAliveStream = Empty<Result<KeepAliveResponse, Status>>;
    type SessionStream = BoxStream<'static, Result<SessionResponse, Status>>;

    async fn acquire(&self, request: Request<AcquireRequest>) -> Result<Response<AcquireResponse>, Status> {
        Ok(Response::new(self.granted(request.into_inner())))
    }

    async fn release(&self, _: Request<ReleaseRequest>) -> Result<Response<ReleaseResponse>, Status> {
        Ok(Response::new(ReleaseResponse::default()))
    }

    not_echoed! {
        renew(RenewRequest) -> RenewResponse,
        acquire_all(AcquireAllRequest) -> AcquireAllResponse,
        release_all(ReleaseAllRequest) -> ReleaseAllResponse,
        update_metadata(UpdateMetadataRequest) -> UpdateMetadataResponse,
        get_lock(GetLockRequest) -> GetLockResponse,
        list_locks(ListLocksRequest) -> ListLocksResponse,
        watch_lock(WatchLockRequest) -> Self::WatchLockStream,
        check_token(CheckTokenRequest) -> CheckTokenResponse,
        keep_alive(Streaming<KeepAliveRequest>) -> Self::KeepAliveStream,
    }

    /// Answers the commands of a message in one message.
    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let service = self.clone();
        let opened = SessionResponse {
            events: vec![event(Event::Opened(Opened::default()))],
        };
        let results = request.into_inner().map(move |message| {
            let events = message?.commands.into_iter().map(|command| service.result(command));
            Ok(SessionResponse {
                events: events.collect(),
            })
        });
        Ok(Response::new(stream::iter([Ok(opened)]).chain(results).boxed()))
    }
}
