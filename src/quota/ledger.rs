//! The leases that count against a limit, by their secret, and when each is over at the latest.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::Taken;
use crate::name::{ClaimId, FencingToken, LeaseKey, LockName, Secret};

/// What tells a hold from any other.
type Id = [u8; 16];

/// All leases that count. There are never more of them than the limits allow.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Never held for longer than an entry takes.
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<Id, Entry>,
    by_end: BTreeSet<(Instant, Id)>,
    /// How many holds each claim has here.
    claims: HashMap<ClaimId, usize>,
}

#[derive(Debug)]
struct Entry {
    lease: LeaseKey,
    end: Instant,
    /// Free again with the entry.
    _taken: Taken,
}

fn id(secret: &Secret) -> Id {
    *secret.as_bytes()
}

impl Ledger {
    /// A lease was granted.
    pub fn add(&self, lease: &LeaseKey, end: Instant, taken: Taken) {
        let id = id(&lease.secret);
        let entry = Entry {
            lease: lease.clone(),
            end,
            _taken: taken,
        };
        self.change(|entries| {
            let before = entries.remove(&id);
            entries.by_end.insert((end, id));
            *entries.claims.entry(entry.lease.claim).or_default() += 1;
            entries.by_id.insert(id, entry);
            before
        });
    }

    /// Whether a lease of this claim counts.
    pub fn has(&self, claim: ClaimId) -> bool {
        self.change(|entries| entries.claims.contains_key(&claim))
    }

    /// A lease lives on until `end`.
    pub fn renewed(&self, lease: &LeaseKey, end: Instant) {
        let id = id(&lease.secret);
        self.change(|entries| {
            if let Some(entry) = entries.by_id.get_mut(&id) {
                entries.by_end.remove(&(entry.end, id));
                entries.by_end.insert((end, id));
                entry.end = end;
            }
        });
    }

    /// A lease is gone.
    pub fn ended(&self, lease: &LeaseKey) {
        let id = id(&lease.secret);
        self.change(|entries| entries.remove(&id));
    }

    /// All leases of a token are gone.
    pub fn forced(&self, namespace: &str, name: &LockName, token: FencingToken) {
        self.change(|entries| {
            let is_of = |lease: &LeaseKey| {
                lease.token == token && lease.lock.name == *name && lease.lock.namespace.as_str() == namespace
            };
            let gone = entries.by_id.iter().filter(|(_, entry)| is_of(&entry.lease));
            let gone: Vec<Id> = gone.map(|(id, _)| *id).collect();
            gone.iter().filter_map(|id| entries.remove(id)).collect::<Vec<_>>()
        });
    }

    /// Leases whose time is over count no more.
    pub fn forget_ended(&self) {
        let now = Instant::now();
        self.change(|entries| {
            let mut gone = Vec::new();
            while let Some((_, id)) = entries.by_end.first().copied().filter(|(end, _)| *end <= now) {
                gone.extend(entries.remove(&id));
            }
            gone
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Entries) -> T) -> T {
        change(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Entries {
    fn remove(&mut self, id: &Id) -> Option<Entry> {
        let entry = self.by_id.remove(id)?;
        self.by_end.remove(&(entry.end, *id));
        if let Some(holds) = self.claims.get_mut(&entry.lease.claim) {
            *holds -= 1;
            if *holds == 0 {
                self.claims.remove(&entry.lease.claim);
            }
        }
        Some(entry)
    }
}
