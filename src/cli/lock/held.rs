//! The locks that a command runs under: one, or several that were acquired together.

use std::ffi::OsString;
use std::future::Future;
use std::time::Duration;

use fencepost::client::{Error, LockGuard, Loss, time};
use futures::future::{FutureExt, join_all, select_all};

/// Held locks, in the order in which they were named; at least one. The command may run while all are held.
#[derive(Debug)]
pub struct HeldLocks {
    guards: Vec<LockGuard>,
}

impl From<LockGuard> for HeldLocks {
    fn from(guard: LockGuard) -> Self {
        Self { guards: vec![guard] }
    }
}

impl From<Vec<LockGuard>> for HeldLocks {
    fn from(guards: Vec<LockGuard>) -> Self {
        Self { guards }
    }
}

impl HeldLocks {
    /// The shortest TTL.
    pub fn ttl(&self) -> Duration {
        let ttls = self.guards.iter().map(|guard| time(guard.lease().ttl));
        ttls.min().unwrap_or_default()
    }

    /// The time until the first of them may be lost.
    pub fn remaining(&self) -> Duration {
        let remaining = self.guards.iter().map(LockGuard::remaining);
        remaining.min().unwrap_or_default()
    }

    /// The end of [`Self::remaining`], on the clock since boot.
    pub fn end(&self) -> Duration {
        self.guards.iter().map(LockGuard::end).min().unwrap_or_default()
    }

    /// Whether all are held.
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Resolves when one is or may be lost, or has less than `before` left.
    pub fn ending(&self, before: Duration) -> impl Future<Output = Loss> + Send + use<> {
        let endings = self.guards.iter().map(|guard| guard.ending(before).boxed());
        select_all(endings.collect::<Vec<_>>()).map(|(loss, ..)| loss)
    }

    /// Resolves at the next renewal of any, with the new end of the time for which all are held; `None` once one is
    /// lost.
    pub async fn renewed(&mut self) -> Option<Duration> {
        let renewals = self.guards.iter_mut().map(|guard| guard.renewed().boxed());
        let (renewed, ..) = select_all(renewals.collect::<Vec<_>>()).await;
        renewed.map(|_| self.end())
    }

    /// Releases all, and returns the first error.
    pub async fn release(self) -> Result<(), Error> {
        let released = join_all(self.guards.into_iter().map(LockGuard::release)).await;
        released.into_iter().collect()
    }

    /// The environment variables that name the locks and their leases, with one line for each lock.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let lines = |of: fn(&LockGuard) -> String| {
            let lines: Vec<String> = self.guards.iter().map(of).collect();
            OsString::from(lines.join("\n"))
        };
        let namespace = self.guards.first().map(|guard| guard.lease().namespace.clone());
        vec![
            ("FENCEPOST_TOKEN", lines(|guard| guard.fencing_token().to_string())),
            ("FENCEPOST_LEASE_ID", lines(|guard| guard.lease().lease_id.clone())),
            ("FENCEPOST_LOCK", lines(|guard| guard.lease().name.clone())),
            ("FENCEPOST_NAMESPACE", namespace.unwrap_or_default().into()),
        ]
    }
}
