//! The locks that a command runs under: one, or several that were acquired together.

use std::ffi::OsString;
use std::future::Future;
use std::time::Duration;

use fencepost_client::{Error, LockGuard, Loss, time};
use futures::future::{FutureExt, join_all, select_all};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// The minimum time for releasing a lease.
const MIN_RELEASE_TIME: Duration = Duration::from_millis(500);

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

    /// Extends all leases to `ttl` from now, where they end sooner.
    ///
    /// # Errors
    /// The first error; the others may have been extended.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        let extended = join_all(self.guards.iter().map(|guard| guard.extend(ttl))).await;
        extended.into_iter().collect()
    }

    /// Ends the renewals without a release.
    pub async fn leave(self) {
        join_all(self.guards.into_iter().map(LockGuard::leave)).await;
    }

    /// Releases all. Each has the time until the end of its lease: a release after it is pointless, even if no server
    /// answers.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if one had ended, else the first error; `unanswered` for a release without a response.
    pub async fn release(self, unanswered: &Error) -> Result<(), Error> {
        let releases = self.guards.into_iter().map(|guard| {
            let time_limit = guard.remaining().max(MIN_RELEASE_TIME);
            or_unanswered(timeout(time_limit, guard.release()), unanswered)
        });
        worst(join_all(releases).await)
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

async fn or_unanswered(
    release: impl Future<Output = Result<Result<(), Error>, Elapsed>>,
    unanswered: &Error,
) -> Result<(), Error> {
    release.await.unwrap_or_else(|_| Err(unanswered.clone()))
}

/// The outcome of several releases. A lease that had ended counts most, because the command may have run without its
/// lock.
fn worst(released: Vec<Result<(), Error>>) -> Result<(), Error> {
    let mut errors: Vec<Error> = released.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| !matches!(error, Error::LeaseLost { .. }));
    errors.into_iter().next().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_lease_counts_more_than_a_release_without_a_response() {
        let unanswered = || {
            Err(Error::Unreachable {
                addresses: "127.0.0.1:1".into(),
                problem: "gone".into(),
            })
        };
        let lost = || Err(Error::LeaseLost { cause: "forced".into() });
        assert_eq!(worst(vec![Ok(()), Ok(())]), Ok(()));
        assert_eq!(worst(vec![Ok(()), unanswered()]), unanswered());
        assert_eq!(worst(vec![unanswered(), lost(), Ok(())]), lost());
    }
}
