//! The leases that this replica watches over.
//!
//! A holder's data states for how long its version lives. A replica that has seen one version for that long, counted from
//! the answer to its read, may delete the holder at that version: a client that counts on this version, or on an older one,
//! counts from the sending of the write, which was before. No clock is compared with another. Every replica watches over
//! the leases that it reads, so the leases of a dead replica end too.
//!
//! A write that does not extend the lease (new metadata) names the grant or renewal that it inherits the lease from, and
//! expires with it. A replica that has seen that lease in an earlier version counts from then.
//!
//! An old copy of the store that is put back may write a version a second time, so what is known of a holder counts only
//! for steps that are sent over the connection over which it was read or written. Over a new connection it is read again.

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
    /// The connection over which this version was read or written.
    pub read_over: u64,
    /// The transaction that granted the lease, or renewed it last.
    pub lease_began: i64,
    /// This replica wrote this version. Otherwise another one renews it, and may have done so since.
    pub is_own: bool,
    /// It has another version by now, or may have.
    pub is_outdated: bool,
    /// When this lease is over for certain, by this version and the earlier ones that were seen.
    pub due: Duration,
}

impl Lease {
    /// Whether this is the lease that was `known`, or goes on with it: the same version, written by the same transaction, or
    /// a later one that does not extend it.
    fn goes_on_with(&self, known: &Self) -> bool {
        let is_same = (known.version, known.modified) == (self.version, self.modified);
        let inherits =
            known.lease_began == self.lease_began && known.version < self.version && known.modified < self.modified;
        known.token == self.token && (is_same || inherits)
    }
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
            *all -= 1;
            *readers -= usize::from(mode == Mode::Shared);
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

    /// A holder that was just read or written over this connection.
    pub fn seen_now(
        &self,
        (lock, child): (&LockName, &Child),
        claim: Claim,
        stat: &Stat,
        read_over: u64,
    ) -> Result<Lease, Failure> {
        Ok(Lease {
            lock: lock.clone(),
            child: child.clone(),
            token: claim.token(stat.created)?,
            lease_began: claim.lease_began(stat),
            due: self.clock.now() + claim.life,
            claim: Arc::new(claim),
            version: stat.version,
            modified: stat.modified,
            read_over,
            is_own: false,
            is_outdated: false,
        })
    }

    /// Notes a holder as a step of this replica has rewritten it, over the connection over which it was known.
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
            let [before, now] = [&*known, &lease].map(|lease| (lease.read_over, lease.version));
            if before >= now {
                known.is_outdated &= before > now;
                return known.clone();
            }
            if lease.goes_on_with(known) {
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

    /// The holders that are known, but not over this connection.
    pub fn known_before(&self, connection: u64) -> Vec<Lease> {
        let state = self.state.lock();
        let known = state.by_child.values();
        known.filter(|lease| lease.read_over != connection).cloned().collect()
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
            .seen_now((&LockName::new("a").unwrap(), &child), claim, &stat, 1)
            .unwrap()
    }

    /// When a lease is over that is read a second later, over a new connection, than this one that is known.
    fn due_again(known: &Lease, read: Lease) -> Duration {
        let leases = watched();
        leases.note(known.clone());
        assert_eq!(leases.known_before(2).len(), 1);
        let due = known.due + Duration::from_secs(1);
        let read_over = 2;
        let noted = leases.note(Lease { due, read_over, ..read });
        assert!(leases.known_before(2).is_empty());
        leases.note(known.clone());
        let by_claim = leases.of_claim(&known.lock, known.claim.id).unwrap();
        assert_eq!(
            by_claim.due, noted.due,
            "what was read over an earlier connection comes late"
        );
        noted.due
    }

    #[test]
    fn a_version_that_another_transaction_wrote_counts_anew_over_a_new_connection() {
        let known = lease(3, Duration::from_secs(60));
        assert_eq!(due_again(&known, known.clone()), known.due);
        let modified = known.modified - 1;
        let other = Lease {
            modified,
            ..known.clone()
        };
        assert_eq!(due_again(&known, other), known.due + Duration::from_secs(1));
    }

    #[test]
    fn a_later_version_that_goes_on_with_the_lease_counts_from_when_that_was_seen_over_a_new_connection_too() {
        let life = Duration::from_secs(60);
        let known = lease(3, life);
        let (later, goes_on) = (
            known.due + Duration::from_secs(1),
            watched().claim_with_this_lease(&known),
        );
        let again = |version, modified, claim: &Claim| {
            let stat = Stat {
                version,
                modified,
                ..Stat::of_new(7, 0)
            };
            let holder = (&known.lock, &known.child);
            due_again(&known, watched().seen_now(holder, claim.clone(), &stat, 2).unwrap())
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
            let holder = (&known.lock, &known.child);
            let read = watched().seen_now(holder, claim, &stat, 1).unwrap();
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
