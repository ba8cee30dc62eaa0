//! The arguments of `acquire` and `lock`.

use std::env;
use std::time::Duration;

use fencepost_client::{Acquire, AcquireAll, Client};
use nix::unistd::{Uid, User, gethostname};

use super::lock_name::LockName;

/// The shortest rest of a wait, so that its end is told from a try.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// A lock, and how to acquire it.
#[derive(Debug, Clone, clap::Args)]
pub struct LockRequest {
    /// The lock
    #[arg(value_name = "NAMESPACE/NAME")]
    pub lock: LockName,
    /// The time to wait in the lock's queue, such as 30s; without it, the lock is tried once
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub wait: Option<Duration>,
    /// The TTL of the lease without a renewal, such as 15s [default: the namespace's]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub ttl: Option<Duration>,
    /// Share the lock with other shared claims
    #[arg(long, conflicts_with_all = ["permits", "limit"])]
    shared: bool,
    /// The permits to acquire of a semaphore
    #[arg(long, value_name = "COUNT", requires = "limit")]
    permits: Option<u32>,
    /// The total number of permits of the semaphore; the smallest one of the claims that hold counts
    #[arg(long, value_name = "COUNT", requires = "permits")]
    limit: Option<u32>,
    /// The owner label that operators see [default: user@host:process]
    #[arg(long, value_name = "LABEL")]
    owner: Option<String>,
    /// Print the place in the queue and the holder to standard error at each change, also without a terminal
    #[arg(long, requires = "wait")]
    pub progress: bool,
    /// A metadata entry that operators see; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    metadata: Vec<(String, String)>,
}

/// Parses a metadata entry.
pub fn entry(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl LockRequest {
    /// A request for the leadership of an election, with the value that observers see.
    pub fn of_candidate(election: LockName, candidate: Option<String>, value: String) -> Self {
        Self {
            lock: election,
            wait: None,
            ttl: None,
            shared: false,
            permits: None,
            limit: None,
            owner: candidate,
            progress: false,
            metadata: vec![(fencepost_client::VALUE.to_owned(), value)],
        }
    }

    /// The same after this part of the wait.
    pub fn after(&self, waited: Duration) -> Self {
        let left = |wait: Duration| wait.saturating_sub(waited).max(MIN_WAIT.min(wait));
        Self {
            wait: self.wait.map(left),
            ..self.clone()
        }
    }

    /// The request, which is not sent yet.
    pub fn acquire(&self, client: &Client) -> Acquire {
        let mut acquire = client
            .acquire(&self.lock.namespace, &self.lock.name, &self.owner())
            .wait(self.wait.unwrap_or_default());
        for (key, value) in &self.metadata {
            acquire = acquire.metadata(key, value);
        }
        if let Some(ttl) = self.ttl {
            acquire = acquire.ttl(ttl);
        }
        match (self.permits, self.limit) {
            (Some(permits), Some(limit)) => acquire.semaphore(permits, limit),
            _ if self.shared => acquire.shared(),
            _ => acquire,
        }
    }

    /// The request for this lock and others of its namespace, which is not sent yet.
    pub fn acquire_all(&self, client: &Client, others: &[LockName]) -> AcquireAll {
        let names = [&self.lock].into_iter().chain(others).map(|lock| lock.name.as_str());
        let mut acquire = client
            .acquire_all(&self.lock.namespace, &names.collect::<Vec<_>>(), &self.owner())
            .wait(self.wait.unwrap_or_default());
        for (key, value) in &self.metadata {
            acquire = acquire.metadata(key, value);
        }
        match self.ttl {
            Some(ttl) => acquire.ttl(ttl),
            None => acquire,
        }
    }

    /// The given label, or one that identifies this process.
    pub fn owner(&self) -> String {
        self.owner.clone().unwrap_or_else(default_owner)
    }
}

fn default_owner() -> String {
    let host = gethostname().ok().and_then(|host| host.into_string().ok());
    format!(
        "{}@{}:{}",
        user(),
        host.as_deref().unwrap_or("localhost"),
        std::process::id()
    )
}

/// The name of the user, from the environment if it is there.
fn user() -> String {
    let named = ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| env::var(name).ok().filter(|name| !name.is_empty()));
    named.unwrap_or_else(|| system_name(Uid::current()))
}

/// The name that the system has for a user, or else the number of the user.
fn system_name(uid: Uid) -> String {
    let user = User::from_uid(uid).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_is_called_by_its_number() {
        let number = 4_000_000_123;
        assert_eq!(system_name(Uid::from_raw(number)), number.to_string());
    }
}
