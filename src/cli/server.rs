//! Which server a command asks.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use fencepost::client::{Address, Client, Credentials};
use tokio::runtime::{Builder, Runtime};

use super::{Failure, failure};

/// How long the end of a command waits for what still runs in the background.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// Where to find a server.
#[derive(Debug, Clone, clap::Args)]
pub struct Server {
    /// The server: HOST:PORT, https://HOST:PORT or unix:PATH, several of one service separated by commas
    #[arg(
        long = "addr",
        env = "FENCEPOST_ADDR",
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "127.0.0.1:50051"
    )]
    pub addresses: Vec<Address>,
    /// https: the authorities that may sign for the server (PEM) [default: those of the system]
    #[arg(long, env = "FENCEPOST_CA_FILE", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// https: the certificate that proves who asks (PEM)
    #[arg(long, env = "FENCEPOST_CERT_FILE", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// https: the key of that certificate (PEM)
    #[arg(long, env = "FENCEPOST_KEY_FILE", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The file with the bearer token that proves who asks
    #[arg(long, env = "FENCEPOST_BEARER_FILE", value_name = "FILE")]
    bearer_file: Option<PathBuf>,
}

impl Server {
    /// Connects to the first that accepts.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let client = Client::connect_as(&self.addresses, self.credentials()).await;
        client.map_err(failure)
    }

    /// What proves who asks, and by what the server is known.
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

    /// The variables by which another command asks the same server as the same.
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
        std::iter::once(("FENCEPOST_ADDR", self.text().into())).chain(files)
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
