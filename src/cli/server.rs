//! Which server a command asks.

use std::time::Duration;

use fencepost::client::{Address, Client};
use tokio::runtime::{Builder, Runtime};

use super::{Failure, failure};

/// How long the end of a command waits for what still runs in the background.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// Where to find a server.
#[derive(Debug, Clone, clap::Args)]
pub struct Server {
    /// The server: HOST:PORT or unix:PATH, several of one service separated by commas
    #[arg(
        long = "addr",
        env = "FENCEPOST_ADDR",
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "127.0.0.1:50051"
    )]
    pub addresses: Vec<Address>,
}

impl Server {
    /// Connects to the first that accepts.
    pub async fn connect(&self) -> Result<Client, Failure> {
        Client::connect(&self.addresses).await.map_err(failure)
    }

    /// All addresses as the flag takes them.
    pub fn text(&self) -> String {
        let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        all.join(",")
    }
}

/// Does something that asks a server, on this thread.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    finish(runtime.map_err(Failure::runtime)?, work)
}

/// Does something on a runtime, and ends that also where a task of it hangs.
pub fn finish<T>(runtime: Runtime, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_MOMENT);
    done
}
