//! The real program as a process that tests start, hurt and start again.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// Longer than any one step of a test takes.
pub const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);

/// Asks until there is an answer.
///
/// # Panics
/// When there is none for too long.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(POLL);
    }
}

/// What outlives a server's process: its configuration, its socket's path and its data.
#[derive(Debug)]
pub struct Home {
    folder: TempDir,
    data: PathBuf,
}

impl Home {
    /// A home with the default configuration.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        std::fs::create_dir(&data).expect("a folder");
        Self { folder, data }
    }

    /// A home with a configuration of its own.
    pub fn with_config(config: &str) -> Self {
        let home = Self::new();
        std::fs::write(home.config(), config).expect("a file");
        home
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("f.toml")
    }

    /// The folder of what the server stores.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The file of the default namespace.
    pub fn file(&self) -> PathBuf {
        self.data.join("fencepost.redb")
    }

    /// Starts the server and waits until it serves.
    ///
    /// # Panics
    /// When it ends instead.
    pub fn start(&self) -> Server {
        self.spawn("f.sock").ready()
    }

    /// Starts a server that must not come to serve, beside another one if there is one, and says how
    /// it ended.
    ///
    /// # Panics
    /// When it serves.
    pub fn refused(&self) -> Refused {
        let mut server = self.spawn("second.sock");
        let code = server.ended();
        assert!(!server.log.has("serving on "), "{:?}", server.log);
        Refused {
            code,
            said: server.log.text(),
        }
    }

    fn spawn(&self, socket: &str) -> Server {
        let socket = self.folder.path().join(socket);
        let listen = format!("unix:{},127.0.0.1:0", socket.display());
        // A file beyond its limit is an error then, and not the end of the process.
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_fencepost")]);
        shell.args(["serve", "--listen", &listen, "--data-dir"]).arg(&self.data);
        if self.config().exists() {
            shell.arg("--config").arg(self.config());
        }
        let mut process = shell
            .current_dir(self.folder.path())
            .env_clear()
            .env("HOME", self.folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = Log::of(process.stderr.take().expect("a pipe"));
        Server { process, socket, log }
    }
}

/// How a server ended that did not come to serve.
#[derive(Debug)]
pub struct Refused {
    /// Its exit code.
    pub code: Option<i32>,
    /// All that it said.
    pub said: String,
}

/// A running server; killed in the end.
#[derive(Debug)]
pub struct Server {
    process: Child,
    socket: PathBuf,
    log: Log,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn ready(mut self) -> Self {
        until("the server serves", || {
            let ended = self.process.try_wait().expect("a child");
            assert!(ended.is_none(), "it ended: {ended:?}\n{}", self.log.text());
            self.log.has("serving on ").then_some(())
        });
        self
    }

    /// A connection of its own, made when it is first used and again after each restart in this
    /// home.
    pub fn connection(&self) -> Channel {
        let address = format!("unix:{}", self.socket.display());
        Endpoint::from_shared(address).expect("an address").connect_lazy()
    }

    /// Ends it at once, as a crash does, and waits until it is gone.
    pub fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("a child");
    }

    /// Ends it in order, and says with which exit code.
    pub fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        self.ended()
    }

    /// Sends it a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether its process is still there.
    pub fn lives(&mut self) -> bool {
        self.process.try_wait().expect("a child").is_none()
    }

    /// What it has said so far.
    pub fn log(&self) -> &Log {
        &self.log
    }

    fn ended(&mut self) -> Option<i32> {
        let status = until("the server ends", || self.process.try_wait().expect("a child"));
        self.log.close();
        status.code()
    }
}

/// The lines that a server wrote, read by a thread: a full pipe would stop the server.
#[derive(Debug)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Log {
    fn of(pipe: ChildStderr) -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self {
            lines,
            reader: Some(reader),
        }
    }

    /// Whether a line has this text.
    pub fn has(&self, text: &str) -> bool {
        self.text().contains(text)
    }

    /// All lines so far.
    pub fn text(&self) -> String {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    /// Waits for the last line of a process that has ended.
    fn close(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the log is read");
        }
    }
}
