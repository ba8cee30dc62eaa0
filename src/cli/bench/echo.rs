//! The bare echo, as a separate process of this program.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use fencepost_client::Address;
use tokio::runtime::Runtime;

use super::echo_server::Echo;
use crate::cli::output::print;
use crate::cli::server::finish;
use crate::cli::{Failure, Role};

/// Runs the echo, which includes this lease id in each response. It ends with the process that started it, which holds
/// the other end of its standard input.
pub fn echo(lease_id: String) -> Result<(), Failure> {
    finish(Runtime::new().map_err(Failure::runtime)?, async {
        let echo = Echo::bind(lease_id).map_err(Failure::runtime)?;
        print(&format!("{}\n", echo.address())).map_err(Failure::runtime)?;
        // End of input or a read error: the parent process has ended.
        let end_of_input = tokio::task::spawn_blocking(|| io::stdin().read(&mut [0]));
        tokio::select! {
            served = echo.serve(std::future::pending()) => served.map_err(Failure::runtime),
            _ = end_of_input => Ok(()),
        }
    })
}

/// A running echo process, killed when dropped.
#[derive(Debug)]
pub struct EchoProcess {
    process: Child,
    /// Its address.
    pub address: Address,
}

impl EchoProcess {
    /// Starts an echo process in its own process group, so that Ctrl-C does not interrupt it.
    pub fn start(lease_id: &str) -> Result<Self, Failure> {
        let mut process = Role::Echo(lease_id.to_owned())
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::runtime)?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(Failure::runtime)?;
        }
        let address = line.trim().parse().map_err(Failure::runtime)?;
        Ok(Self { process, address })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for EchoProcess {
    fn drop(&mut self) {
        // It fails only if the process has ended.
        let _: io::Result<()> = self.process.kill();
        let _ = self.process.wait();
    }
}
