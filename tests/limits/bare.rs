//! What tonic itself takes: the same API with the server's settings and no service behind it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fencepost::api::proto::lock_service_server::{LockService, LockServiceServer};
use fencepost::api::proto::*;
use futures::stream::{Empty, empty};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Set in the process that serves; it is the test's own program.
const SERVES: &str = "FENCEPOST_TEST_BARE";
const READY: &str = "bare on ";
/// The settings of the real server that a connection's memory depends on.
const WINDOW: u32 = 16 << 20;
const STREAMS: u32 = 100_000;
const RESETS: usize = 20_000;

/// A process with the bare service; killed in the end.
pub struct Bare {
    process: Child,
    /// Where it listens.
    pub address: String,
}

impl Drop for Bare {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Bare {
    /// Starts it as the test of this name in a process of its own, which must call
    /// [`serve_if_asked`] first.
    pub fn start(test: &str) -> Self {
        let program = std::env::current_exe().expect("the test's own program");
        let mut process = Command::new(program)
            .args([test, "--exact", "--nocapture"])
            .env(SERVES, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = BufReader::new(process.stderr.take().expect("a pipe"));
        let address = log
            .lines()
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix(READY)?.to_owned()));
        Self {
            process,
            address: address.expect("it says where it listens"),
        }
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Serves until it is killed, in the process that was started to.
pub fn serve_if_asked() {
    if std::env::var_os(SERVES).is_some() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(serve());
    }
}

async fn serve() {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = incoming.local_addr().expect("its address");
    eprintln!("{READY}{address}");
    Server::builder()
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(STREAMS)
        .http2_max_pending_accept_reset_streams(Some(RESETS))
        .add_service(LockServiceServer::new(Waits::default()))
        .serve_with_incoming(incoming.with_nodelay(Some(true)))
        .await
        .expect("it serves");
}

/// Lets every Acquire wait for ever, and counts them for ListLocks.
#[derive(Debug, Default)]
struct Waits {
    open: Arc<AtomicU32>,
}

#[tonic::async_trait]
impl LockService for Waits {
    async fn acquire(&self, request: Request<AcquireRequest>) -> Result<Response<AcquireResponse>, Status> {
        drop(request);
        self.open.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }

    async fn list_locks(&self, _: Request<ListLocksRequest>) -> Result<Response<ListLocksResponse>, Status> {
        let all = LockSummary {
            waiter_count: self.open.load(Ordering::Relaxed),
            ..LockSummary::default()
        };
        Ok(Response::new(ListLocksResponse {
            locks: vec![all],
            ..ListLocksResponse::default()
        }))
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        Err(not_here())
    }

    async fn release(&self, _: Request<ReleaseRequest>) -> Result<Response<ReleaseResponse>, Status> {
        Err(not_here())
    }

    async fn acquire_all(&self, _: Request<AcquireAllRequest>) -> Result<Response<AcquireAllResponse>, Status> {
        Err(not_here())
    }

    async fn release_all(&self, _: Request<ReleaseAllRequest>) -> Result<Response<ReleaseAllResponse>, Status> {
        Err(not_here())
    }

    async fn update_metadata(
        &self,
        _: Request<UpdateMetadataRequest>,
    ) -> Result<Response<UpdateMetadataResponse>, Status> {
        Err(not_here())
    }

    async fn get_lock(&self, _: Request<GetLockRequest>) -> Result<Response<GetLockResponse>, Status> {
        Err(not_here())
    }

    async fn check_token(&self, _: Request<CheckTokenRequest>) -> Result<Response<CheckTokenResponse>, Status> {
        Err(not_here())
    }

    type KeepAliveStream = Empty<Result<KeepAliveResponse, Status>>;

    async fn keep_alive(
        &self,
        _: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        Err(not_here())
    }

    type SessionStream = Empty<Result<SessionResponse, Status>>;

    async fn session(&self, _: Request<Streaming<SessionRequest>>) -> Result<Response<Self::SessionStream>, Status> {
        Err(not_here())
    }

    type WatchLockStream = Empty<Result<WatchLockResponse, Status>>;

    async fn watch_lock(&self, _: Request<WatchLockRequest>) -> Result<Response<Self::WatchLockStream>, Status> {
        Ok(Response::new(empty()))
    }
}

fn not_here() -> Status {
    Status::unimplemented("the bare service only waits")
}
