//! A server, and the program as its client.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::server::{Server, until};
use common::signals::send;

/// The program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_fencepost");

/// A server of its own for each test.
pub struct Fixture {
    pub server: Server,
    home: TempDir,
}

impl Fixture {
    pub fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let server = Server::start(&home);
        Self { server, home }
    }

    /// A path that nobody else uses.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The program with these arguments, which asks this server.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        asking(&self.server.address, arguments)
    }

    /// Runs it to its end, without a terminal.
    pub fn run(&self, arguments: &[&str]) -> Output {
        run(self.command(arguments))
    }

    /// What it prints when all is well.
    pub fn said(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The answer in JSON when all is well.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let said = self.said(&[arguments, &["--output", "json"]].concat());
        serde_json::from_str(&said).expect("one answer in JSON")
    }

    /// A lock taken for this owner, for an hour.
    pub fn held(&self, lock: &str, owner: &str) -> Value {
        self.json(&["acquire", lock, "--owner", owner, "--ttl", "1h"])
    }

    /// A number of a lock: `holderCount`, `waiterCount`.
    pub fn count(&self, lock: &str, what: &str) -> u64 {
        self.json(&["get", lock])[what].as_u64().expect("a number")
    }

    /// Begins to run it; it is killed in the end.
    pub fn begin(&self, arguments: &[&str]) -> Running {
        Running::new(self.command(arguments))
    }
}

/// The program with these arguments, which asks the server at an address.
pub fn asking<S: AsRef<OsStr>>(address: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("USER", "me")
        .env("HOME", "/")
        .env("FENCEPOST_ADDR", address)
        .stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub fn run(mut command: Command) -> Output {
    command.output().expect("the program runs")
}

/// What was written.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// The same text with each digit as zero, and so with what differs between two runs the same.
pub fn shape(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect()
}

/// A process that runs; killed when dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub fn new(mut command: Command) -> Self {
        Self(command.spawn().expect("the program starts"))
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        send(name, &[self.0.id()]);
    }

    /// Its exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.end_status().code()
    }

    /// The number of the signal that ended it.
    pub fn end_signal(&mut self) -> Option<i32> {
        self.end_status().signal()
    }

    fn end_status(&mut self) -> ExitStatus {
        until("the program ends", || self.0.try_wait().expect("a child"))
    }
}

/// Whether a process lives and is no zombie.
pub fn lives(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// What a file holds; nothing where there is none.
pub fn content(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Waits until a file holds something.
pub fn until_written(file: &Path) -> String {
    until("the file is written", || {
        Some(content(file)).filter(|text| text.ends_with('\n'))
    })
}
