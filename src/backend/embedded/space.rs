//! The verbs of the trait on one namespace: pure steps over its locks, told the time by the desk.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::sync::mpsc;

use super::desk::{Desk, Slot, SpaceId};
use super::lock::{Claim, Hold, Lock, Stage};
use super::memory::{Finished, Marks};
use super::record;
use super::watching::{Post, Watchers};
use crate::backend::{
    Change, ChangeKind, Departure, Found, Grant, Leaving, Listing, Most, NewClaim, Page, Patience, Place, Refusal,
    Renewal, Seen, Summary, Wake,
};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Secret, Ttl};

/// How many holders and waiters a watcher's full state shows at most.
const WATCH_SHOWS: usize = 1000;

/// A claim as it comes, with the time that its call had waited when the step was sent.
pub struct Coming<'a> {
    pub claim: &'a NewClaim,
    pub waited: Duration,
}

/// One namespace of a store.
#[derive(Debug)]
pub struct Space {
    pub id: SpaceId,
    pub locks: BTreeMap<LockName, Lock>,
    /// Where the claims of this namespace are: by the ids of their holds, for calls, and by their
    /// tokens, for leases. Not by their own ids: a claim may live on by re-entry after the hold that
    /// it began with has ended, and a retry of that one begins another claim of the same id.
    pub(super) by_hold: HashMap<ClaimId, (LockName, u64)>,
    pub(super) by_token: HashMap<FencingToken, (LockName, u64)>,
    pub finished: Finished,
    pub marks: Marks,
    pub watchers: Watchers,
    pub post: Post,
}

impl Space {
    pub fn new(id: SpaceId) -> Self {
        Self {
            id,
            locks: BTreeMap::new(),
            by_hold: HashMap::new(),
            by_token: HashMap::new(),
            finished: Finished::default(),
            marks: Marks::default(),
            watchers: Watchers::default(),
            post: Post::default(),
        }
    }

    /// See [`crate::backend::Backend::enter`].
    pub fn enter(&mut self, desk: &mut Desk, name: &LockName, coming: &Coming<'_>, claim_limit: u32) -> Place {
        let new = coming.claim;
        if self.marks.contains(&new.call) {
            return Place::Left;
        }
        if let Some(place) = self.find(name, &new.id) {
            return self.adopt(desk, name, place, coming);
        }
        if let Some(ended) = self.finished.by_id(&new.id).filter(|ended| ended.lock == *name) {
            return Place::Finished(ended.cause);
        }
        // Waiting claims and holds alike, in all locks.
        if self.by_hold.len() >= claim_limit as usize {
            return Place::Refused(Refusal::StoreFull { limit: claim_limit });
        }
        let lock = self.locks.entry(name.clone()).or_default();
        if let Some(place) = lock.reentered(new) {
            return self.reenter(desk, name, place, new);
        }
        if let Some(there) = lock.mismatch(new.mode) {
            return Place::Refused(Refusal::LimitMismatch { there });
        }
        let fits = lock.admits(new.mode);
        if !fits && new.patience == Patience::Try {
            return Place::Busy(lock.first_holder(desk.now).map(Box::new));
        }
        if lock.len() >= new.limits.queue as usize {
            let limit = new.limits.queue;
            return Place::Refused(Refusal::Full { limit });
        }
        let place = lock.push(Claim::waiting(new, desk.wall));
        self.by_hold.insert(new.id, (name.clone(), place));
        if fits {
            lock.settle();
            return self.grant(desk, name, place, coming.waited, false);
        }
        self.changed(desk, name, ChangeKind::Queued, &new.owner, None);
        self.waiting(desk, name, place)
    }

    /// See [`crate::backend::Backend::take_up`].
    pub fn take_up(&mut self, desk: &mut Desk, name: &LockName, coming: &Coming<'_>) -> Place {
        let new = coming.claim;
        if self.marks.contains(&new.call) {
            return Place::Left;
        }
        let Some(place) = self.find(name, &new.id) else {
            return self
                .finished
                .by_secret(&new.secret)
                .map_or(Place::Gone, |ended| Place::Finished(ended.cause));
        };
        match self.call_of(name, place, &new.id) {
            Some((call, _)) if call != new.call => Place::Superseded,
            Some((_, Some(secret))) => self.held(desk, name, place, secret, Duration::ZERO),
            _ if self.locks[name].eligible(place) => self.grant(desk, name, place, coming.waited, true),
            _ => self.waiting(desk, name, place),
        }
    }

    /// The call that a hold or waiting claim belongs to, and the secret if it is a hold.
    fn call_of(&self, name: &LockName, place: u64, id: &ClaimId) -> Option<(CallId, Option<Secret>)> {
        match &self.locks.get(name)?.get(place)?.stage {
            Stage::Waiting(waiting) => Some((waiting.hold.call, None)),
            Stage::Holding(holding) => {
                let hold = holding.holds.iter().find(|hold| hold.id == *id)?;
                Some((hold.call, Some(hold.secret)))
            }
        }
    }

    /// See [`crate::backend::Backend::leave`].
    pub fn leave(&mut self, desk: &mut Desk, name: &LockName, who: Leaving<'_>, next: Option<Coming<'_>>) -> Departure {
        let found = match who {
            Leaving::Hold(lease) => self.release(desk, name, lease),
            Leaving::Call(id, call) => self.undo(desk, name, id, call),
            Leaving::Forced(token) => self.force(desk, name, token),
        };
        let next = next.and_then(|next| self.take_next(desk, name, &next));
        self.after(desk, name);
        Departure { found, next }
    }

    /// Takes the named waiter up, if it is still its call's and the rule agrees.
    fn take_next(&mut self, desk: &mut Desk, name: &LockName, next: &Coming<'_>) -> Option<Grant> {
        let place = self.find(name, &next.claim.id)?;
        let lock = self.locks.get_mut(name)?;
        lock.settle();
        let waiting = lock.get(place)?.waiting_for()?;
        if waiting.hold.call != next.claim.call || !lock.eligible(place) {
            return None;
        }
        match self.grant(desk, name, place, next.waited, true) {
            Place::Held(grant) => Some(grant),
            _ => None,
        }
    }

    /// See [`crate::backend::Backend::renew`].
    pub fn renew(&mut self, desk: &mut Desk, lease: &LeaseKey, ttl: Option<Ttl>) -> Renewal {
        let name = &lease.lock.name;
        let found = self.find_token(name, lease.token).and_then(|place| {
            let index = self.locks.get(name)?.hold_of(place, lease)?;
            let hold = self.claim_mut(name, place)?.holding_mut()?.holds.get_mut(index)?;
            Some((place, hold))
        });
        let Some((place, hold)) = found else {
            return Renewal::Gone(match self.ended_before(name, lease) {
                Found::EndedBefore(cause) => Some(cause),
                _ => None,
            });
        };
        let ttl = ttl.map_or(hold.ttl, Ttl::get);
        let is_other = std::mem::replace(&mut hold.ttl, ttl) != ttl;
        if self.prolong(desk, name, place, ttl, is_other) {
            self.save(desk, name, place);
        }
        match self.held(desk, name, place, lease.secret, Duration::ZERO) {
            Place::Held(grant) => Renewal::Renewed(grant),
            _ => Renewal::Gone(None),
        }
    }

    /// Lets a holder live for `ttl` from now, or for as long as it did; whether its record changed.
    /// If one of its holds `is_other` than it was, what a restart gives it is counted anew.
    pub(super) fn prolong(
        &mut self,
        desk: &mut Desk,
        name: &LockName,
        place: u64,
        ttl: Duration,
        is_other: bool,
    ) -> bool {
        let now = desk.now;
        let Some(holding) = self.claim_mut(name, place).and_then(Claim::holding_mut) else {
            return false;
        };
        let before = holding.ends;
        holding.ends = before.max(now + ttl);
        // Not the TTL: a shorter one must not take away, after a restart, what was promised before.
        let left = holding.ends - now;
        let changed = is_other || left > holding.span;
        if changed {
            holding.span = left;
        }
        let after = holding.ends;
        desk.ends.remove(&(before, self.id, name.clone(), place));
        desk.ends.insert((after, self.id, name.clone(), place));
        changed
    }

    /// See [`crate::backend::Backend::look`].
    pub fn look(&self, desk: &Desk, name: &LockName, most: Most) -> Queue {
        self.locks
            .get(name)
            .map(|lock| lock.view(desk.now, most))
            .unwrap_or_default()
    }

    /// See [`crate::backend::Backend::holder`].
    pub fn holder(&self, desk: &Desk, name: &LockName, token: FencingToken) -> Option<Holder> {
        let place = self.find_token(name, token)?;
        self.locks.get(name)?.get(place)?.holder(desk.now)
    }

    /// See [`crate::backend::Backend::list`].
    pub fn list(&self, desk: &Desk, prefix: &str, page: &Page) -> Listing {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = match &page.after {
            Some(after) if after.as_str() >= prefix => Excluded(after.as_str()),
            _ if prefix.is_empty() => Unbounded,
            _ => Included(prefix),
        };
        let mut locks = Vec::new();
        let found = self.locks.range::<str, _>((from, Unbounded));
        for (name, lock) in found.take_while(|(name, _)| name.as_str().starts_with(prefix)) {
            if locks.len() == page.size {
                let next = locks.last().map(|last: &Summary| last.lock.as_str().to_owned());
                return Listing { locks, next };
            }
            locks.push(Summary {
                lock: name.clone(),
                holders: lock.holders(),
                waiters: lock.waiters(),
                first: lock.first_holder(desk.now),
            });
        }
        Listing { locks, next: None }
    }

    /// The queue, and a line on which each later change comes.
    pub fn watch(&mut self, desk: &Desk, name: &LockName) -> (Queue, mpsc::Receiver<Seen>) {
        let changes = self.watchers.add(name, desk.changes);
        (self.look(desk, name, Most::of_each(WATCH_SHOWS)), changes)
    }

    /// Forgets what has been remembered for long enough, so many at once; whether more is left.
    pub fn forget(&mut self, desk: &mut Desk, most: usize) -> bool {
        self.marks.purge(desk.now);
        for _ in 0..most {
            let Some(secret) = self.finished.pop_old(desk.now) else {
                return false;
            };
            desk.delete(Slot::finished(self.id, &secret));
        }
        true
    }

    /// Puts a claim where it was when the queue is made anew.
    pub fn restore(&mut self, desk: &mut Desk, name: &LockName, place: u64, claim: Claim) {
        for id in claim.hold_ids() {
            self.by_hold.insert(id, (name.clone(), place));
        }
        if let Some(holding) = claim.holding() {
            desk.ends.insert((holding.ends, self.id, name.clone(), place));
            self.by_token.insert(holding.token, (name.clone(), place));
        }
        self.locks.entry(name.clone()).or_default().insert(place, claim);
    }

    /// Puts a waiter back into a queue that is made anew, unless the file knows its claim. Its place
    /// may be a lower one than that of a holder that the file brought back, for a lock that falls
    /// free counts from the start again: it comes behind all that are there.
    pub fn restore_waiter(&mut self, desk: &mut Desk, name: &LockName, place: u64, claim: Claim) {
        if claim.hold_ids().any(|id| self.find(name, &id).is_some()) {
            return;
        }
        let tail = self.locks.get(name).map_or(0, Lock::tail);
        self.restore(desk, name, place.max(tail), claim);
    }

    /// Forgets all locks and finished calls, for they are read again from the file.
    pub fn clear(&mut self) -> BTreeMap<LockName, Lock> {
        self.by_hold.clear();
        self.by_token.clear();
        self.finished = Finished::default();
        std::mem::take(&mut self.locks)
    }

    pub(super) fn find(&self, name: &LockName, id: &ClaimId) -> Option<u64> {
        let (lock, place) = self.by_hold.get(id)?;
        (lock == name).then_some(*place)
    }

    pub(super) fn find_token(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        let (lock, place) = self.by_token.get(&token)?;
        (lock == name).then_some(*place)
    }

    pub(super) fn claim_mut(&mut self, name: &LockName, place: u64) -> Option<&mut Claim> {
        self.locks.get_mut(name)?.get_mut(place)
    }

    pub(super) fn hold_mut(&mut self, name: &LockName, place: u64, id: &ClaimId) -> Option<&mut Hold> {
        let holding = self.claim_mut(name, place)?.holding_mut()?;
        holding.holds.iter_mut().find(|hold| hold.id == *id)
    }

    pub(super) fn waiting(&self, desk: &Desk, name: &LockName, place: u64) -> Place {
        Place::Waiting(self.locks[name].ahead(place, desk.now))
    }

    pub(super) fn held(&self, desk: &Desk, name: &LockName, place: u64, secret: Secret, waited: Duration) -> Place {
        let claim = self.locks.get(name).and_then(|lock| lock.get(place));
        let grant = claim.and_then(|claim| claim.grant(secret, desk.now, waited));
        grant.map_or(Place::Gone, Place::Held)
    }

    /// Makes an eligible waiting claim a holder: the one place where a token is minted.
    pub(super) fn grant(
        &mut self,
        desk: &mut Desk,
        name: &LockName,
        place: u64,
        waited: Duration,
        queued: bool,
    ) -> Place {
        let Some(token) = desk.mint() else { return Place::Gone };
        let Some(lock) = self.locks.get_mut(name) else {
            return Place::Gone;
        };
        let Some((secret, ttl)) = lock
            .get(place)
            .and_then(Claim::waiting_for)
            .map(|waiting| (waiting.hold.secret, waiting.hold.ttl))
        else {
            return Place::Gone;
        };
        let ends = desk.now + ttl;
        lock.hold(place, token, ends, desk.wall, queued);
        desk.ends.insert((ends, self.id, name.clone(), place));
        self.by_token.insert(token, (name.clone(), place));
        self.save(desk, name, place);
        let held = self.held(desk, name, place, secret, waited);
        if let Place::Held(grant) = &held {
            self.changed(desk, name, ChangeKind::Granted, &grant.owner, Some(token));
        }
        held
    }

    /// Notes a holder for the file.
    pub(super) fn save(&self, desk: &mut Desk, name: &LockName, place: u64) {
        if !desk.is_durable() {
            return;
        }
        let claim = self.locks.get(name).and_then(|lock| lock.get(place));
        if let Some((claim, holding)) = claim.and_then(|claim| Some((claim, claim.holding()?))) {
            let slot = Slot::Holder(self.id, name.clone(), place);
            desk.put(slot, || record::write_holder(claim, holding));
        }
    }

    /// Wakes who is eligible now, and forgets a lock that nobody uses.
    pub fn after(&mut self, desk: &mut Desk, name: &LockName) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        lock.settle();
        for claim in lock.tell() {
            desk.wake(self.id, Wake::Next(name.clone(), claim));
        }
        if lock.is_empty() {
            self.locks.remove(name);
        }
    }

    pub(super) fn changed(
        &self,
        desk: &mut Desk,
        name: &LockName,
        kind: ChangeKind,
        owner: &crate::name::Owner,
        token: Option<FencingToken>,
    ) {
        if !self.watchers.any(name) {
            return;
        }
        let (holders, waiters) = self
            .locks
            .get(name)
            .map_or((0, 0), |lock| (lock.holders(), lock.waiters()));
        desk.changes += 1;
        let change = Change {
            kind,
            owner: owner.clone(),
            token,
            holders,
            waiters,
        };
        desk.outbox
            .push(super::desk::Mail::Change(self.id, name.clone(), desk.changes, change));
    }
}
