//! A server in memory for tests, on a free port of this machine.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::{Address, Client, Error};

const POLL: Duration = Duration::from_millis(10);
/// How often it is looked for the server, which then had 20 s to start.
const POLLS: u32 = 2000;

/// A server in memory, which ends when this is dropped.
///
/// ```no_run
/// # async fn test() -> Result<(), Box<dyn std::error::Error>> {
/// let server = fencepost_client::testing::TestServer::start()?;
/// let client = server.client().await?;
/// let guard = client.acquire("default", "reports", "test").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestServer {
    process: Child,
    ready_file: PathBuf,
    address: String,
}

impl TestServer {
    /// Starts the program that the variable `FENCEPOST_BIN` names, or `fencepost` of the path, and waits until it serves, for
    /// at most 20 s. Blocks the thread.
    ///
    /// # Errors
    /// The program cannot be started, has ended, or does not serve in time.
    pub fn start() -> io::Result<Self> {
        let program = std::env::var_os("FENCEPOST_BIN").unwrap_or_else(|| "fencepost".into());
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let ready_file = std::env::temp_dir().join(format!("fencepost-{:016x}", u64::from_ne_bytes(random)));
        let mut command = Command::new(&program);
        command
            .args(["serve", "--memory", "--listen", "127.0.0.1:0", "--ready-file"])
            .arg(&ready_file);
        // A configuration of the machine's own server would be refused beside --memory.
        command.env_remove("FENCEPOST_CONFIG").env_remove("FENCEPOST_DATA_DIR");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))?;
        let mut server = Self {
            process,
            ready_file,
            address: String::new(),
        };
        server.address = server.ready()?;
        Ok(server)
    }

    /// Where it listens: `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A client of it.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the server has ended.
    pub async fn client(&self) -> Result<Client, Error> {
        let address: Address = self.address.parse().map_err(|_| Error::Unreachable {
            addresses: self.address.clone(),
            problem: "it is no address".to_owned(),
        })?;
        Client::connect(&[address]).await
    }

    fn ready(&mut self) -> io::Result<String> {
        for _ in 0..POLLS {
            if let Ok(text) = fs::read_to_string(&self.ready_file) {
                return Ok(text.trim_end().to_owned());
            }
            if let Some(status) = self.process.try_wait()? {
                return Err(io::Error::other(format!("fencepost ended at once: {status}")));
            }
            thread::sleep(POLL);
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "fencepost does not serve"))
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // They fail only for a server that has ended, and for a file that it has removed.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.ready_file);
    }
}
