//! The leases that this replica watches over.
//!
//! A holder's data states for how long its version lives. A replica that has seen one version for that long, counted from
//! the answer to its read, may delete the holder at that version: a client that counts on this version, or on an older one,
//! counts from the sending of the write, which was before. No clock is compared with another. Every replica watches over
//! the leases that it reads, so the leases of a dead replica end too.
//!
//! A write that does not extend the lease (new metadata) names the grant or renewal that it inherits the lease from, and
//! expires with it. A replica that has seen that lease in an earlier version counts from then.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::data::child::Child;
use super::data::record::Claim;
use crate::backend::local_clock::Clock;
use crate::backend::tree::store::{Failure, Stat, Version};
use crate::claim::Holder;
use crate::name::{ClaimId, FencingToken, LockName, Mode};

/// A holder as this replica last saw it.
#[derive(Debug, Clone)]
pub struct Lease {
    pub lock: LockName,
    pub child: Child,
    pub claim: Arc<Claim>,
    pub token: FencingToken,
    pub version: Version,
    /// The transaction that wrote this version.
    pub modified: i64,
    /// The transaction that granted the lease, or renewed it last.
    pub lease_began: i64,
    /// This replica wrote this version. Otherwise another one renews it, and may have done so since.
    pub is_own: bool,
    /// It has another version by now, or may have.
    pub is_outdated: bool,
    /// When this lease is over for certain, by this version and the earlier ones that were seen.
    pub due: Duration,
}

/// The name of a holder.
type Key = (LockName, String);

/// See the module.
#[derive(Debug)]
pub struct WatchedLeases {
    clock: Arc<dyn Clock>,
    state: Mutex<LeaseTable>,
    /// Notified when an earlier end was noted.
    earlier: Notify,
}

#[derive(Debug, Default)]
struct LeaseTable {
    by_child: HashMap<Key, Lease>,
    by_claim: HashMap<(LockName, ClaimId), String>,
    /// How many claims of a lock are known, or being granted to readers, and how many of them are readers.
    held: HashMap<LockName, (usize, usize)>,
    ends: BTreeSet<(Duration, Key)>,
}

impl LeaseTable {
    fn remove(&mut self, key: &Key) -> Option<Lease> {
        let lease = self.by_child.remove(key)?;
        self.ends.remove(&(lease.due, key.clone()));
        self.uncount(&lease.lock, lease.child.mode);
        let claim = (key.0.clone(), lease.claim.id);
        if self.by_claim.get(&claim) == Some(&key.1) {
            self.by_claim.remove(&claim);
        }
        Some(lease)
    }

    fn count(&mut self, lock: &LockName, mode: Mode) {
        let (all, readers) = self.held.entry(lock.clone()).or_default();
        *all += 1;
        *readers += usize::from(mode == Mode::Shared);
    }

    fn uncount(&mut self, lock: &LockName, mode: Mode) {
        if let Some((all, readers)) = self.held.get_mut(lock) {
            // What was taken meanwhile does not count any more.
            *all = all.saturating_sub(1);
            *readers = readers.saturating_sub(usize::from(mode == Mode::Shared));
            if *all == 0 {
                self.held.remove(lock);
            }
        }
    }
}

/// A reader that is being granted.
pub struct GrantingReader<'a> {
    leases: &'a WatchedLeases,
    lock: &'a LockName,
}

impl Drop for GrantingReader<'_> {
    fn drop(&mut self) {
        self.leases.state.lock().uncount(self.lock, Mode::Shared);
    }
}

impl WatchedLeases {
    /// Whether a claim of a lock is known.
    pub fn has_any(&self, lock: &LockName) -> bool {
        self.state.lock().held.contains_key(lock)
    }

    /// Counts a reader that is being granted, if fewer than `most` are known.
    pub fn begin_reader<'a>(&'a self, lock: &'a LockName, most: usize) -> Option<GrantingReader<'a>> {
        let mut state = self.state.lock();
        if state.held.get(lock).is_some_and(|(_, readers)| *readers >= most) {
            return None;
        }
        state.count(lock, Mode::Shared);
        Some(GrantingReader { leases: self, lock })
    }

    /// None yet, on this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            earlier: Notify::new(),
        }
    }

    /// A holder that was just read or written.
    pub fn seen_now(&self, lock: &LockName, child: &Child, claim: Claim, stat: &Stat) -> Result<Lease, Failure> {
        Ok(Lease {
            lock: lock.clone(),
            child: child.clone(),
            token: claim.token(stat.created)?,
            lease_began: claim.lease_began(stat),
            due: self.clock.now() + claim.life,
            claim: Arc::new(claim),
            version: stat.version,
            modified: stat.modified,
            is_own: false,
            is_outdated: false,
        })
    }

    /// Notes a holder as a step of this replica has rewritten it.
    pub fn rewritten(&self, lease: &Lease, claim: Claim, stat: &Stat) -> Lease {
        let lease_began = claim.lease_began(stat);
        let due = self.clock.now() + claim.life;
        self.note(Lease {
            due: if lease_began == lease.lease_began {
                due.min(lease.due)
            } else {
                due
            },
            lease_began,
            claim: Arc::new(claim),
            version: stat.version,
            modified: stat.modified,
            is_own: true,
            ..lease.clone()
        })
    }

    /// The claim for a version that continues a lease.
    pub fn claim_with_this_lease(&self, lease: &Lease) -> Claim {
        Claim {
            life: self.remaining(lease),
            inherits: Some(lease.lease_began),
            ..Claim::clone(&lease.claim)
        }
    }

    /// How long a lease lives without a renewal.
    pub fn remaining(&self, lease: &Lease) -> Duration {
        lease.due.saturating_sub(self.clock.now())
    }

    /// A holder as the API shows it.
    pub fn show(&self, lease: &Lease) -> Holder {
        let (claim, remaining) = (&lease.claim, self.remaining(lease));
        claim.terms.holder(claim.id, lease.token, remaining, claim.holds.len())
    }

    /// Notes a holder as it was just read or written, and returns it with the time at which its lease is over.
    pub fn note(&self, mut lease: Lease) -> Lease {
        let key = (lease.lock.clone(), lease.child.name.clone());
        let mut state = self.state.lock();
        if let Some(known) = state.by_child.get_mut(&key) {
            if known.version >= lease.version {
                known.is_outdated &= known.version > lease.version;
                return known.clone();
            }
            if known.lease_began == lease.lease_began {
                lease.due = lease.due.min(known.due);
            }
        }
        state.remove(&key);
        let is_first = state.ends.first().is_none_or(|(first, _)| lease.due < *first);
        state.ends.insert((lease.due, key.clone()));
        state
            .by_claim
            .insert((lease.lock.clone(), lease.claim.id), lease.child.name.clone());
        state.count(&lease.lock, lease.child.mode);
        state.by_child.insert(key, lease.clone());
        drop(state);
        if is_first {
            self.earlier.notify_one();
        }
        lease
    }

    /// The holder of this name, if it is known.
    pub fn get(&self, lock: &LockName, name: &str) -> Option<Lease> {
        let key = (lock.clone(), name.to_owned());
        let state = self.state.lock();
        state.by_child.get(&key).filter(|lease| !lease.is_outdated).cloned()
    }

    /// The holder of this claim, if it is known.
    pub fn of_claim(&self, lock: &LockName, claim: ClaimId) -> Option<Lease> {
        let state = self.state.lock();
        let name = state.by_claim.get(&(lock.clone(), claim))?;
        let lease = state.by_child.get(&(lock.clone(), name.clone()));
        lease.filter(|lease| !lease.is_outdated).cloned()
    }

    /// Forgets a holder that is gone.
    pub fn forget(&self, lock: &LockName, name: &str) {
        self.state.lock().remove(&(lock.clone(), name.to_owned()));
    }

    /// A holder has another version by now, or may have: it must be read again.
    pub fn mark_outdated(&self, lease: &Lease) {
        let key = (lease.lock.clone(), lease.child.name.clone());
        let mut state = self.state.lock();
        let known = state.by_child.get_mut(&key);
        if let Some(known) = known.filter(|known| known.version == lease.version) {
            known.is_outdated = true;
            known.is_own = false;
        }
    }

    /// Forgets everything, and returns what was known: an old copy of the store may have been put back.
    pub fn take_all(&self) -> Vec<Lease> {
        let known = std::mem::take(&mut *self.state.lock());
        known.by_child.into_values().collect()
    }

    /// Notes a holder that was read again over a new connection. A version that was written by the same transaction is
    /// the one that was `known`, and counts from when that was seen. So does a later one that continues its lease.
    pub fn note_again(&self, known: &Lease, read: Lease) {
        let is_same = (known.version, known.modified) == (read.version, read.modified);
        let continues =
            known.lease_began == read.lease_began && known.version < read.version && known.modified < read.modified;
        let due = match known.token == read.token && (is_same || continues) {
            true => read.due.min(known.due),
            false => read.due,
        };
        self.note(Lease { due, ..read });
    }

    /// Waits for the next leases that have ended, at most `count`. They stay known.
    pub async fn ended(&self, count: usize) -> Vec<Lease> {
        loop {
            let now = self.clock.now();
            let (ended, next) = {
                let state = self.state.lock();
                let due = state.ends.iter().take_while(|(due, _)| *due <= now);
                let due = due.filter_map(|(_, key)| state.by_child.get(key).cloned());
                (
                    due.take(count).collect::<Vec<_>>(),
                    state.ends.first().map(|(due, _)| *due),
                )
            };
            if !ended.is_empty() {
                return ended;
            }
            let timer = async {
                match next {
                    Some(due) => self.clock.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = timer => {}
                () = self.earlier.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::NewClaim;
    use crate::backend::local_clock::BootClock;

    fn watched() -> WatchedLeases {
        WatchedLeases::new(Arc::new(BootClock))
    }

    fn lease(version: Version, life: Duration) -> Lease {
        let new = NewClaim::numbered(1);
        let mut claim = Claim::of(&new);
        claim.life = life;
        let child = Child::parse(&Child::holder_name(&new, 0)).unwrap();
        let stat = Stat {
            version,
            modified: version + 7,
            ..Stat::of_new(7, 0)
        };
        watched()
            .seen_now(&LockName::new("a").unwrap(), &child, claim, &stat)
            .unwrap()
    }

    #[test]
    fn a_version_that_another_transaction_wrote_counts_anew_over_a_new_connection() {
        let leases = watched();
        let long = Duration::from_secs(60);
        let known = leases.note(lease(3, long));
        let again = |modified| {
            assert_eq!(leases.take_all().len(), 1);
            let read = Lease {
                modified,
                due: known.due + Duration::from_secs(1),
                ..known.clone()
            };
            leases.note_again(&known, read);
            leases.of_claim(&known.lock, known.claim.id).unwrap().due
        };
        assert_eq!(again(known.modified), known.due);
        assert_eq!(again(known.modified - 1), known.due + Duration::from_secs(1));
    }

    #[test]
    fn a_later_version_that_goes_on_with_the_lease_counts_from_when_that_was_seen_over_a_new_connection_too() {
        let leases = watched();
        let life = Duration::from_secs(60);
        let known = leases.note(lease(3, life));
        let (later, goes_on) = (known.due + Duration::from_secs(1), leases.claim_with_this_lease(&known));
        let again = |version, modified, claim: &Claim| {
            assert_eq!(leases.take_all().len(), 1);
            let stat = Stat {
                version,
                modified,
                ..Stat::of_new(7, 0)
            };
            let read = watched()
                .seen_now(&known.lock, &known.child, claim.clone(), &stat)
                .unwrap();
            leases.note_again(&known, Lease { due: later, ..read });
            leases.of_claim(&known.lock, known.claim.id).unwrap().due
        };
        assert_eq!(again(4, known.modified + 1, &goes_on), known.due);
        // An old copy of the store was put back.
        assert_eq!(again(4, known.modified - 1, &goes_on), later);
        assert_eq!(again(2, known.modified + 1, &goes_on), later);
        let renewed = goes_on.clone().with_new_lease(life);
        assert_eq!(again(4, known.modified + 1, &renewed), later, "it was renewed");
        let base = known.claim.base + 1;
        let other = Claim { base, ..goes_on };
        assert_eq!(again(4, known.modified + 1, &other), later, "it has another token");
    }

    #[test]
    fn a_version_that_goes_on_with_a_lease_counts_from_when_that_was_seen() {
        let leases = watched();
        let life = Duration::from_secs(60);
        let known = leases.note(lease(3, life));
        let written = |version, claim: Claim| {
            let stat = Stat {
                version,
                modified: version + 7,
                ..Stat::of_new(7, 0)
            };
            let read = watched().seen_now(&known.lock, &known.child, claim, &stat).unwrap();
            Lease {
                due: known.due + Duration::from_secs(1),
                ..read
            }
        };
        leases.mark_outdated(&known);
        assert!(leases.get(&known.lock, &known.child.name).is_none());
        let updated = leases.note(written(4, leases.claim_with_this_lease(&known)));
        assert_eq!(updated.due, known.due);
        let again = leases.note(written(5, leases.claim_with_this_lease(&updated)));
        assert_eq!(again.due, known.due);
        let renewed = Claim::clone(&again.claim).with_new_lease(life);
        assert!(leases.note(written(6, renewed)).due > known.due);
    }

    #[tokio::test]
    async fn a_lease_ends_when_one_version_was_seen_for_its_whole_life() {
        let leases = watched();
        let (short, long) = (Duration::from_millis(50), Duration::from_secs(60));
        let first = leases.note(lease(0, short));
        assert_eq!(
            leases.note(lease(0, short)).due,
            first.due,
            "a version is counted from its first read"
        );
        assert_eq!(leases.ended(9).await.len(), 1);
        assert!(leases.clock.now() >= first.due);
        leases.note(lease(1, long));
        leases.note(lease(0, short));
        let ended = tokio::time::timeout(2 * short, leases.ended(9)).await;
        assert!(ended.is_err(), "a newer version begins anew");
        let known = leases.of_claim(&first.lock, first.claim.id).unwrap();
        leases.mark_outdated(&first);
        assert_eq!(
            leases.get(&first.lock, &first.child.name).map(|lease| lease.version),
            Some(1)
        );
        leases.mark_outdated(&known);
        assert!(leases.of_claim(&first.lock, first.claim.id).is_none());
    }
}
