//! The figures of locks and of namespaces.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use fencepost::api::proto::{LockSummary, NamespaceInfo};
use fencepost_client::time;

/// The figures of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockFigures {
    pub namespace: String,
    pub name: String,
    pub holders: u32,
    pub waiters: u32,
    /// The first holder; empty where none holds.
    pub owner: String,
    /// How long the first holder has held.
    pub held_for: Option<Duration>,
    /// How long its lease lives without a renewal.
    pub left: Duration,
}

impl LockFigures {
    /// The figures of a lock in a list that was read at `now`.
    pub fn of(namespace: &str, lock: LockSummary, now: SystemTime) -> Self {
        let first = lock.first_holder.unwrap_or_default();
        let since = first.since.and_then(|since| SystemTime::try_from(since).ok());
        Self {
            namespace: namespace.to_owned(),
            name: lock.name,
            holders: lock.holder_count,
            waiters: lock.waiter_count,
            owner: first.owner,
            // The clock of the server may be ahead of this one.
            held_for: since.map(|since| now.duration_since(since).unwrap_or_default()),
            left: time(first.remaining_ttl),
        }
    }
}

/// The figures of one namespace.
#[derive(Debug, Default)]
pub struct NamespaceFigures {
    pub info: NamespaceInfo,
    pub locks: u64,
    pub holders: u64,
    pub waiters: u64,
    pub longest_queue: u32,
    pub longest_hold: Option<Duration>,
    /// Whether it has more locks than were read.
    pub is_partial: bool,
    /// Why its locks could not be read.
    pub problem: Option<String>,
}

impl NamespaceFigures {
    /// The figures of a namespace of which no lock has been read.
    pub fn of(info: NamespaceInfo) -> Self {
        Self {
            info,
            ..Self::default()
        }
    }

    /// Counts a lock.
    pub fn add(&mut self, lock: &LockFigures) {
        self.locks += 1;
        self.holders += u64::from(lock.holders);
        self.waiters += u64::from(lock.waiters);
        self.longest_queue = self.longest_queue.max(lock.waiters);
        self.longest_hold = self.longest_hold.max(lock.held_for);
    }
}

/// The `limit` locks with the largest figures of all that were added.
#[derive(Debug)]
pub struct Longest<K> {
    limit: usize,
    figure: fn(&LockFigures) -> K,
    kept: Vec<LockFigures>,
}

impl<K: Ord> Longest<K> {
    /// None so far.
    pub fn new(limit: usize, figure: fn(&LockFigures) -> K) -> Self {
        Self {
            limit,
            figure,
            kept: Vec::new(),
        }
    }

    /// Adds a lock. Sorts only when there are twice as many as needed.
    pub fn add(&mut self, lock: LockFigures) {
        self.kept.push(lock);
        if self.kept.len() > 2 * self.limit {
            self.sort();
        }
    }

    /// The locks with the largest figures, the largest one first. Of equal ones the first that was added stays first.
    pub fn sorted(mut self) -> Vec<LockFigures> {
        self.sort();
        self.kept
    }

    fn sort(&mut self) {
        self.kept.sort_by_key(|lock| Reverse((self.figure)(lock)));
        self.kept.truncate(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(name: u32, waiters: u32) -> LockFigures {
        let summary = LockSummary {
            name: name.to_string(),
            waiter_count: waiters,
            ..LockSummary::default()
        };
        LockFigures::of("default", summary, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn the_longest_of_many_are_kept_in_order() {
        let mut longest = Longest::new(3, |lock| lock.waiters);
        for number in 0..100 {
            longest.add(lock(number, number * 37 % 100));
        }
        let waiters: Vec<u32> = longest.sorted().iter().map(|lock| lock.waiters).collect();
        assert_eq!(waiters, [99, 98, 97]);
    }

    #[test]
    fn a_holder_since_a_later_time_than_now_has_held_for_no_time() {
        let mut summary = LockSummary::default();
        summary.first_holder.get_or_insert_default().since =
            Some((SystemTime::UNIX_EPOCH + Duration::from_secs(9)).into());
        let held_for = |now| LockFigures::of("default", summary.clone(), SystemTime::UNIX_EPOCH + now).held_for;
        assert_eq!(held_for(Duration::from_secs(7)), Some(Duration::ZERO));
        assert_eq!(held_for(Duration::from_secs(12)), Some(Duration::from_secs(3)));
        assert_eq!(lock(1, 2).held_for, None);
    }
}
