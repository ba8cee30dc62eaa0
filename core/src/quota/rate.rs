//! Rates of calls, by the generic cell rate algorithm (GCRA).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A rate limit for calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The average, in calls per second; at least 1.
    pub per_second: u32,
    /// The largest burst after a pause, in calls; at least 1.
    pub burst: u32,
}

impl Rate {
    /// The time that one call uses, in nanoseconds.
    fn each(self) -> u64 {
        1_000_000_000 / u64::from(self.per_second.max(1))
    }
}

/// What the calls so far have used of a rate.
#[derive(Debug, Default)]
pub(super) struct SpentRate {
    /// The time until which they use up the rate, in nanoseconds since the start.
    until: AtomicU64,
}

impl SpentRate {
    /// Counts a call, or returns the time until the rate admits it.
    pub(super) fn charge(&self, rate: Rate, now: u64) -> Result<(), Duration> {
        let each = rate.each();
        let allowed = each * u64::from(rate.burst.max(1));
        let charge = |until: u64| {
            let until = until.max(now) + each;
            (until <= now + allowed).then_some(until)
        };
        let charged = self.until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge);
        charged
            .map(drop)
            .map_err(|until| Duration::from_nanos((until + each).saturating_sub(now + allowed)))
    }

    /// Counts calls that are not refused, also beyond the burst.
    pub(super) fn spend(&self, rate: Rate, calls: usize, now: u64) {
        let spent = rate.each() * u64::try_from(calls).unwrap_or(u64::MAX);
        let spend = |until: u64| Some(until.max(now).saturating_add(spent));
        // It cannot fail, because `spend` refuses nothing.
        let _ = self.until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
    }

    /// Whether the next call finds the whole burst.
    pub(super) fn is_unspent(&self, now: u64) -> bool {
        self.until.load(Ordering::Relaxed) <= now
    }
}
