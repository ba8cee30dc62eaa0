//! The processes under measurement, and what they use.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Failure;

/// The namespace of the server.
pub const NAMESPACE: &str = "bench";

/// Client, server and store share the processors, of which a server with half of them for its threads makes more.
const THREADS: &str = "worker_threads = 1";

/// The real server over a store; killed when dropped.
pub struct Server {
    child: Child,
    pub address: String,
    /// The table of its namespace.
    store: String,
    _home: tempfile::TempDir,
}

impl Server {
    /// Starts it. `store` is the namespace's table.
    pub fn start(program: &Path, store: &str) -> Result<Self, Failure> {
        let home = tempfile::tempdir()?;
        let config = home.path().join("f.toml");
        fs::write(&config, format!("{THREADS}\n[namespaces.{NAMESPACE}]\n{store}\n"))?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()?;
        let log = child.stderr.take().ok_or("no pipe")?;
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        let mut said = String::new();
        let address = lines.find_map(|line| {
            said += &line;
            line.split_once("serving on ").map(|(_, at)| at.to_owned())
        });
        // A full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self {
            child,
            address: address.ok_or(said)?,
            store: store.into(),
            _home: home,
        })
    }

    /// Starts another one over the same store.
    pub fn beside(&self, program: &Path) -> Result<Self, Failure> {
        Self::start(program, &self.store)
    }

    /// The CPU time that it has used.
    pub fn cpu(&self) -> Duration {
        cpu(&self.child.id().to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The CPU time that this process has used.
pub fn own_cpu() -> Duration {
    cpu("self")
}

/// User and system time. The unit of /proc is fixed at 100 per second for programs whatever the kernel's own is.
fn cpu(process: &str) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("a process");
    let (_, fields) = stat.rsplit_once(')').expect("a program's name");
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}
