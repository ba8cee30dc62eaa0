//! The leases that this replica watches over.
//!
//! A holder's data states for how long its lease lives. A replica that has seen one lease for that long, counted from the
//! answer to its read, may delete the holder at the version that it read last: a client that counts on this lease, or on an
//! older one, counts from the sending of the write, which was before. No clock is compared with another. Every replica watches over
//! the leases that it reads, so the leases of a dead replica end too.
//!
//! A grant or renewal draws the number of its lease. A write that does not extend the lease (new metadata) keeps that
//! number. A replica that has seen a lease in any version counts from then.
//!
//! After an old copy of the store was put back, a version and a transaction may be written a second time. So only its
//! number tells which lease a version has, and what is known of a holder counts only for steps that are sent over the
//! connection over which it was read or written. Over a new connection it is read again.

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
    /// The connection over which this version was read or written.
    pub read_over: u64,
    /// This replica wrote this version. Otherwise another one renews it, and may have done so since.
    pub is_own: bool,
    /// It has another version by now, or may have.
    pub is_outdated: bool,
    /// When this lease is over for certain, by this version and the others that were seen.
    pub due: Duration,
}

impl Lease {
    /// This version, whose lease is over no later than in one that was `known`, if it is the same lease.
    fn after(self, known: &Self) -> Self {
        let is_same = self.claim.lease == known.claim.lease;
        let due = if is_same { self.due.min(known.due) } else { self.due };
        Self { due, ..self }
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
    /// Notified when an event told another version of a holder.
    changed: Notify,
}

#[derive(Debug, Default)]
struct LeaseTable {
    by_child: HashMap<Key, Lease>,
    by_claim: HashMap<(LockName, ClaimId), String>,
    /// How many claims of a lock are known, or being granted to readers, and how many of them are readers.
    held: HashMap<LockName, (usize, usize)>,
    ends: BTreeSet<(Duration, Key)>,
    /// Those of which an event told another version, until they are read.
    changed: BTreeSet<Key>,
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
            changed: Notify::new(),
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
            due: self.clock.now() + claim.life,
            claim: Arc::new(claim),
            version: stat.version,
            read_over,
            is_own: false,
            is_outdated: false,
        })
    }

    /// Notes a holder as a step of this replica has rewritten it, over the connection over which it was known.
    pub fn rewritten(&self, lease: &Lease, claim: Claim, stat: &Stat) -> Lease {
        self.note(Lease {
            due: self.clock.now() + claim.life,
            claim: Arc::new(claim),
            version: stat.version,
            is_own: true,
            ..lease.clone()
        })
    }

    /// The claim for a version that continues a lease.
    pub fn claim_with_this_lease(&self, lease: &Lease) -> Claim {
        self.claim_living(lease, self.remaining(lease))
    }

    /// The claim for a version whose lease has this life from now on.
    pub fn claim_living(&self, lease: &Lease, life: Duration) -> Claim {
        let kept = self.kept(lease);
        Claim {
            life: life.max(kept),
            kept: (!kept.is_zero()).then_some(kept),
            ..Claim::clone(&lease.claim)
        }
    }

    /// How long a claim stays although its holds have ended.
    pub fn kept(&self, lease: &Lease) -> Duration {
        let Some(kept) = lease.claim.kept else {
            return Duration::ZERO;
        };
        let longer = lease.claim.life.saturating_sub(kept);
        self.remaining(lease).saturating_sub(longer)
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
            lease = lease.after(known);
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

    /// The holder of this name, if it is known over this connection.
    pub fn get(&self, lock: &LockName, name: &str, read_over: u64) -> Option<Lease> {
        let key = (lock.clone(), name.to_owned());
        let state = self.state.lock();
        let known = state.by_child.get(&key);
        known
            .filter(|lease| !lease.is_outdated && lease.read_over == read_over)
            .cloned()
    }

    /// The holder of this claim, if it is known.
    pub fn of_claim(&self, lock: &LockName, claim: ClaimId) -> Option<Lease> {
        let state = self.state.lock();
        let name = state.by_claim.get(&(lock.clone(), claim))?;
        let lease = state.by_child.get(&(lock.clone(), name.clone()));
        lease.filter(|lease| !lease.is_outdated).cloned()
    }

    /// Forgets a holder that is gone, as this connection shows, unless a later one has shown it.
    pub fn forget(&self, lock: &LockName, name: &str, read_over: u64) {
        let key = (lock.clone(), name.to_owned());
        let mut state = self.state.lock();
        if state
            .by_child
            .get(&key)
            .is_some_and(|lease| lease.read_over <= read_over)
        {
            state.remove(&key);
        }
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

    /// An event told that a known holder has another version: a release at another replica may have shortened its life.
    pub fn note_changed(&self, lock: &LockName, name: &str) {
        let key = (lock.clone(), name.to_owned());
        let mut state = self.state.lock();
        if state.by_child.contains_key(&key) {
            state.changed.insert(key);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Waits for holders of which an event told another version.
    pub async fn changed(&self) -> Vec<Lease> {
        loop {
            let changed = {
                let mut state = self.state.lock();
                let keys = std::mem::take(&mut state.changed);
                let changed = keys.iter().filter_map(|key| state.by_child.get(key).cloned());
                changed.collect::<Vec<_>>()
            };
            if !changed.is_empty() {
                return changed;
            }
            self.changed.notified().await;
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
    use tokio::time::advance;

    use super::*;
    use crate::backend::NewClaim;
    use crate::backend::local_clock::TokioClock;

    fn watched() -> WatchedLeases {
        WatchedLeases::new(Arc::new(TokioClock::default()))
    }

    const LIFE: Duration = Duration::from_secs(60);

    /// A version of one holder, with the lease of this number, as it is read over this connection.
    fn read(leases: &WatchedLeases, version: Version, number: u64, read_over: u64) -> Lease {
        let new = NewClaim::numbered(1);
        let claim = Claim {
            life: LIFE,
            lease: number,
            ..Claim::of(&new)
        };
        let child = Child::parse(&Child::holder_name(&new, 0)).unwrap();
        let stat = Stat::of_new(7, version);
        let lock = LockName::new("a").unwrap();
        leases.seen_now((&lock, &child), claim, &stat, read_over).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_counts_from_when_it_was_first_seen_in_any_version() {
        let leases = watched();
        let first = leases.note(read(&leases, 3, 1, 1));
        leases.mark_outdated(&first);
        assert!(leases.get(&first.lock, &first.child.name, 1).is_none());
        advance(LIFE / 4).await;
        let updated = Claim {
            life: 2 * LIFE,
            ..leases.claim_with_this_lease(&first)
        };
        let updated = leases.rewritten(&first, updated, &Stat::of_new(7, 4));
        assert_eq!((updated.due, updated.version), (first.due, 4));
        // As versions go that are written a second time.
        for (version, read_over) in [(5, 1), (2, 2), (4, 3)] {
            let noted = leases.note(read(&leases, version, 1, read_over));
            assert_eq!((noted.due, noted.version), (first.due, version));
        }
        let renewed = leases.note(read(&leases, 4, 2, 4));
        assert!(renewed.due > first.due, "another lease has the same version");
        advance(LIFE / 4).await;
        assert!(leases.note(read(&leases, 5, 3, 4)).due > renewed.due);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_read_over_an_earlier_connection_comes_late() {
        let leases = watched();
        leases.note(read(&leases, 3, 1, 1));
        advance(LIFE / 4).await;
        assert_eq!(leases.known_before(2).len(), 1);
        let known = leases.note(read(&leases, 3, 2, 2));
        assert!(leases.known_before(2).is_empty());
        let late = leases.note(read(&leases, 9, 3, 1));
        assert_eq!((late.due, late.version), (known.due, 3));
        let name = &known.child.name;
        leases.forget(&known.lock, name, 1);
        let of = |connection| leases.get(&known.lock, name, connection).map(|lease| lease.version);
        assert_eq!([of(1), of(2), of(3)], [None, Some(3), None]);
        leases.forget(&known.lock, name, 2);
        assert!(leases.of_claim(&known.lock, known.claim.id).is_none());
    }

    #[test]
    fn a_claim_draws_the_number_of_each_lease() {
        let claim = Claim::of(&NewClaim::numbered(1));
        let [one, other] = [(); 2].map(|()| claim.clone().with_new_lease().unwrap());
        assert_ne!(one.lease, other.lease);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_when_it_was_seen_for_its_whole_life() {
        let leases = watched();
        let first = leases.note(read(&leases, 0, 1, 1));
        assert_eq!(leases.ended(9).await.len(), 1);
        assert!(leases.clock.now() >= first.due);
        leases.note(read(&leases, 1, 2, 1));
        leases.note(read(&leases, 0, 1, 1));
        let ended = tokio::time::timeout(LIFE / 2, leases.ended(9)).await;
        assert!(ended.is_err(), "a newer version begins anew");
        let known = leases.of_claim(&first.lock, first.claim.id).unwrap();
        leases.mark_outdated(&first);
        assert_eq!(
            leases.get(&first.lock, &first.child.name, 1).map(|lease| lease.version),
            Some(1)
        );
        leases.mark_outdated(&known);
        assert!(leases.of_claim(&first.lock, first.claim.id).is_none());
    }
}
