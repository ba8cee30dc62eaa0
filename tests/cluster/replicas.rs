//! The servers of a cluster: real processes on addresses that stay theirs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use fencepost_client::{Address, Client};
use tempfile::TempDir;
use tonic::transport::Endpoint;

use crate::server::Server;

/// Longer than any step takes, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long leases live: a machine that stands still for some seconds loses none of them.
const TTL: &str = "20s";
/// How many there are.
pub const REPLICAS: usize = 3;
/// Ports that the system gives to no outgoing connection, so that none takes one while its server is away.
const PORTS: std::ops::Range<u16> = 21_000..29_000;

/// A server with the addresses that it keeps.
pub struct Replica {
    home: TempDir,
    address: String,
    metrics: String,
    running: Option<Server>,
}

/// All servers of a cluster.
pub struct Replicas(pub Vec<Replica>);

impl Replicas {
    /// Starts them with this namespace `jobs`; they serve when this returns.
    pub async fn start(namespace: &str) -> Self {
        let mut replicas = Vec::new();
        for _ in 0..REPLICAS {
            let mut replica = Replica::new(namespace);
            replica.start().await;
            replicas.push(replica);
        }
        Self(replicas)
    }

    /// A client that knows them all, beginning with this one.
    pub async fn client(&self, first: usize) -> Client {
        let from = |number: usize| &self.0[(first + number) % REPLICAS].address;
        let addresses: Vec<Address> = (0..REPLICAS)
            .map(|number| from(number).parse().expect("an address"))
            .collect();
        Client::connect(&addresses).await.expect("they accept")
    }

    /// Where they all are.
    pub fn ends(&self) -> Vec<Endpoint> {
        self.0.iter().map(Replica::end).collect()
    }
}

impl Replica {
    fn new(namespace: &str) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::write(
            home.path().join("f.toml"),
            format!("[namespaces.jobs]\nttl_default = '{TTL}'\n{namespace}\n"),
        )
        .expect("the configuration");
        Self {
            home,
            address: free(),
            metrics: free(),
            running: None,
        }
    }

    fn end(&self) -> Endpoint {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).expect("an address");
        endpoint.connect_timeout(Duration::from_secs(5))
    }

    /// Starts it, and waits until its store serves.
    async fn start(&mut self) {
        let (address, metrics) = (self.address.as_str(), self.metrics.as_str());
        let arguments = ["--config", "f.toml", "--listen", address, "--metrics-listen", metrics];
        self.running = Some(Server::start_with(&self.home, &arguments));
        let end = Instant::now() + PATIENCE;
        while self.figure("fencepost_backend_healthy") != Some(1.0) {
            assert!(Instant::now() < end, "{address} does not serve within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it in order and starts it again, as a rolling update does. It must end well, and have seen no
    /// token that did not rise.
    pub async fn restart(&mut self) {
        assert_eq!(self.figure("fencepost_token_regressions_total"), Some(0.0));
        let mut server = self.running.take().expect("it runs");
        server.stop();
        let ended = server.end();
        assert!(ended.success(), "{ended:?}");
        self.start().await;
    }

    /// The value of a metric without labels of its own.
    fn figure(&self, name: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(&self.metrics).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let ask = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let line = answer.lines().find(|line| line.starts_with(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

/// An address that nobody listens on.
fn free() -> String {
    let mut random = [0_u8; 2];
    loop {
        getrandom::fill(&mut random).expect("random bits");
        let port = PORTS.start + u16::from_le_bytes(random) % (PORTS.end - PORTS.start);
        let address = format!("127.0.0.1:{port}");
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}
