//! A server with a configuration of its own, and what is asked of its HTTP port.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use fencepost::api::proto::AcquireRequest;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::observe::calls::Calls;
use crate::observe::server::{PATIENCE, Server};

/// A server whose configuration is mounted as Kubernetes does it: behind a link that is swapped.
pub struct Fixture {
    pub server: Server,
    pub calls: Calls,
    home: TempDir,
    versions: u32,
}

impl Fixture {
    /// Starts a server with this configuration.
    pub async fn start(config: &str) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir(home.path().join("mount")).expect("a directory");
        mount(&home, 0, config);
        symlink("data/f.toml", home.path().join("mount/f.toml")).expect("a link");
        let listen = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        let arguments = [&["--config", "mount/f.toml"], listen.as_slice()].concat();
        let server = Server::start_with(&home, &arguments);
        Self {
            calls: Calls(channel(&server.address).await),
            server,
            home,
            versions: 0,
        }
    }

    /// Swaps the configuration for another.
    pub fn configure(&mut self, config: &str) {
        self.versions += 1;
        mount(&self.home, self.versions, config);
    }

    /// Sends the server a signal.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args(["-s", name, &self.server.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }

    /// The status and the body of an HTTP answer.
    pub fn get(&self, path: &str) -> (u16, String) {
        self.http(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    }

    /// Sends a request as it stands.
    pub fn http(&self, request: &str) -> (u16, String) {
        let address = self.server.metrics.as_ref().expect("an HTTP port");
        let mut stream = TcpStream::connect(address).expect("the port");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status").parse();
        (status.expect("a number"), body.to_owned())
    }

    /// All that the metrics say.
    pub fn metrics(&self) -> String {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        text
    }

    /// The sum of the series of a metric that have all these labels; nothing where there is none.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let text = self.metrics();
        let of_name = text.lines().filter_map(|line| line.strip_prefix(name));
        let has = |rest: &str| {
            labels
                .iter()
                .all(|(label, value)| rest.contains(&format!("{label}=\"{value}\"")))
        };
        let found = of_name.filter(|rest| rest.starts_with(['{', ' ']) && has(rest));
        let values = found.map(|line| {
            line.rsplit(' ')
                .next()
                .expect("a value")
                .parse::<f64>()
                .expect("a number")
        });
        values.reduce(|sum, value| sum + value)
    }

    /// Waits until a metric has this value.
    pub async fn shows(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        eventually(&format!("{name} {labels:?} is {value}"), || {
            self.metric(name, labels) == Some(value)
        })
        .await;
    }
}

/// Waits for something while other tasks run on.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: not within {PATIENCE:?}");
}

fn mount(home: &TempDir, version: u32, config: &str) {
    let folder = home.path().join("mount");
    let own = format!("version-{version}");
    fs::create_dir(folder.join(&own)).expect("a directory");
    fs::write(folder.join(&own).join("f.toml"), config).expect("a file");
    symlink(&own, folder.join("next")).expect("a link");
    fs::rename(folder.join("next"), folder.join("data")).expect("the swap");
}

/// A connection to a server.
pub async fn channel(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("a server")
}

/// An Acquire of a lock, by an owner.
pub fn ask(namespace: &str, name: &str, owner: &str) -> AcquireRequest {
    AcquireRequest {
        namespace: namespace.into(),
        name: name.into(),
        owner: owner.into(),
        ..AcquireRequest::default()
    }
}
