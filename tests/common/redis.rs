//! Real Redis servers for tests: started on free loopback ports with throw-away data, ended when
//! the value is dropped.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::clock_shim;
use crate::ports::free_port;
use crate::signals::send;

mod groups;
pub use groups::{Cluster, Sentinels, cluster_node};

/// Whether the programs are there. Without them a test is skipped at home and fails in CI.
pub fn available() -> bool {
    let starts = Command::new("redis-server").arg("--version").output().is_ok();
    crate::is_there(starts, "redis-server")
}

/// Waits until `check` gives something, for at most `limit`.
pub fn eventually<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One server process, redis-server or redis-sentinel.
#[derive(Debug)]
pub struct RedisServer {
    dir: TempDir,
    port: u16,
    options: Vec<String>,
    /// The seconds by which its clock is shifted, if it has one of its own.
    clock: Option<i64>,
    sentinel: bool,
    child: Option<Child>,
}

impl RedisServer {
    /// A standalone server with these options (`--name value`), no persistence unless they say so.
    pub fn start(options: &[&str]) -> Self {
        Self::started(|| Self::down(free_port(), options))
    }

    /// A server whose every write is on disk before its answer.
    pub fn durable() -> Self {
        Self::start(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// A server that does not run yet.
    fn down(port: u16, options: &[&str]) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            port,
            options: options.iter().map(ToString::to_string).collect(),
            clock: None,
            sentinel: false,
            child: None,
        }
    }

    /// Starts what `make` makes, again where somebody else took the port that was free before.
    fn started(make: impl Fn() -> Self) -> Self {
        eventually("a server on a port of its own", Duration::from_secs(60), || {
            let mut server = make();
            server.launch().then_some(server)
        })
    }

    /// A server whose wall clock can be stepped by [`Self::shift_clock`].
    pub fn with_clock(options: &[&str]) -> Self {
        let mut server = Self::start(options);
        server.kill9();
        clock_shim::build(server.dir.path());
        server.clock = Some(0);
        server.restart();
        server
    }

    /// Puts the wall clock of a server that was started [`Self::with_clock`] so many seconds ahead of
    /// the machine's, at once and over restarts.
    pub fn shift_clock(&mut self, seconds: i64) {
        assert!(self.clock.is_some(), "it has no clock of its own");
        self.clock = Some(seconds);
        clock_shim::write_shift(self.dir.path(), [seconds, 0]);
    }

    /// The same in milliseconds, until the server restarts.
    pub fn shift_clock_ms(&mut self, ms: i64) {
        assert!(self.clock.is_some(), "it has no clock of its own");
        clock_shim::write_shift(self.dir.path(), [0, ms]);
    }

    /// The server's own time, in seconds.
    pub fn time(&self) -> i64 {
        self.cli(&["TIME"]).lines().next().unwrap().parse().unwrap()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the process (again), with whatever data its directory holds.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs");
        if let Some(seconds) = self.clock {
            self.shift_clock(seconds);
        }
        eventually("the server has its port", Duration::from_secs(60), || {
            self.launch().then_some(())
        });
    }

    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "redis-server"]);
        if self.sentinel {
            command.arg(self.dir.path().join("sentinel.conf")).arg("--sentinel");
            return command;
        }
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--protected-mode", "no"])
            .arg("--dir")
            .arg(self.dir.path())
            .args(&self.options);
        if self.clock.is_some() {
            command.envs(clock_shim::environment(self.dir.path()));
        }
        command
    }

    /// Starts the process. Whether it is this one that answers at the port: between the choice of a
    /// port and its use another may take it.
    fn launch(&mut self) -> bool {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let mut child = self.command().stdout(log).stderr(Stdio::null()).spawn().unwrap();
        let itself = format!("process_id:{}", child.id());
        let answers = eventually("the server answers", Duration::from_secs(30), || {
            if child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            let said = self.cli(&["INFO"]);
            let it_is = said.lines().any(|line| line.trim() == itself);
            (it_is && !said.contains("loading:1")).then_some(true)
        });
        self.child = answers.then_some(child);
        answers
    }

    /// Ends the process without a chance to write anything.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Removes all data; the process must be down.
    pub fn wipe(&mut self) {
        assert!(self.child.is_none(), "it runs");
        self.dir = tempfile::tempdir().unwrap();
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        send("STOP", &[self.child.as_ref().expect("it runs").id()]);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        send("CONT", &[self.child.as_ref().expect("it runs").id()]);
    }

    /// What redis-cli prints for a command.
    pub fn cli(&self, args: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli")
            .args(["-p", &port])
            .args(args)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    /// How many scripts and functions clients have called.
    pub fn scripts(&self) -> u64 {
        let said = self.cli(&["INFO", "commandstats"]);
        let is_script = |line: &&str| line.starts_with("cmdstat_eval") || line.starts_with("cmdstat_fcall");
        let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
        said.lines().filter(is_script).filter_map(calls).sum()
    }

    /// A field of INFO, as a number.
    pub fn info(&self, section: &str, field: &str) -> u64 {
        let text = self.cli(&["INFO", section]);
        let value = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill9();
        crate::tell_log("Redis", || crate::log_in(&self.dir));
    }
}
