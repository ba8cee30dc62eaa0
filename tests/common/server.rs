//! The real program as a process, for the tests that look at it from outside.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than any step of a test takes.
pub const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// A running server; killed in the end.
pub struct Server {
    process: Child,
    home: PathBuf,
    /// Where it listens on TCP: `127.0.0.1:PORT`.
    pub address: String,
    /// Where its metrics are, if it was told to show any.
    pub metrics: Option<String>,
    /// Where its console is, if it was told to serve one.
    pub console: Option<String>,
    log: Log,
}

/// The program that Cargo has built with the test.
pub fn program() -> PathBuf {
    crate::built().join("fencepost")
}

/// What a server has logged.
type Log = Arc<Mutex<Vec<String>>>;

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
        crate::tell_log("Fencepost", || {
            self.log.lock().map(|log| log.join("\n")).unwrap_or_default()
        });
    }
}

impl Server {
    /// Starts it on a free port, with what it stores below `home`.
    pub fn start(home: &TempDir) -> Self {
        Self::start_with(home, &["--listen", "127.0.0.1:0,unix:f.sock"])
    }

    /// The same with these arguments, of which the first address must be TCP.
    pub fn start_with(home: &TempDir, arguments: &[&str]) -> Self {
        Self::start_program(&program(), home, arguments)
    }

    /// One whose namespace `faults` is configured so, in a home of its own.
    pub fn of_namespace(namespace: &str) -> (TempDir, Self) {
        let home = tempfile::tempdir().expect("a directory");
        let config = format!("[namespaces.faults]\n{namespace}\n");
        std::fs::write(home.path().join("f.toml"), config).expect("a file");
        let server = Self::start_with(&home, &["--listen", "127.0.0.1:0", "--config", "f.toml"]);
        (home, server)
    }

    /// The same with the program at this path, which may be that of another release.
    pub fn start_program(program: &Path, home: &TempDir, arguments: &[&str]) -> Self {
        Self::started(Command::new(program), home, arguments)
    }

    /// The same through another program, which becomes the server.
    pub fn start_by(mut through: Command, home: &TempDir, arguments: &[&str]) -> Self {
        through.arg(program());
        Self::started(through, home, arguments)
    }

    fn started(mut command: Command, home: &TempDir, arguments: &[&str]) -> Self {
        let mut process = command
            .arg("serve")
            .args(arguments)
            .current_dir(home)
            .env_clear()
            .env("HOME", home.path())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (log, said) = (process.stderr.take().expect("a pipe"), Log::default());
        let address = ready(log, &said);
        let metrics = found(&said, "metrics and health on http://");
        let console = found(&said, "console on http://");
        Self {
            process,
            home: home.path().into(),
            address,
            metrics,
            console,
            log: said,
        }
    }

    /// Whether a line of its log holds this text.
    pub fn said(&self, text: &str) -> bool {
        found(&self.log, text).is_some()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no panic").join("\n")
    }

    /// The socket of [`Server::start`].
    pub fn socket(&self) -> PathBuf {
        self.home.join("f.sock")
    }

    /// The port of its address.
    pub fn port(&self) -> u16 {
        let (_, port) = self.address.rsplit_once(':').expect("a port");
        port.parse().expect("a number")
    }

    /// Its id, for the signals of tests and what the system says about it.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal to it: see [`crate::signals`].
    pub fn signal(&self, name: &str) {
        crate::signals::send(name, &[self.id()]);
    }

    /// Tells it to end in order.
    pub fn stop(&self) {
        self.signal("TERM");
    }

    /// How it ended.
    pub fn end(&mut self) -> ExitStatus {
        until("the server ends", || self.process.try_wait().expect("a child"))
    }
}

/// The first TCP address that the log names; the rest of the log is read by a thread, for a full
/// pipe would stop the server.
fn ready(log: impl Read + Send + 'static, said: &Log) -> String {
    let mut lines = BufReader::new(log).lines().map_while(Result::ok);
    let note = {
        let said = Arc::clone(said);
        move |line: &str| said.lock().expect("no panic").push(line.to_owned())
    };
    let addresses = lines.find_map(|line| {
        note(&line);
        after(line.as_str(), "serving on ")
    });
    thread::spawn(move || {
        lines.for_each(|line| {
            eprintln!("{line}");
            note(&line);
        });
    });
    let addresses = addresses.expect("the log says where it listens");
    addresses.split(", ").next().expect("one address").to_owned()
}

/// What follows a text in the log.
fn found(log: &Log, text: &str) -> Option<String> {
    let log = log.lock().expect("no panic");
    log.iter().find_map(|line| after(line, text))
}

/// What follows a text in a line, which may be a value of JSON.
fn after(line: &str, text: &str) -> Option<String> {
    let (_, rest) = line.split_once(text)?;
    rest.split('"').next().map(str::to_owned)
}

/// The resident memory of a process, in bytes.
pub fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .expect("its memory");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// The processor time that a process has used, in the ticks of 10 ms that the system counts.
pub fn cpu(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("its figures");
    let after_name = stat.rsplit_once(')').expect("its name").1;
    let ticks = after_name.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}

/// The size of a file, in bytes.
pub fn size(file: &Path) -> u64 {
    std::fs::metadata(file).expect("a file").len()
}

/// Asks until there is an answer.
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
