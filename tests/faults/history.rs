//! What clients saw of their leases, and the judgement of it.

use std::collections::BTreeMap;
use std::time::Instant;

use fencepost::api::proto::Lease;

use crate::client::time;

/// A lease as its client knows it.
#[derive(Debug, Clone)]
pub struct Held {
    /// What the server answered.
    pub lease: Lease,
    /// When the answer came.
    pub from: Instant,
    /// Until when the client is a sure holder: `sent + waited + ttl`, or less if it sent a Release.
    pub until: Instant,
    /// Whether a Release was answered.
    pub released: bool,
}

impl Held {
    /// A lease that has just come, for a call that was sent then.
    pub fn new(lease: Lease, sent: Instant) -> Self {
        let until = sent + time(lease.waited) + time(lease.ttl);
        Self {
            lease,
            from: Instant::now(),
            until,
            released: false,
        }
    }

    /// A Release is about to be sent: from here on its client does not count on it.
    pub fn gives_up(&mut self) {
        self.until = self.until.min(Instant::now());
    }

    /// Whether its client may still count on it.
    pub fn is_sure(&self) -> bool {
        Instant::now() < self.until
    }
}

/// All leases that were ever answered, by lock and token.
#[derive(Debug, Default)]
pub struct History(BTreeMap<(String, u64), Held>);

impl History {
    /// Notes a lease whose story is over, or as far as it is known.
    ///
    /// # Panics
    /// When its token was given to another lease of its lock.
    pub fn note(&mut self, held: Held) {
        let key = (held.lease.name.clone(), held.lease.fencing_token);
        let before = self.0.insert(key, held.clone());
        let same = before
            .as_ref()
            .is_none_or(|before| before.lease.lease_id == held.lease.lease_id);
        assert!(same, "unsafe: a token was given twice: {before:#?} and {held:#?}");
    }

    /// All of them, in the order of their tokens within each lock.
    pub fn all(&self) -> impl Iterator<Item = &Held> {
        self.0.values()
    }

    /// Asserts that on each exclusive lock nobody was given a lease while the client of one with a
    /// lower token was sure of its own; so tokens also rise in the order in which leases came.
    pub fn judge(&self) {
        let mut last: Option<&Held> = None;
        for held in self.all() {
            if let Some(last) = last.filter(|last| last.lease.name == held.lease.name) {
                assert!(last.until <= held.from, "unsafe: two holders: {last:#?} and {held:#?}");
            }
            last = Some(held);
        }
    }
}
