//! What callers do, and how many of them on how many locks.

use std::time::Duration;

use super::Bench;
use crate::cli::Failure;

/// What all callers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Each takes a lock of its own and gives it back
    Uncontended,
    /// All take turns on one lock, waiting in its queue
    Hot,
    /// All share one lock, take it and give it back
    Shared,
    /// All take permits of one semaphore, waiting in its queue
    Semaphore,
    /// All wait for one lock that nobody gives back: each lease has to expire
    Expiry,
    /// Not measured by itself: each of the others beside a bare echo of its calls, in the same run
    Limit,
    /// One caller that takes a lock and never gives it back, which only an echo grants.
    #[value(skip)]
    Lone,
}

impl Pattern {
    /// Its name as an argument.
    pub fn word(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Hot => "hot",
            Self::Shared => "shared",
            Self::Semaphore => "semaphore",
            Self::Expiry => "expiry",
            Self::Limit => "limit",
            Self::Lone => "lone",
        }
    }

    /// What it counts.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Hot => "hand-offs/s",
            Self::Expiry => "expiries/s",
            Self::Lone => "calls/s",
            _ => "pairs/s",
        }
    }

    /// Whether callers wait in a queue.
    pub fn waits(self) -> bool {
        matches!(self, Self::Hot | Self::Semaphore | Self::Expiry)
    }

    /// What the echo does beside it: as much as a lock without waiting would. Hand-offs follow one
    /// another like the calls of one caller. An expiry is not about speed.
    pub fn limit(self) -> Option<Self> {
        match self {
            Self::Uncontended | Self::Shared | Self::Semaphore => Some(Self::Uncontended),
            Self::Hot => Some(Self::Lone),
            Self::Expiry | Self::Limit | Self::Lone => None,
        }
    }
}

/// How much is done.
#[derive(Debug, Clone)]
pub struct Plan {
    pub namespace: String,
    /// Before the number of each lock, so that two runs never meet.
    pub prefix: String,
    pub permits: u32,
    pub limit: u32,
    pub ttl: Duration,
    concurrency: usize,
    keys: Option<usize>,
}

/// Numbers that do not go together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BadPlan(String);

impl Plan {
    /// What the arguments say.
    pub fn of(args: &Bench, patterns: &[Pattern], prefix: String) -> Result<Self, Failure> {
        let concurrency = args.concurrency.get();
        let keys = args.keys.map(std::num::NonZero::get);
        let bad = |problem| Err(Failure::usage(BadPlan(problem)));
        if let Some(keys) = keys.filter(|keys| *keys < concurrency)
            && patterns.contains(&Pattern::Uncontended)
        {
            return bad(format!(
                "uncontended callers need a lock each: --keys must be at least --concurrency, {concurrency}, not {keys}"
            ));
        }
        let limit = args
            .limit
            .unwrap_or(u32::try_from(concurrency).unwrap_or(u32::MAX).div_ceil(2));
        if args.permits == 0 || args.permits > limit {
            return bad(format!("--permits must be 1 to --limit, {limit}, not {}", args.permits));
        }
        Ok(Self {
            namespace: args.namespace.clone(),
            prefix,
            permits: args.permits,
            limit,
            ttl: args.ttl,
            concurrency,
            keys,
        })
    }

    /// How many callers there are.
    pub fn callers(&self, pattern: Pattern) -> usize {
        if pattern == Pattern::Lone { 1 } else { self.concurrency }
    }

    /// How many locks there are.
    pub fn keys(&self, pattern: Pattern) -> usize {
        let usual = if pattern == Pattern::Uncontended {
            self.concurrency
        } else {
            1
        };
        self.keys.unwrap_or(usual)
    }

    /// Which lock a caller takes in a turn. Uncontended callers go round in locks that are theirs.
    pub fn key(&self, pattern: Pattern, caller: usize, turn: usize) -> usize {
        let keys = self.keys(pattern);
        if pattern != Pattern::Uncontended {
            return caller % keys;
        }
        let own = (keys - caller).div_ceil(self.concurrency);
        caller + turn % own * self.concurrency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncontended_callers_never_meet_and_leave_no_lock_out() {
        let plan = Plan {
            namespace: String::new(),
            prefix: String::new(),
            permits: 1,
            limit: 1,
            ttl: Duration::from_secs(1),
            concurrency: 3,
            keys: Some(8),
        };
        let keys = |caller| (0..6).map(move |turn| plan.key(Pattern::Uncontended, caller, turn));
        let keys = |caller| keys.clone()(caller).collect::<Vec<_>>();
        assert_eq!(keys(0), [0, 3, 6, 0, 3, 6]);
        assert_eq!(keys(1), [1, 4, 7, 1, 4, 7]);
        assert_eq!(keys(2), [2, 5, 2, 5, 2, 5]);
    }
}
