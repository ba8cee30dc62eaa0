//! Load patterns, and their numbers of callers and locks.

use std::time::Duration;

use super::Bench;
use crate::cli::Failure;

/// A load pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Each caller acquires and releases its own lock
    Uncontended,
    /// All callers acquire and release one lock, waiting in its queue
    Hot,
    /// All callers acquire and release shared claims on one lock
    Shared,
    /// All callers acquire and release permits of one semaphore, waiting in its queue
    Semaphore,
    /// All callers wait for one lock that is never released: each lease has to expire
    Expiry,
}

impl Pattern {
    /// The name as an argument.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Hot => "hot",
            Self::Shared => "shared",
            Self::Semaphore => "semaphore",
            Self::Expiry => "expiry",
        }
    }

    /// The unit of the rate.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Hot => "hand-offs/s",
            Self::Expiry => "expiries/s",
            _ => "pairs/s",
        }
    }

    /// Whether callers wait in a queue.
    pub fn waits(self) -> bool {
        matches!(self, Self::Hot | Self::Semaphore | Self::Expiry)
    }
}

/// The parameters of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    pub namespace: String,
    /// The prefix of lock names, unique per run.
    pub prefix: String,
    pub permits: u32,
    pub limit: u32,
    pub ttl: Duration,
    concurrency: usize,
    keys: Option<usize>,
}

/// Arguments that contradict each other.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadArguments(pub String);

impl Plan {
    /// Checks and converts the arguments.
    pub fn of(args: &Bench, prefix: String) -> Result<Self, Failure> {
        let concurrency = args.concurrency.get();
        let keys = args.keys.map(std::num::NonZero::get);
        let bad = |problem| Err(Failure::usage(BadArguments(problem)));
        if let Some(keys) = keys.filter(|keys| *keys < concurrency)
            && args.patterns.contains(&Pattern::Uncontended)
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

    /// The number of callers.
    pub fn callers(&self) -> usize {
        self.concurrency
    }

    /// The number of locks.
    pub fn keys(&self, pattern: Pattern) -> usize {
        let default = if pattern == Pattern::Uncontended {
            self.concurrency
        } else {
            1
        };
        self.keys.unwrap_or(default)
    }

    /// The index of the lock that a caller acquires in a round. Uncontended callers cycle through
    /// disjoint sets.
    pub fn key(&self, pattern: Pattern, caller: usize, round: usize) -> usize {
        let keys = self.keys(pattern);
        if pattern != Pattern::Uncontended {
            return caller % keys;
        }
        let own = (keys - caller).div_ceil(self.concurrency);
        caller + round % own * self.concurrency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncontended_callers_use_disjoint_locks_and_all_of_them() {
        let plan = Plan {
            namespace: String::new(),
            prefix: String::new(),
            permits: 1,
            limit: 1,
            ttl: Duration::from_secs(1),
            concurrency: 3,
            keys: Some(8),
        };
        let keys = |caller| (0..6).map(move |round| plan.key(Pattern::Uncontended, caller, round));
        let keys = |caller| keys.clone()(caller).collect::<Vec<_>>();
        assert_eq!(keys(0), [0, 3, 6, 0, 3, 6]);
        assert_eq!(keys(1), [1, 4, 7, 1, 4, 7]);
        assert_eq!(keys(2), [2, 5, 2, 5, 2, 5]);
    }
}
