//! When a lease ends, also before the commit that gives it time has been stamped.

use std::time::Duration;

/// The later of a time on the lock's clock and of one that is counted from the stamp of the commit that carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    known: Duration,
    from_stamp: Option<Duration>,
}

impl Expiry {
    /// An end at this time on the lock's clock.
    pub fn at(time: Duration) -> Self {
        Self {
            known: time,
            from_stamp: None,
        }
    }

    /// An end so long after the stamp of the commit.
    pub fn from_stamp(ttl: Duration) -> Self {
        Self {
            known: Duration::ZERO,
            from_stamp: Some(ttl),
        }
    }

    /// The later of both.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        Self {
            known: self.known.max(other.known),
            from_stamp: self.from_stamp.max(other.from_stamp),
        }
    }

    /// The end after a commit with this stamp.
    #[must_use]
    pub fn resolved(self, stamp: Duration) -> Self {
        let from_stamp = self.from_stamp.map(|ttl| stamp + ttl);
        Self::at(self.known.max(from_stamp.unwrap_or_default()))
    }

    /// The end, as far as it is known: the lease does not end before.
    pub fn known(self) -> Duration {
        self.known
    }

    /// The time after the stamp, unless the commit has been stamped.
    pub fn after_stamp(self) -> Option<Duration> {
        self.from_stamp
    }

    /// The time that is left, if the commit is stamped with `now`; zero after the end.
    pub fn remaining(self, now: Duration) -> Duration {
        self.resolved(now).known.saturating_sub(now)
    }
}
