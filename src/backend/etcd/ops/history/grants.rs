//! The holders that a replica has granted or read, and whose end it has not observed.

use std::collections::HashMap;
use std::collections::hash_map::Values;

use tokio::time::Instant;

use crate::backend::etcd::data::view::Entry;
use crate::name::{ClaimId, LockName, Mode};

/// A holder's last known record.
#[derive(Debug, Clone)]
pub struct Granted {
    pub name: LockName,
    pub entry: Entry,
    pub due: Instant,
    /// When this replica last granted, read or checked it.
    pub seen: Instant,
    /// When the last keep-alive of its lease was sent, if known.
    pub alive: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Grants {
    by_claim: HashMap<ClaimId, Granted>,
    /// How many of them are readers, per lock.
    readers: HashMap<LockName, usize>,
}

impl Grants {
    pub fn get(&self, claim: &ClaimId) -> Option<&Granted> {
        self.by_claim.get(claim)
    }

    pub fn values(&self) -> Values<'_, ClaimId, Granted> {
        self.by_claim.values()
    }

    /// Notes the time of a holder's expiry.
    pub fn lives_until(&mut self, entry: &Entry, due: Instant) {
        let known = self.by_claim.get_mut(&entry.id);
        if let Some(granted) = known.filter(|known| known.entry.created == entry.created) {
            granted.seen = Instant::now();
            granted.due = due;
        }
    }

    /// The number of known readers that hold a lock.
    pub fn readers(&self, name: &LockName) -> usize {
        self.readers.get(name).copied().unwrap_or(0)
    }

    pub fn insert(&mut self, granted: Granted) {
        self.remove(&granted.entry.id);
        if granted.entry.claim.mode == Mode::Shared {
            *self.readers.entry(granted.name.clone()).or_default() += 1;
        }
        self.by_claim.insert(granted.entry.id, granted);
    }

    pub fn remove(&mut self, claim: &ClaimId) -> Option<Granted> {
        let gone = self.by_claim.remove(claim)?;
        if gone.entry.claim.mode == Mode::Shared
            && let Some(readers) = self.readers.get_mut(&gone.name)
        {
            *readers -= 1;
            if *readers == 0 {
                self.readers.remove(&gone.name);
            }
        }
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::NewClaim;
    use crate::backend::etcd::data::record::Claim;

    #[test]
    fn known_readers_are_counted_per_lock() {
        let (mut grants, name) = (Grants::default(), LockName::new("a").unwrap());
        let granted = |number, mode| {
            let new = NewClaim::numbered(number);
            let claim = Claim {
                mode,
                ..Claim::of(&new)
            };
            Granted {
                name: name.clone(),
                entry: Entry {
                    id: new.id,
                    claim,
                    created: 1,
                    modified: 1,
                    lease: 1,
                    is_earlier: false,
                },
                due: Instant::now(),
                seen: Instant::now(),
                alive: None,
            }
        };
        for number in [1, 2, 1] {
            grants.insert(granted(number, Mode::Shared));
        }
        grants.insert(granted(3, Mode::Exclusive));
        assert_eq!(grants.readers(&name), 2);
        for number in [1, 1, 2, 3] {
            grants.remove(&NewClaim::numbered(number).id);
        }
        assert_eq!(
            (grants.readers(&name), grants.readers.len(), grants.by_claim.len()),
            (0, 0, 0)
        );
    }
}
