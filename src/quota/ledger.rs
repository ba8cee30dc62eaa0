//! The leases that count against a limit, by secret, and the latest end of each.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::QuotaUse;
use crate::name::{ClaimId, FencingToken, LeaseKey, LockName, Secret};

/// All counted leases. Their number is bounded by the limits.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Locked only to read or change entries.
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_secret: HashMap<Secret, Entry>,
    by_end: BTreeSet<(Instant, Secret)>,
    /// The number of counted holds of each claim.
    claims: HashMap<ClaimId, usize>,
}

#[derive(Debug)]
struct Entry {
    lease: LeaseKey,
    end: Instant,
    /// Returned when the entry is dropped.
    _taken: QuotaUse,
}

impl Ledger {
    /// Counts a granted lease.
    pub fn add(&self, lease: &LeaseKey, end: Instant, taken: QuotaUse) {
        let secret = lease.secret;
        let entry = Entry {
            lease: lease.clone(),
            end,
            _taken: taken,
        };
        self.change(|entries| {
            let replaced = entries.remove(&secret);
            entries.by_end.insert((end, secret));
            *entries.claims.entry(entry.lease.claim).or_default() += 1;
            entries.by_secret.insert(secret, entry);
            replaced
        });
    }

    /// Whether a lease of this claim is counted.
    pub fn has(&self, claim: ClaimId) -> bool {
        self.change(|entries| entries.claims.contains_key(&claim))
    }

    /// Extends a lease to `end`, after the store has confirmed the renewal. The secret identifies the lease.
    pub fn renewed(&self, lease: &LeaseKey, end: Instant) {
        let secret = lease.secret;
        self.change(|entries| {
            if let Some(entry) = entries.by_secret.get_mut(&secret) {
                entries.by_end.remove(&(entry.end, secret));
                entries.by_end.insert((end, secret));
                entry.end = end;
            }
        });
    }

    /// Stops counting a lease if the whole key matches: a key that a caller altered does not name an existing lease,
    /// although its secret may match.
    pub fn ended(&self, lease: &LeaseKey) {
        self.change(|entries| {
            let counted = entries.by_secret.get(&lease.secret);
            let matches = counted.is_some_and(|entry| entry.lease == *lease);
            matches.then(|| entries.remove(&lease.secret))
        });
    }

    /// Stops counting all leases of a token.
    pub fn forced(&self, namespace: &str, name: &LockName, token: FencingToken) {
        self.change(|entries| {
            let is_of = |lease: &LeaseKey| {
                lease.token == token && lease.lock.name == *name && lease.lock.namespace.as_str() == namespace
            };
            let ended = entries.by_secret.iter().filter(|(_, entry)| is_of(&entry.lease));
            let ended: Vec<Secret> = ended.map(|(secret, _)| *secret).collect();
            ended
                .iter()
                .filter_map(|secret| entries.remove(secret))
                .collect::<Vec<_>>()
        });
    }

    /// Stops counting leases that have expired.
    pub fn forget_ended(&self) {
        let now = Instant::now();
        self.change(|entries| {
            let mut ended = Vec::new();
            while let Some((_, secret)) = entries.by_end.first().copied().filter(|(end, _)| *end <= now) {
                ended.extend(entries.remove(&secret));
            }
            ended
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Entries) -> T) -> T {
        change(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Entries {
    fn remove(&mut self, secret: &Secret) -> Option<Entry> {
        let entry = self.by_secret.remove(secret)?;
        self.by_end.remove(&(entry.end, *secret));
        if let Some(holds) = self.claims.get_mut(&entry.lease.claim) {
            *holds -= 1;
            if *holds == 0 {
                self.claims.remove(&entry.lease.claim);
            }
        }
        Some(entry)
    }
}
