//! The processes under measurement, and what they use.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::servers::RedisServer;

/// The namespace of the server.
pub const NAMESPACE: &str = "bench";
/// The unit of CPU time in /proc, fixed at 100 per second for programs whatever the kernel's own is.
const TICKS: f64 = 100.0;

/// The real server over a Redis; killed when dropped.
pub struct Server {
    child: Child,
    pub address: String,
    _home: tempfile::TempDir,
}

impl Server {
    pub fn start(program: &Path, redis: &str) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let config = home.path().join("f.toml");
        let text = format!(
            "[namespaces.{NAMESPACE}]\nbackend = 'redis'\n[namespaces.{NAMESPACE}.redis]\nurls = ['{redis}']\n\
             prefix = 'remote'\nfirst_start = 'admit'\n"
        );
        fs::write(&config, text).expect("a file");
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let log = child.stderr.take().expect("a pipe");
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.split_once("serving on ").map(|(_, at)| at.to_owned()));
        // A full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address: address.expect("it says where it listens"),
            _home: home,
        }
    }

    /// The CPU time that it has used, in seconds.
    pub fn cpu(&self) -> f64 {
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

/// The CPU time that this process has used, in seconds.
pub fn own_cpu() -> f64 {
    cpu("self")
}

fn cpu(process: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("a process");
    let (_, fields) = stat.rsplit_once(')').expect("a program's name");
    // User and system time.
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().expect("a number") / TICKS).sum()
}

/// The CPU time that Redis has used, in seconds.
pub fn redis_cpu(redis: &RedisServer) -> f64 {
    let info = redis.cli(&["INFO", "cpu"]);
    let used = info
        .lines()
        .filter(|line| line.starts_with("used_cpu_user:") || line.starts_with("used_cpu_sys:"));
    let seconds = used.filter_map(|line| line.split_once(':')?.1.trim().parse::<f64>().ok());
    seconds.sum()
}
