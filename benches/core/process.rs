//! The processes under measurement: started on ports of their own, killed in the end.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{Failure, cpu};

/// A running server, killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    address: String,
}

impl Process {
    /// A server with one namespace, whose store is at `path`.
    pub fn server(folder: &Path, program: &Path, namespace: &str, path: &str) -> Result<Self, Failure> {
        let config = format!("[namespaces.{namespace}.embedded]\npath = {path:?}\n");
        Self::configured(folder, program, namespace, &config)
    }

    /// A server with a configuration of its own.
    pub fn configured(folder: &Path, program: &Path, name: &str, config: &str) -> Result<Self, Failure> {
        let file = folder.join(format!("{name}.toml"));
        fs::write(&file, config)?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&file);
        command.arg("--data-dir").arg(folder);
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let log = child.stderr.take().ok_or("no log")?;
        Self::announced(child, log, "serving on ")
    }

    /// This program in another role, by a variable and its value, and what it says when it serves.
    pub fn role(variable: &str, value: &str, ready: &str) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.env(variable, value).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        Self::announced(child, output, ready)
    }

    /// Waits until it says where it listens. Later lines are not read: it writes none.
    fn announced(child: Child, output: impl Read, before: &str) -> Result<Self, Failure> {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.split_once(before).map(|(_, address)| address.to_owned()));
        let address = address.ok_or("a server ended before it served")?;
        Ok(Self { child, address })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What it has resident, in KiB.
    pub fn resident_kib(&self) -> Result<f64, Failure> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line
            .and_then(|line| line.trim().strip_suffix(" kB"))
            .ok_or("no VmRSS")?;
        Ok(number.parse()?)
    }

    /// The CPU time that it has used, to 10 ms.
    pub fn cpu(&self) -> Result<Duration, Failure> {
        Ok(cpu::used(self.child.id())?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
