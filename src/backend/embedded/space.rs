//! The verbs of the trait on one namespace: pure steps over its locks, told the time by the desk.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::sync::mpsc;

use super::desk::{Desk, Slot, SpaceId};
use super::lock::{Claim, Hold, Lock, Stage};
use super::memory::{Ended, Finished, Marks};
use super::record;
use super::watching::{Post, Watchers};
use crate::backend::{
    Change, ChangeKind, ClaimLimits, Departure, Found, Grant, Leaving, Listing, NewClaim, Page, Patience, Place,
    Refusal, Renewal, Seen, Summary, Wake,
};
use crate::claim::{Cause, Queue};
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
    /// Where the holds of this namespace are, by their ids.
    index: HashMap<ClaimId, (LockName, u64)>,
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
            index: HashMap::new(),
            finished: Finished::default(),
            marks: Marks::default(),
            watchers: Watchers::default(),
            post: Post::default(),
        }
    }

    /// See [`crate::backend::Backend::enter`].
    pub fn enter(&mut self, desk: &mut Desk, name: &LockName, coming: &Coming<'_>) -> Place {
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
        self.index.insert(new.id, (name.clone(), place));
        if fits {
            lock.settle();
            return self.grant(desk, name, place, coming.waited, false);
        }
        self.changed(desk, name, ChangeKind::Queued, &new.owner, None);
        self.waiting(desk, name, place)
    }

    /// A call has found the claim of its request: takes over one that waits, notes on a hold that
    /// two calls know it.
    fn adopt(&mut self, desk: &mut Desk, name: &LockName, place: u64, coming: &Coming<'_>) -> Place {
        let new = coming.claim;
        let Some(claim) = self.claim_mut(name, place) else {
            return Place::Gone;
        };
        if let Some(field) = claim.differs(new) {
            return Place::Refused(Refusal::OtherParameters { field });
        }
        let waiting = match &mut claim.stage {
            Stage::Holding(_) => return self.adopt_hold(desk, name, place, new),
            Stage::Waiting(waiting) => waiting,
        };
        let older = std::mem::replace(&mut waiting.hold, Hold::of(new));
        waiting.ttl = new.ttl.get();
        claim.metadata = new.metadata.clone();
        claim.limits = new.limits;
        if older.call != new.call {
            desk.wake(self.id, Wake::Next(name.clone(), new.id));
        }
        let lock = &self.locks[name];
        if lock.eligible(place) {
            return self.grant(desk, name, place, coming.waited, true);
        }
        if new.patience == Patience::Wait {
            return self.waiting(desk, name, place);
        }
        let first = lock.first_holder(desk.now).map(Box::new);
        self.marks.insert(older.call, desk.now);
        self.end_claim(desk, name, place, Cause::Left);
        self.after(desk, name);
        Place::Busy(first)
    }

    fn adopt_hold(&mut self, desk: &mut Desk, name: &LockName, place: u64, new: &NewClaim) -> Place {
        let Some(hold) = self.hold_mut(name, place, &new.id) else {
            return Place::Gone;
        };
        let secret = hold.secret;
        // The same step sent twice is not a second call.
        if hold.call != new.call {
            hold.adopted = true;
        }
        self.save(desk, name, place);
        self.held(desk, name, place, secret, Duration::ZERO)
    }

    fn reenter(&mut self, desk: &mut Desk, name: &LockName, place: u64, new: &NewClaim) -> Place {
        let limit = new.limits.holds;
        let Some(claim) = self.claim_mut(name, place) else {
            return Place::Gone;
        };
        if let Some(field) = claim.differs(new) {
            return Place::Refused(Refusal::OtherParameters { field });
        }
        let Some(holding) = claim.holding_mut() else {
            return Place::Gone;
        };
        if holding.holds.len() >= limit as usize {
            return Place::Refused(Refusal::Full { limit });
        }
        holding.holds.push(Hold::of(new));
        self.index.insert(new.id, (name.clone(), place));
        self.prolong(desk, name, place, new.ttl.get());
        self.save(desk, name, place);
        self.held(desk, name, place, new.secret, Duration::ZERO)
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

    fn release(&mut self, desk: &mut Desk, name: &LockName, lease: &LeaseKey) -> Found {
        let hold = self.find(name, &lease.claim).and_then(|place| {
            let index = self.locks.get(name)?.hold_of(place, lease)?;
            Some((place, index))
        });
        let Some((place, index)) = hold else {
            return self.ended_before(name, lease);
        };
        self.end_hold(desk, name, place, index, Cause::Released);
        Found::Ended(Cause::Released)
    }

    fn ended_before(&self, name: &LockName, lease: &LeaseKey) -> Found {
        let ended = self.finished.by_secret(&lease.secret);
        ended
            .filter(|ended| ended.lock == *name && ended.token == lease.token)
            .map_or(Found::Nothing, |ended| Found::EndedBefore(ended.cause))
    }

    /// Undoes what a call did. What is not its own stays, and the mark stops what comes late.
    fn undo(&mut self, desk: &mut Desk, name: &LockName, id: &ClaimId, call: CallId) -> Found {
        let Some(place) = self.find(name, id) else {
            self.marks.insert(call, desk.now);
            return Found::Nothing;
        };
        let claim = self.locks.get(name).and_then(|lock| lock.get(place));
        match claim.map(|claim| &claim.stage) {
            Some(Stage::Waiting(waiting)) if waiting.hold.call == call => {
                self.end_claim(desk, name, place, Cause::Left);
                Found::Ended(Cause::Left)
            }
            Some(Stage::Holding(holding)) => {
                let own = |hold: &Hold| hold.id == *id && hold.call == call && !hold.adopted;
                let Some(index) = holding.holds.iter().position(own) else {
                    return self.mark_adopted(desk, call);
                };
                self.end_hold(desk, name, place, index, Cause::TakenBack);
                Found::Ended(Cause::TakenBack)
            }
            _ => self.mark_adopted(desk, call),
        }
    }

    fn mark_adopted(&mut self, desk: &Desk, call: CallId) -> Found {
        self.marks.insert(call, desk.now);
        Found::Adopted
    }

    fn force(&mut self, desk: &mut Desk, name: &LockName, token: FencingToken) -> Found {
        if let Some(place) = self.locks.get(name).and_then(|lock| lock.place_of(token)) {
            self.end_claim(desk, name, place, Cause::Forced);
            return Found::Ended(Cause::Forced);
        }
        let ended = self.finished.by_token(name, token);
        ended.map_or(Found::Nothing, |ended| Found::EndedBefore(ended.cause))
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
        let found = self.find(name, &lease.claim).filter(|place| {
            self.locks
                .get(name)
                .is_some_and(|lock| lock.hold_of(*place, lease).is_some())
        });
        let Some(place) = found else {
            return Renewal::Gone(match self.ended_before(name, lease) {
                Found::EndedBefore(cause) => Some(cause),
                _ => None,
            });
        };
        let last = self
            .claim_mut(name, place)
            .and_then(|claim| claim.holding())
            .map(|holding| holding.ttl);
        let ttl = ttl.map(Ttl::get).or(last).unwrap_or_default();
        self.prolong(desk, name, place, ttl);
        if last != Some(ttl) {
            self.save(desk, name, place);
        }
        match self.held(desk, name, place, lease.secret, Duration::ZERO) {
            Place::Held(grant) => Renewal::Renewed(grant),
            _ => Renewal::Gone(None),
        }
    }

    /// Lets a holder live for `ttl` from now, or for as long as it did.
    fn prolong(&mut self, desk: &mut Desk, name: &LockName, place: u64, ttl: Duration) {
        let now = desk.now;
        let Some(holding) = self.claim_mut(name, place).and_then(Claim::holding_mut) else {
            return;
        };
        let before = holding.ends;
        holding.ends = before.max(now + ttl);
        if holding.ttl != ttl {
            holding.ttl = ttl;
            // A shorter TTL must not take away, after a restart, what was promised before it.
            holding.span = holding.ends - now;
        }
        let after = holding.ends;
        desk.ends.remove(&(before, self.id, name.clone(), place));
        desk.ends.insert((after, self.id, name.clone(), place));
    }

    /// See [`crate::backend::Backend::look`].
    pub fn look(&self, desk: &Desk, name: &LockName, most: usize) -> Queue {
        self.locks
            .get(name)
            .map(|lock| lock.view(desk.now, most))
            .unwrap_or_default()
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
        (self.look(desk, name, WATCH_SHOWS), changes)
    }

    /// A holder's time has passed.
    pub fn expire(&mut self, desk: &mut Desk, name: &LockName, place: u64) {
        self.end_claim(desk, name, place, Cause::Expired);
        self.after(desk, name);
    }

    /// Forgets what has been remembered for long enough, so many at once; whether more is left.
    pub fn forget(&mut self, desk: &mut Desk, most: usize) -> bool {
        self.marks.purge(desk.now);
        for _ in 0..most {
            let Some(secret) = self.finished.pop(desk.now, usize::MAX) else {
                return false;
            };
            desk.delete(Slot::finished(self.id, &secret));
        }
        true
    }

    /// Puts a claim where it was when the queue is made anew.
    pub fn restore(&mut self, desk: &mut Desk, name: &LockName, place: u64, claim: Claim) {
        for id in claim.hold_ids() {
            self.index.insert(id, (name.clone(), place));
        }
        if let Some(holding) = claim.holding() {
            desk.ends.insert((holding.ends, self.id, name.clone(), place));
        }
        self.locks.entry(name.clone()).or_default().insert(place, claim);
    }

    /// Forgets all locks and finished calls, for they are read again from the file.
    pub fn clear(&mut self) -> BTreeMap<LockName, Lock> {
        self.index.clear();
        self.finished = Finished::default();
        std::mem::take(&mut self.locks)
    }

    fn find(&self, name: &LockName, id: &ClaimId) -> Option<u64> {
        let (lock, place) = self.index.get(id)?;
        (lock == name).then_some(*place)
    }

    fn claim_mut(&mut self, name: &LockName, place: u64) -> Option<&mut Claim> {
        self.locks.get_mut(name)?.get_mut(place)
    }

    fn hold_mut(&mut self, name: &LockName, place: u64, id: &ClaimId) -> Option<&mut Hold> {
        let holding = self.claim_mut(name, place)?.holding_mut()?;
        holding.holds.iter_mut().find(|hold| hold.id == *id)
    }

    fn waiting(&self, desk: &Desk, name: &LockName, place: u64) -> Place {
        Place::Waiting(self.locks[name].ahead(place, desk.now))
    }

    fn held(&self, desk: &Desk, name: &LockName, place: u64, secret: Secret, waited: Duration) -> Place {
        let claim = self.locks.get(name).and_then(|lock| lock.get(place));
        let grant = claim.and_then(|claim| claim.grant(secret, desk.now, waited));
        grant.map_or(Place::Gone, Place::Held)
    }

    /// Makes an eligible waiting claim a holder: the one place where a token is minted.
    fn grant(&mut self, desk: &mut Desk, name: &LockName, place: u64, waited: Duration, queued: bool) -> Place {
        let Some(token) = desk.mint() else { return Place::Gone };
        let Some(lock) = self.locks.get_mut(name) else {
            return Place::Gone;
        };
        let Some((secret, ttl)) = lock
            .get(place)
            .and_then(Claim::waiting_for)
            .map(|w| (w.hold.secret, w.ttl))
        else {
            return Place::Gone;
        };
        let ends = desk.now + ttl;
        lock.hold(place, token, ends, desk.wall, queued);
        desk.ends.insert((ends, self.id, name.clone(), place));
        self.save(desk, name, place);
        let owner = self.locks[name].get(place).map(|claim| claim.owner.clone());
        if let Some(owner) = owner {
            self.changed(desk, name, ChangeKind::Granted, &owner, Some(token));
        }
        self.held(desk, name, place, secret, waited)
    }

    /// Ends one hold; with its last hold the claim ends.
    fn end_hold(&mut self, desk: &mut Desk, name: &LockName, place: u64, index: usize, cause: Cause) {
        let Some(claim) = self.claim_mut(name, place) else {
            return;
        };
        let limits = claim.limits;
        let Some(holding) = claim.holding_mut() else { return };
        if holding.holds.len() == 1 {
            return self.end_claim(desk, name, place, cause);
        }
        let token = holding.token;
        let hold = holding.holds.swap_remove(index);
        self.index.remove(&hold.id);
        self.remember(desk, name, token, &hold, cause, limits);
        self.save(desk, name, place);
    }

    /// The one way in which a claim ends.
    fn end_claim(&mut self, desk: &mut Desk, name: &LockName, place: u64, cause: Cause) {
        let Some(claim) = self.locks.get_mut(name).and_then(|lock| lock.remove(place)) else {
            return;
        };
        for id in claim.hold_ids() {
            self.index.remove(&id);
        }
        let token = claim.holding().map(|holding| holding.token);
        if let Some(holding) = claim.holding() {
            desk.ends.remove(&(holding.ends, self.id, name.clone(), place));
            desk.delete(Slot::Holder(self.id, name.clone(), place));
            for hold in &holding.holds {
                self.remember(desk, name, holding.token, hold, cause, claim.limits);
            }
        }
        self.changed(desk, name, ChangeKind::Ended(cause), &claim.owner, token);
    }

    /// Remembers how a hold ended. What nobody received is forgotten.
    fn remember(
        &mut self,
        desk: &mut Desk,
        name: &LockName,
        token: FencingToken,
        hold: &Hold,
        cause: Cause,
        limits: ClaimLimits,
    ) {
        let ended = Ended {
            lock: name.clone(),
            token,
            cause,
            id: hold.retryable.then_some(hold.id),
        };
        let Some(record) = record::write_finished(&ended) else {
            return;
        };
        desk.put(Slot::finished(self.id, &hold.secret), || record);
        self.finished.insert(hold.secret, ended, desk.now);
        while let Some(secret) = self.finished.pop(desk.now, limits.finished as usize) {
            desk.delete(Slot::finished(self.id, &secret));
        }
    }

    /// Notes a holder for the file.
    fn save(&self, desk: &mut Desk, name: &LockName, place: u64) {
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

    fn changed(
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
