//! What the attacks share: the server with a configuration, a normal client and how it fares, and an attacker
//! that speaks HTTP/2 by hand.

#![allow(dead_code, reason = "each attack uses its share")]

use std::io::{Read, Write};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, Lease, ReleaseRequest, RenewRequest};
use h2::client::{ResponseFuture, SendRequest};
use prost::Message;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::server::Server;

pub const NAMESPACE: &str = "default";
/// Longer than any step of an attack takes.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The worst that an attack may do to one acquire and release of the normal client.
pub const WORST_PAIR: Duration = Duration::from_secs(1);
/// How often the normal client renews its lease and makes a pair.
const PACE: Duration = Duration::from_millis(50);

/// A runtime for the calls of one test.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Starts the server in memory with these further lines of configuration.
pub fn start(home: &TempDir, config: &str) -> Server {
    start_with(
        home,
        &format!("{config}\n[namespaces.default.embedded]\npath = \":memory:\"\n"),
    )
}

/// Starts the server with this configuration, word for word; it listens on a free port.
pub fn start_with(home: &TempDir, config: &str) -> Server {
    std::fs::write(home.path().join("f.toml"), format!("data_dir = \"d\"\n{config}")).expect("a file");
    Server::start_with(home, &["--config", "f.toml", "--listen", "127.0.0.1:0"])
}

/// The table `auth` for these names, each with the bearer token `secret-NAME` and all rights to all locks.
pub fn bearers(names: &[&str]) -> String {
    let hashes = names.iter().map(|name| {
        let hash = Sha256::digest(format!("secret-{name}"));
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("\"{name}:{digits}\"")
    });
    let hashes = hashes.collect::<Vec<_>>().join(", ");
    format!(
        "[auth]\nbearer_hashes = [{hashes}]\n[[auth.rules]]\nidentities = [\"token:*\"]\nnamespaces = [\"*\"]\n\
         verbs = [\"acquire\", \"read\"]\n"
    )
}

/// A client of the service, with a token or without one. Clones share its connection.
#[derive(Clone)]
pub struct Client {
    pub locks: LockServiceClient<Channel>,
    token: Option<AsciiMetadataValue>,
}

impl Client {
    /// Connects.
    pub async fn connect(address: &str, name: Option<&str>) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let endpoint = endpoint.initial_connection_window_size(16 << 20);
        let channel = endpoint.connect().await.expect("the server accepts");
        let token = name.map(|name| format!("Bearer secret-{name}").parse().expect("plain text"));
        Self {
            locks: LockServiceClient::new(channel),
            token,
        }
    }

    /// A request with the token.
    pub fn with_token<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }

    /// Takes a lock.
    pub async fn acquire(&self, ask: AcquireRequest) -> Result<Lease, Status> {
        let answer = self.locks.clone().acquire(self.with_token(ask)).await?;
        Ok(answer.into_inner().lease.expect("a lease"))
    }

    /// Gives a lease back.
    pub async fn release(&self, lease_id: &str) -> Result<(), Status> {
        let ask = ReleaseRequest {
            lease_id: lease_id.into(),
            keep_for: None,
        };
        self.locks.clone().release(self.with_token(ask)).await.map(drop)
    }

    /// Gives a lease more time.
    pub async fn renew(&self, lease_id: &str) -> Result<(), Status> {
        let ask = RenewRequest {
            lease_id: lease_id.into(),
            ttl: None,
        };
        self.locks.clone().renew(self.with_token(ask)).await.map(drop)
    }
}

/// A request for a lock with some patience.
pub fn ask(lock: &str, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        namespace: NAMESPACE.into(),
        name: lock.into(),
        owner: "somebody".into(),
        ttl: Some(wire(Duration::from_secs(60))),
        wait: Some(wire(wait)),
        ..AcquireRequest::default()
    }
}

/// A time as the API writes it.
pub fn wire(time: Duration) -> prost_types::Duration {
    time.try_into().expect("a short time")
}

/// How the normal client fared.
#[derive(Debug, Default)]
pub struct Fared {
    pub pairs: u32,
    pub worst_pair: Duration,
    pub renewals: u32,
    /// What was answered to calls that failed.
    pub failures: Vec<String>,
}

impl Fared {
    /// Fails unless the attack left the client alone.
    pub fn well(&self) {
        println!(
            "normal client: {} pairs, the worst {:?}; {} renewals",
            self.pairs, self.worst_pair, self.renewals
        );
        assert!(self.failures.is_empty(), "{:?}", self.failures);
        assert!(self.pairs > 0 && self.renewals > 0, "{self:?}");
        assert!(self.worst_pair < WORST_PAIR, "{self:?}");
    }
}

/// Works normally for that long: pairs of acquire and release, and renewals of a lease that it keeps.
pub async fn work(client: &Client, time: Duration) -> Fared {
    let mut fared = Fared::default();
    let kept = client.acquire(ask("kept", PATIENCE)).await.expect("it is free");
    let began = Instant::now();
    while began.elapsed() < time {
        let pair = Instant::now();
        match client.acquire(ask("worked", PATIENCE)).await {
            Ok(lease) => match client.release(&lease.lease_id).await {
                Ok(()) => fared.pairs += 1,
                Err(status) => fared.failures.push(format!("release: {status}")),
            },
            Err(status) => fared.failures.push(format!("acquire: {status}")),
        }
        fared.worst_pair = fared.worst_pair.max(pair.elapsed());
        match client.renew(&kept.lease_id).await {
            Ok(()) => fared.renewals += 1,
            Err(status) => fared.failures.push(format!("renew: {status}")),
        }
        sleep(PACE).await;
    }
    client.release(&kept.lease_id).await.expect("it is held");
    fared
}

/// A connection spoken by hand. It answers pings, and gives its answers no window unless told to.
#[derive(Clone)]
pub struct Attacker {
    opener: SendRequest<Bytes>,
    token: Option<String>,
    closed: tokio_util::sync::CancellationToken,
}

impl Attacker {
    /// Connects with a window of so many bytes for each answer.
    pub async fn connect(address: &str, name: Option<&str>, window: u32) -> Self {
        let socket = TcpStream::connect(address).await.expect("the server accepts");
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window).initial_max_send_streams(1_000_000);
        let (opener, connection) = builder.handshake(socket).await.expect("HTTP/2");
        let closed = tokio_util::sync::CancellationToken::new();
        let ended = closed.clone();
        tokio::spawn(async move {
            // However it ends, it has ended.
            let _ = connection.await;
            ended.cancel();
        });
        Self {
            opener,
            token: name.map(|name| format!("Bearer secret-{name}")),
            closed,
        }
    }

    /// The same, as far as the server lets it.
    pub async fn try_connect(address: &str, name: Option<&str>) -> Option<Self> {
        let socket = TcpStream::connect(address).await.ok()?;
        let (opener, connection) = h2::client::handshake(socket).await.ok()?;
        let closed = tokio_util::sync::CancellationToken::new();
        let ended = closed.clone();
        tokio::spawn(async move {
            // However it ends, it has ended.
            let _ = connection.await;
            ended.cancel();
        });
        Some(Self {
            opener,
            token: name.map(|name| format!("Bearer secret-{name}")),
            closed,
        })
    }

    /// Whether a call on it is answered by more than a refusal.
    pub async fn is_served(&self) -> bool {
        let look = fencepost::api::proto::GetLockRequest {
            namespace: NAMESPACE.into(),
            name: "any".into(),
        };
        let Some(answer) = self.call("/fencepost.v1.LockService/GetLock", &look).await else {
            return false;
        };
        match timeout(PATIENCE, answer).await.expect("an answer in time") {
            Ok(answer) => !answer.headers().contains_key("grpc-status"),
            Err(_) => false,
        }
    }

    /// Begins a call; nothing when the server takes none any more.
    pub async fn call(&self, method: &str, message: &impl Message) -> Option<ResponseFuture> {
        self.call_as("application/grpc", method, &message.encode_to_vec()).await
    }

    /// The same with a message of this content type.
    pub async fn call_as(&self, content_type: &str, method: &str, message: &[u8]) -> Option<ResponseFuture> {
        let (answer, mut body) = self.open_as(content_type, method).await?;
        body.send_data(prefixed(message), true).ok()?;
        Some(answer)
    }

    /// Begins a call whose messages follow.
    pub async fn open(&self, method: &str) -> Option<(ResponseFuture, h2::SendStream<Bytes>)> {
        self.open_as("application/grpc", method).await
    }

    /// The same with messages of this content type.
    pub async fn open_as(&self, content_type: &str, method: &str) -> Option<(ResponseFuture, h2::SendStream<Bytes>)> {
        let opener = timeout(PATIENCE, self.opener.clone().ready()).await;
        let mut opener = opener.expect("there is room for calls").ok()?;
        let mut request = http::Request::post(format!("http://localhost{method}"))
            .header("content-type", content_type)
            .header("te", "trailers");
        if let Some(token) = &self.token {
            request = request.header("authorization", token);
        }
        opener.send_request(request.body(()).expect("a request"), false).ok()
    }

    /// The same connection with another header that says who calls.
    pub fn with_authorization(&self, value: &str) -> Self {
        Self {
            token: Some(value.to_owned()),
            ..self.clone()
        }
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Returns when the server has closed the connection.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

/// A message with the prefix that gRPC gives it.
pub fn framed(message: &impl Message) -> Bytes {
    prefixed(&message.encode_to_vec())
}

fn prefixed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len().try_into().expect("a short message"));
    frame.put_slice(message);
    frame.freeze()
}

/// The metrics as text.
pub fn metrics(address: &str) -> String {
    let mut socket = std::net::TcpStream::connect(address).expect("the port of the metrics");
    socket
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer");
    text
}
