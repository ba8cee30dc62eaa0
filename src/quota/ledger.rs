//! The leases that count against a limit, by their secret, and when each is over at the latest.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::QuotaUse;
use crate::name::{ClaimId, FencingToken, LeaseKey, LockName, Secret};

/// All leases that count. There are never more of them than the limits allow.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Never held for longer than an entry takes.
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_secret: HashMap<Secret, Entry>,
    by_end: BTreeSet<(Instant, Secret)>,
    /// How many holds each claim has here.
    claims: HashMap<ClaimId, usize>,
}

#[derive(Debug)]
struct Entry {
    lease: LeaseKey,
    end: Instant,
    /// Free again with the entry.
    _taken: QuotaUse,
}

impl Ledger {
    /// A lease was granted.
    pub fn add(&self, lease: &LeaseKey, end: Instant, taken: QuotaUse) {
        let secret = lease.secret;
        let entry = Entry {
            lease: lease.clone(),
            end,
            _taken: taken,
        };
        self.change(|entries| {
            let before = entries.remove(&secret);
            entries.by_end.insert((end, secret));
            *entries.claims.entry(entry.lease.claim).or_default() += 1;
            entries.by_secret.insert(secret, entry);
            before
        });
    }

    /// Whether a lease of this claim counts.
    pub fn has(&self, claim: ClaimId) -> bool {
        self.change(|entries| entries.claims.contains_key(&claim))
    }

    /// A lease lives on until `end`, as its store says: the secret is enough.
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

    /// A lease is gone. Only the very lease that counts: an id that a caller altered names one that never was,
    /// and says nothing of the one whose secret it has.
    pub fn ended(&self, lease: &LeaseKey) {
        self.change(|entries| {
            let counts = entries.by_secret.get(&lease.secret);
            let is_this = counts.is_some_and(|entry| entry.lease == *lease);
            is_this.then(|| entries.remove(&lease.secret))
        });
    }

    /// All leases of a token are gone.
    pub fn forced(&self, namespace: &str, name: &LockName, token: FencingToken) {
        self.change(|entries| {
            let is_of = |lease: &LeaseKey| {
                lease.token == token && lease.lock.name == *name && lease.lock.namespace.as_str() == namespace
            };
            let gone = entries.by_secret.iter().filter(|(_, entry)| is_of(&entry.lease));
            let gone: Vec<Secret> = gone.map(|(secret, _)| *secret).collect();
            gone.iter()
                .filter_map(|secret| entries.remove(secret))
                .collect::<Vec<_>>()
        });
    }

    /// Leases whose time is over count no more.
    pub fn forget_ended(&self) {
        let now = Instant::now();
        self.change(|entries| {
            let mut gone = Vec::new();
            while let Some((_, secret)) = entries.by_end.first().copied().filter(|(end, _)| *end <= now) {
                gone.extend(entries.remove(&secret));
            }
            gone
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
