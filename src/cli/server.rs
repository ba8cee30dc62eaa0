//! The server that a command calls.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use fencepost::clock;
use fencepost_client::{Address, Client, Credentials, Error};
use nix::sys::signal::Signal;
use tokio::runtime::{Builder, Runtime};

use super::direct::{self, Direct, Purpose};
use super::output::Output;
use super::signals::{Signals, TERMINATION};
use super::{Failure, exit, failure};

/// How long the end of a command waits for background tasks.
const RUNTIME_SHUTDOWN: Duration = Duration::from_millis(100);

/// The addresses of a server, and the credentials for it.
#[derive(Debug, Clone, clap::Args)]
pub struct Server {
    /// The server: HOST:PORT, https://HOST:PORT or unix:PATH; several addresses of one service separated by commas
    #[arg(
        long = "addr",
        env = "FENCEPOST_ADDR",
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "127.0.0.1:50051"
    )]
    pub addresses: Vec<Address>,
    /// https: the CA certificates for the server (PEM) [default: those of the system]
    #[arg(long, env = "FENCEPOST_CA_FILE", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// https: the client certificate (PEM)
    #[arg(long, env = "FENCEPOST_CERT_FILE", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// https: the key of the client certificate (PEM)
    #[arg(long, env = "FENCEPOST_KEY_FILE", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The file with the bearer token
    #[arg(long, env = "FENCEPOST_BEARER_FILE", value_name = "FILE")]
    bearer_file: Option<PathBuf>,
    #[command(flatten)]
    pub direct: Direct,
}

impl Server {
    /// Connects to the first address that accepts, or serves in this process.
    pub async fn connect(&self, purpose: Purpose) -> Result<Client, Failure> {
        if self.direct.text().is_some() {
            return self.direct.connect(purpose).await;
        }
        let client = Client::connect_as(&self.addresses, self.credentials()).await;
        client.map_err(failure)
    }

    /// Connects, and makes a call on this thread.
    pub fn call<T>(&self, purpose: Purpose, call: impl AsyncFnOnce(&Client) -> Result<T, Error>) -> Result<T, Failure> {
        block_on(async {
            let client = self.connect(purpose).await?;
            tokio::select! {
                answer = call(&client) => answer.map_err(failure),
                // What it has in the store is given back by the server in this process.
                signal = signalled(), if self.direct.text().is_some() => Err(signal),
            }
        })
    }

    /// Refuses a store without a server, for what asks each of several servers.
    pub fn check_has_server(&self) -> Result<(), Failure> {
        match self.direct.text() {
            Some(_) => Err(Failure::usage(NeedsServer)),
            None => Ok(()),
        }
    }

    /// The time since `begin`, if the server is in this process: it may have waited for the file of a store.
    pub fn direct_time(&self, begin: Duration) -> Duration {
        let is_direct = self.direct.text().is_some();
        if is_direct {
            clock::since_boot() - begin
        } else {
            Duration::ZERO
        }
    }

    /// The credentials from the arguments.
    pub fn credentials(&self) -> Credentials {
        let mut credentials = Credentials::default();
        if let Some(path) = &self.ca {
            credentials = credentials.authorities(path);
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            credentials = credentials.own(certificate, key);
        }
        if let Some(path) = &self.bearer_file {
            credentials = credentials.bearer(path);
        }
        credentials
    }

    /// The environment variables with which another command calls the same server with the same credentials.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let files = [
            ("FENCEPOST_CA_FILE", &self.ca),
            ("FENCEPOST_CERT_FILE", &self.cert),
            ("FENCEPOST_KEY_FILE", &self.key),
            ("FENCEPOST_BEARER_FILE", &self.bearer_file),
        ];
        let files = files
            .into_iter()
            .filter_map(|(name, path)| Some((name, path.clone()?.into())));
        // An empty variable is none.
        let address = if self.direct.text().is_some() {
            String::new()
        } else {
            self.text()
        };
        let store = self.direct.store.clone().unwrap_or_default();
        let server = [("FENCEPOST_ADDR", address.into()), ("FENCEPOST_STORE", store.into())];
        server.into_iter().chain(files)
    }

    /// All addresses, as the argument takes them, or the store.
    pub fn text(&self) -> String {
        if let Some(store) = self.direct.text() {
            return store;
        }
        let all: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        all.join(",")
    }
}

/// A store was named to a command that asks servers.
#[derive(Debug, thiserror::Error)]
#[error("this command asks running servers: name them with --addr instead of a store")]
struct NeedsServer;

/// The failure of a command that a signal ends, as shells tell it.
async fn signalled() -> Failure {
    match Signals::take(&TERMINATION) {
        Ok(mut signals) => {
            let signal = signals.next().await;
            let code = u8::try_from(exit::SIGNALLED + signal as i32).unwrap_or(u8::MAX);
            Failure::coded(code, Signalled { signal })
        }
        Err(error) => Failure::runtime(error),
    }
}

/// A signal that ends a command.
#[derive(Debug, thiserror::Error)]
#[error("ended by {signal}")]
struct Signalled {
    signal: Signal,
}

/// The arguments of a command that calls a server.
#[derive(Debug, clap::Args)]
pub struct Call<A: clap::Args> {
    #[command(flatten)]
    pub args: A,
    #[command(flatten)]
    pub server: Server,
    #[command(flatten)]
    pub output: Output,
}

/// Runs a command's calls on this thread.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    finish(runtime.map_err(Failure::runtime)?, work)
}

/// Runs a future on a runtime and shuts the runtime down, even if one of its tasks hangs.
pub fn finish<T>(runtime: Runtime, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let result = runtime.block_on(async {
        let result = work.await;
        direct::stop().await;
        result
    });
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN);
    result
}
