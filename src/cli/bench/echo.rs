//! The bare echo as a process beside the server: this program in its other role.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use fencepost::api::echo::Echo;
use fencepost::client::Address;
use tokio::runtime::Runtime;

use crate::cli::output::print;
use crate::cli::server::finish;
use crate::cli::{Failure, Role};

/// The role itself, with the lease id that every answer carries. It ends with whoever started it, who
/// holds the other end of its input.
pub fn echo(lease_id: String) -> Result<(), Failure> {
    finish(Runtime::new().map_err(Failure::runtime)?, async {
        let echo = Echo::bind(lease_id).map_err(Failure::runtime)?;
        print(&format!("{}\n", echo.address())).map_err(Failure::runtime)?;
        // Whatever ends it, nobody is there any more.
        let input_ends = tokio::task::spawn_blocking(|| io::stdin().read(&mut [0]));
        tokio::select! {
            served = echo.serve(std::future::pending()) => served.map_err(Failure::runtime),
            _ = input_ends => Ok(()),
        }
    })
}

/// A running echo, killed when dropped.
#[derive(Debug)]
pub struct EchoProcess {
    process: Child,
    /// Where it listens.
    pub address: Address,
}

impl EchoProcess {
    /// Starts one, out of reach of the key that interrupts a measurement.
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

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for EchoProcess {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _: io::Result<()> = self.process.kill();
        let _ = self.process.wait();
    }
}
