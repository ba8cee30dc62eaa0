//! The built program as a process that may be killed at any moment and started again on the same
//! directory.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::client::{Client, NAMESPACE};

/// Longer than any of these steps takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Starts the program so that a write past the limit of a file's size fails, as on a full disk,
/// instead of ending the process.
const WITHOUT_SIGXFSZ: &str = r#"trap '' XFSZ; exec "$0" "$@""#;

/// Where a server lives: its directory, its configuration, its store.
#[derive(Debug)]
pub struct Home {
    folder: TempDir,
    store: String,
}

impl Home {
    /// A home whose namespace is stored in a file.
    pub fn with_file() -> Self {
        Self::new(|folder| folder.join("data/locks"))
    }

    /// A home whose namespace is stored in a file elsewhere.
    pub fn with_file_at(file: &Path) -> Self {
        Self::new(|_| file.into())
    }

    /// A home whose namespace is kept in memory.
    pub fn in_memory() -> Self {
        Self::new(|_| ":memory:".into())
    }

    fn new(store: impl FnOnce(&Path) -> PathBuf) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let store = store(folder.path()).to_str().expect("a path of UTF-8").to_owned();
        let config = format!(
            "[namespaces.{NAMESPACE}]\nbackend = \"embedded\"\nttl_min = \"100ms\"\nembedded.path = \"{store}\"\n"
        );
        std::fs::write(folder.path().join("config.toml"), config).expect("it is written");
        Self { folder, store }
    }

    /// The file of the store.
    pub fn file(&self) -> &Path {
        Path::new(&self.store)
    }

    /// Starts a server and returns once it serves.
    pub async fn start(&self) -> Server {
        let mut launched = self.launch();
        let (line, _) = launched.line_with("serving on ");
        let address = line.split_once("serving on ").expect("the address").1.to_owned();
        Server {
            client: Client::connect(&address).await,
            address,
            launched,
        }
    }

    /// Starts a server that must refuse to serve: how it ends and what it says.
    pub fn refusal(&self) -> (Option<i32>, String) {
        let mut launched = self.launch();
        let (line, _) = launched.line_with("error: ");
        (launched.end().code(), line)
    }

    fn launch(&self) -> Launched {
        let mut process = Command::new("sh")
            .args(["-c", WITHOUT_SIGXFSZ, env!("CARGO_BIN_EXE_fencepost")])
            .args(["serve", "--listen", "127.0.0.1:0", "--config", "config.toml"])
            .args(["--data-dir", "data", "--drain-timeout", "2s"])
            .current_dir(self.folder.path())
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = read_log(process.stderr.take().expect("a pipe"));
        Launched { process, log }
    }
}

/// Reads the log to its end, so that the process never waits for its reader.
fn read_log(log: ChildStderr) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            // A test that does not listen any more misses nothing.
            let _ = sender.send(line);
        }
    });
    lines
}

/// A process; killed in the end.
#[derive(Debug)]
struct Launched {
    process: Child,
    log: Receiver<String>,
}

impl Drop for Launched {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Launched {
    /// The next line of the log that holds a text, and those before it.
    fn line_with(&mut self, text: &str) -> (String, Vec<String>) {
        let mut before = Vec::new();
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(text) => return (line, before),
                Ok(line) => before.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("no {text:?} within {PATIENCE:?}: {before:#?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the log ends without {text:?}: {before:#?}"),
            }
        }
    }

    fn end(&mut self) -> ExitStatus {
        self.process.wait().expect("a child")
    }
}

/// A server that serves.
#[derive(Debug)]
pub struct Server {
    client: Client,
    address: String,
    launched: Launched,
}

impl Server {
    /// A connection to it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A connection of its own to it.
    pub async fn another_client(&self) -> Client {
        Client::connect(&self.address).await
    }

    /// Its process.
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.launched.process)
    }

    /// Whether its process has not ended.
    pub fn lives(&mut self) -> bool {
        self.launched.process.try_wait().expect("a child").is_none()
    }

    /// SIGKILL: it ends at once, between any two instructions.
    pub fn kill(mut self) {
        self.launched.process.kill().expect("it lives");
        self.launched.end();
    }

    /// SIGTERM: it ends in order.
    pub fn stop(mut self) {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).expect("it lives");
        assert_eq!(self.launched.end().code(), Some(0));
    }
}
