//! Locks of other libraries, in a process that reads what to do from its standard input.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Failure;
use crate::side::{Side, Turn};

/// A running peer; killed when dropped.
struct Peer {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// Starts a program of `benches/stores/peers` on a store at this address.
    fn start(class: &str, address: &str) -> Result<Self, Failure> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/stores/peers");
        let jars = jars(&sources)?;
        let mut child = Command::new("java")
            .args([
                "-XX:+UseSerialGC",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                "-cp",
            ])
            .arg(format!("{}/*", jars.display()))
            .arg(sources.join(format!("{class}.java")))
            .arg(address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let asks = child.stdin.take().ok_or("no pipe")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Self { child, asks, answers })
    }

    /// Lets it run one turn, and says how many pairs it made.
    fn run(&mut self, turn: Turn) -> Result<usize, Failure> {
        let kind = if turn.hot { "hot" } else { "own" };
        let name = turn.lock("peer", 0);
        writeln!(self.asks, "{kind} {} {} {name}", turn.callers, turn.time.as_millis())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim().parse()?)
    }
}

/// The side of a peer. Its compiler gets a turn to warm up.
pub fn side(name: &'static str, class: &str, address: &str) -> Result<Side, Failure> {
    let mut peer = Peer::start(class, address)?;
    for hot in [false, true] {
        peer.run(Turn {
            round: 0,
            callers: 16,
            hot,
            time: std::time::Duration::from_secs(3),
        })?;
    }
    let peer = Arc::new(Mutex::new(peer));
    Ok(Side::new(name, move |turn| {
        let peer = Arc::clone(&peer);
        async move {
            let run = move || peer.lock().unwrap_or_else(PoisonError::into_inner).run(turn);
            tokio::task::spawn_blocking(run).await?
        }
    }))
}

/// What the peers need, which Maven fetches once.
fn jars(sources: &Path) -> Result<PathBuf, Failure> {
    let jars = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    if !jars.join("whole").exists() {
        let status = Command::new("mvn")
            .args(["--quiet", "--batch-mode", "--file"])
            .arg(sources.join("pom.xml"))
            .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
            .arg(format!("-DoutputDirectory={}", jars.display()))
            .status()?;
        if !status.success() {
            return Err("Maven could not fetch the peers".into());
        }
        std::fs::write(jars.join("whole"), "")?;
    }
    Ok(jars)
}
