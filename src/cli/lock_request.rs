//! What `acquire` and `lock` ask for.

use std::time::Duration;

use fencepost::client::{Acquire, Client};

use super::Failure;
use super::lock_name::LockName;

/// A lock, and how to ask for it.
#[derive(Debug, Clone, clap::Args)]
pub struct LockRequest {
    /// The lock
    #[arg(value_name = "NAMESPACE/NAME")]
    pub lock: LockName,
    /// Wait so long in the lock's queue, such as 30s; without it, the lock is tried once
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub wait: Option<Duration>,
    /// How long the lease lives without a renewal, such as 15s [default: the namespace's]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    /// Hold it together with others who share it
    #[arg(long, conflicts_with_all = ["permits", "limit"])]
    shared: bool,
    /// Take so many permits of a semaphore
    #[arg(long, value_name = "COUNT", requires = "limit")]
    permits: Option<u32>,
    /// How many permits the semaphore has in all, the same for all who ask
    #[arg(long, value_name = "COUNT", requires = "permits")]
    limit: Option<u32>,
    /// Who asks, as operators see it [default: user@host:process]
    #[arg(long, value_name = "LABEL")]
    owner: Option<String>,
    /// A text that operators see beside the owner; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    metadata: Vec<(String, String)>,
}

fn entry(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl LockRequest {
    /// The call, not sent yet.
    pub fn acquire(&self, client: &Client) -> Acquire {
        let mut ask = client
            .acquire(&self.lock.namespace, &self.lock.name, &self.owner())
            .wait(self.wait.unwrap_or_default());
        for (key, value) in &self.metadata {
            ask = ask.metadata(key, value);
        }
        if let Some(ttl) = self.ttl {
            ask = ask.ttl(ttl);
        }
        match (self.permits, self.limit) {
            (Some(permits), Some(limit)) => ask.semaphore(permits, limit),
            _ if self.shared => ask.shared(),
            _ => ask,
        }
    }

    /// The label given, or one that names this process.
    pub fn owner(&self) -> String {
        self.owner.clone().unwrap_or_else(this_process)
    }

    /// An error of the call, with what to do next.
    pub fn failure(&self, error: fencepost::client::Error) -> Failure {
        Failure::about(&self.lock, error)
    }
}

fn this_process() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    format!(
        "{}@{}:{}",
        user.as_deref().unwrap_or("unknown"),
        host.as_deref().unwrap_or("localhost"),
        std::process::id()
    )
}
