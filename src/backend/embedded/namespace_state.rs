//! The verbs of the trait on one namespace: pure steps over its locks, told the time by the desk.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::sync::mpsc;

use super::txn_context::{TxnContext, RecordKey, NamespaceId};
use super::lock::{Claim, Hold, Lock, Stage};
use super::history::{Finished, CancelMarks};
use super::record;
use super::watching::{NotificationSender, Watchers};
use crate::backend::{
    Change, ChangeKind, ReleaseOutcome, Released, Grant, ReleaseTarget, LockPage, InspectLimit, NewClaim, PageRequest, WaitPolicy, AcquireOutcome, Refusal,
    RenewOutcome, WatchEvent, LockSummary, Notification,
};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Secret, Ttl};

/// How many holders and waiters a watcher's full state shows at most.
const WATCH_SHOWS: usize = 1000;

/// A claim as it comes, with the time that its call had waited when the step was sent.
pub struct IncomingClaim<'a> {
    pub claim: &'a NewClaim,
    pub waited: Duration,
}

/// One namespace of a store.
#[derive(Debug)]
pub struct NamespaceState {
    pub id: NamespaceId,
    pub locks: BTreeMap<LockName, Lock>,
    /// Where the claims of this namespace are: by the ids of their holds, for calls, and by their
    /// tokens, for leases. Not by their own ids: a claim may live on by re-entry after the hold that
    /// it began with has ended, and a retry of that one begins another claim of the same id.
    pub(super) by_hold: HashMap<ClaimId, (LockName, u64)>,
    pub(super) by_token: HashMap<FencingToken, (LockName, u64)>,
    pub finished: Finished,
    pub marks: CancelMarks,
    pub watchers: Watchers,
    pub post: NotificationSender,
}

impl NamespaceState {
    pub fn new(id: NamespaceId) -> Self {
        Self {
            id,
            locks: BTreeMap::new(),
            by_hold: HashMap::new(),
            by_token: HashMap::new(),
            finished: Finished::default(),
            marks: CancelMarks::default(),
            watchers: Watchers::default(),
            post: NotificationSender::default(),
        }
    }

    /// See [`crate::backend::Backend::acquire`].
    pub fn acquire(&mut self, ctx: &mut TxnContext, name: &LockName, coming: &IncomingClaim<'_>, claim_limit: u32) -> AcquireOutcome {
        let new = coming.claim;
        if self.marks.contains(&new.call) {
            return AcquireOutcome::Cancelled;
        }
        if let Some(place) = self.find(name, &new.id) {
            return self.adopt(ctx, name, place, coming);
        }
        if let Some(ended) = self.finished.by_id(&new.id).filter(|ended| ended.lock == *name) {
            return AcquireOutcome::Finished(ended.cause);
        }
        // Waiting claims and holds alike, in all locks.
        if self.by_hold.len() >= claim_limit as usize {
            return AcquireOutcome::Refused(Refusal::StoreFull { limit: claim_limit });
        }
        let lock = self.locks.entry(name.clone()).or_default();
        if let Some(place) = lock.reentered(new) {
            return self.reenter(ctx, name, place, new);
        }
        if let Some(there) = lock.mismatch(new.mode) {
            return AcquireOutcome::Refused(Refusal::LimitMismatch { there });
        }
        let fits = lock.admits(new.mode);
        if !fits && new.wait_policy == WaitPolicy::Try {
            return AcquireOutcome::Busy(lock.first_holder(ctx.now).map(Box::new));
        }
        if lock.len() >= new.limits.queue as usize {
            let limit = new.limits.queue;
            return AcquireOutcome::Refused(Refusal::Full { limit });
        }
        let place = lock.push(Claim::waiting(new, ctx.wall));
        self.by_hold.insert(new.id, (name.clone(), place));
        if fits {
            lock.settle();
            return self.grant(ctx, name, place, coming.waited, false);
        }
        self.changed(ctx, name, ChangeKind::Queued, &new.owner, None);
        self.waiting(ctx, name, place)
    }

    /// See [`crate::backend::Backend::promote`].
    pub fn promote(&mut self, ctx: &mut TxnContext, name: &LockName, coming: &IncomingClaim<'_>) -> AcquireOutcome {
        let new = coming.claim;
        if self.marks.contains(&new.call) {
            return AcquireOutcome::Cancelled;
        }
        let Some(place) = self.find(name, &new.id) else {
            return self
                .finished
                .by_secret(&new.secret)
                .map_or(AcquireOutcome::Gone, |ended| AcquireOutcome::Finished(ended.cause));
        };
        match self.call_of(name, place, &new.id) {
            Some((call, _)) if call != new.call => AcquireOutcome::Superseded,
            Some((_, Some(secret))) => self.held(ctx, name, place, secret, Duration::ZERO),
            _ if self.locks[name].eligible(place) => self.grant(ctx, name, place, coming.waited, true),
            _ => self.waiting(ctx, name, place),
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

    /// See [`crate::backend::Backend::release`].
    pub fn release(&mut self, ctx: &mut TxnContext, name: &LockName, who: ReleaseTarget<'_>, next: Option<IncomingClaim<'_>>) -> ReleaseOutcome {
        let found = match who {
            ReleaseTarget::Hold(lease) => self.release_hold(ctx, name, lease),
            ReleaseTarget::Call(id, call) => self.undo(ctx, name, id, call),
            ReleaseTarget::Forced(token) => self.force(ctx, name, token),
        };
        let next = next.and_then(|next| self.take_next(ctx, name, &next));
        self.after(ctx, name);
        ReleaseOutcome { found, next }
    }

    /// Takes the named waiter up, if it is still its call's and the rule agrees.
    fn take_next(&mut self, ctx: &mut TxnContext, name: &LockName, next: &IncomingClaim<'_>) -> Option<Grant> {
        let place = self.find(name, &next.claim.id)?;
        let lock = self.locks.get_mut(name)?;
        lock.settle();
        let waiting = lock.get(place)?.waiting_for()?;
        if waiting.hold.call != next.claim.call || !lock.eligible(place) {
            return None;
        }
        match self.grant(ctx, name, place, next.waited, true) {
            AcquireOutcome::Held(grant) => Some(grant),
            _ => None,
        }
    }

    /// See [`crate::backend::Backend::renew`].
    pub fn renew(&mut self, ctx: &mut TxnContext, lease: &LeaseKey, ttl: Option<Ttl>) -> RenewOutcome {
        let name = &lease.lock.name;
        let found = self.find_token(name, lease.token).and_then(|place| {
            let index = self.locks.get(name)?.hold_of(place, lease)?;
            let hold = self.claim_mut(name, place)?.holding_mut()?.holds.get_mut(index)?;
            Some((place, hold))
        });
        let Some((place, hold)) = found else {
            return RenewOutcome::Gone(match self.ended_before(name, lease) {
                Released::EndedBefore(cause) => Some(cause),
                _ => None,
            });
        };
        let ttl = ttl.map_or(hold.ttl, Ttl::get);
        let is_other = std::mem::replace(&mut hold.ttl, ttl) != ttl;
        if self.prolong(ctx, name, place, ttl, is_other) {
            self.save(ctx, name, place);
        }
        match self.held(ctx, name, place, lease.secret, Duration::ZERO) {
            AcquireOutcome::Held(grant) => RenewOutcome::Renewed(grant),
            _ => RenewOutcome::Gone(None),
        }
    }

    /// Lets a holder live for `ttl` from now, or for as long as it did; whether its record changed.
    /// If one of its holds `is_other` than it was, what a restart gives it is counted anew.
    pub(super) fn prolong(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        place: u64,
        ttl: Duration,
        is_other: bool,
    ) -> bool {
        let now = ctx.now;
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
        ctx.ends.remove(&(before, self.id, name.clone(), place));
        ctx.ends.insert((after, self.id, name.clone(), place));
        changed
    }

    /// See [`crate::backend::Backend::inspect`].
    pub fn inspect(&self, ctx: &TxnContext, name: &LockName, most: InspectLimit) -> Queue {
        self.locks
            .get(name)
            .map(|lock| lock.view(ctx.now, most))
            .unwrap_or_default()
    }

    /// See [`crate::backend::Backend::holder`].
    pub fn holder(&self, ctx: &TxnContext, name: &LockName, token: FencingToken) -> Option<Holder> {
        let place = self.find_token(name, token)?;
        self.locks.get(name)?.get(place)?.holder(ctx.now)
    }

    /// See [`crate::backend::Backend::list`].
    pub fn list(&self, ctx: &TxnContext, prefix: &str, page: &PageRequest) -> LockPage {
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
                let next = locks.last().map(|last: &LockSummary| last.lock.as_str().to_owned());
                return LockPage { locks, next };
            }
            locks.push(LockSummary {
                lock: name.clone(),
                holders: lock.holders(),
                waiters: lock.waiters(),
                first: lock.first_holder(ctx.now),
            });
        }
        LockPage { locks, next: None }
    }

    /// The queue, and a line on which each later change comes.
    pub fn watch(&mut self, ctx: &TxnContext, name: &LockName) -> (Queue, mpsc::Receiver<WatchEvent>) {
        let changes = self.watchers.add(name, ctx.changes);
        (self.inspect(ctx, name, InspectLimit::of_each(WATCH_SHOWS)), changes)
    }

    /// Forgets what has been remembered for long enough, so many at once; whether more is left.
    pub fn forget(&mut self, ctx: &mut TxnContext, most: usize) -> bool {
        self.marks.purge(ctx.now);
        for _ in 0..most {
            let Some(secret) = self.finished.pop_old(ctx.now) else {
                return false;
            };
            ctx.delete(RecordKey::finished(self.id, &secret));
        }
        true
    }

    /// Puts a claim where it was when the queue is made anew.
    pub fn restore(&mut self, ctx: &mut TxnContext, name: &LockName, place: u64, claim: Claim) {
        for id in claim.hold_ids() {
            self.by_hold.insert(id, (name.clone(), place));
        }
        if let Some(holding) = claim.holding() {
            ctx.ends.insert((holding.ends, self.id, name.clone(), place));
            self.by_token.insert(holding.token, (name.clone(), place));
        }
        self.locks.entry(name.clone()).or_default().insert(place, claim);
    }

    /// Puts a waiter back into a queue that is made anew, unless the file knows its claim. Its place
    /// may be a lower one than that of a holder that the file brought back, for a lock that falls
    /// free counts from the start again: it comes behind all that are there.
    pub fn restore_waiter(&mut self, ctx: &mut TxnContext, name: &LockName, place: u64, claim: Claim) {
        if claim.hold_ids().any(|id| self.find(name, &id).is_some()) {
            return;
        }
        let tail = self.locks.get(name).map_or(0, Lock::tail);
        self.restore(ctx, name, place.max(tail), claim);
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

    pub(super) fn waiting(&self, ctx: &TxnContext, name: &LockName, place: u64) -> AcquireOutcome {
        AcquireOutcome::Waiting(self.locks[name].ahead(place, ctx.now))
    }

    pub(super) fn held(&self, ctx: &TxnContext, name: &LockName, place: u64, secret: Secret, waited: Duration) -> AcquireOutcome {
        let claim = self.locks.get(name).and_then(|lock| lock.get(place));
        let grant = claim.and_then(|claim| claim.grant(secret, ctx.now, waited));
        grant.map_or(AcquireOutcome::Gone, AcquireOutcome::Held)
    }

    /// Makes an eligible waiting claim a holder: the one place where a token is minted.
    pub(super) fn grant(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        place: u64,
        waited: Duration,
        queued: bool,
    ) -> AcquireOutcome {
        let Some(token) = ctx.mint() else { return AcquireOutcome::Gone };
        let Some(lock) = self.locks.get_mut(name) else {
            return AcquireOutcome::Gone;
        };
        let Some((secret, ttl)) = lock
            .get(place)
            .and_then(Claim::waiting_for)
            .map(|waiting| (waiting.hold.secret, waiting.hold.ttl))
        else {
            return AcquireOutcome::Gone;
        };
        let ends = ctx.now + ttl;
        lock.hold(place, token, ends, ctx.wall, queued);
        ctx.ends.insert((ends, self.id, name.clone(), place));
        self.by_token.insert(token, (name.clone(), place));
        self.save(ctx, name, place);
        let held = self.held(ctx, name, place, secret, waited);
        if let AcquireOutcome::Held(grant) = &held {
            self.changed(ctx, name, ChangeKind::Granted, &grant.owner, Some(token));
        }
        held
    }

    /// Notes a holder for the file.
    pub(super) fn save(&self, ctx: &mut TxnContext, name: &LockName, place: u64) {
        if !ctx.is_durable() {
            return;
        }
        let claim = self.locks.get(name).and_then(|lock| lock.get(place));
        if let Some((claim, holding)) = claim.and_then(|claim| Some((claim, claim.holding()?))) {
            let slot = RecordKey::Holder(self.id, name.clone(), place);
            ctx.put(slot, || record::write_holder(claim, holding));
        }
    }

    /// Wakes who is eligible now, and forgets a lock that nobody uses.
    pub fn after(&mut self, ctx: &mut TxnContext, name: &LockName) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        lock.settle();
        for claim in lock.tell() {
            ctx.wake(self.id, Notification::Next(name.clone(), claim));
        }
        if lock.is_empty() {
            self.locks.remove(name);
        }
    }

    pub(super) fn changed(
        &self,
        ctx: &mut TxnContext,
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
        ctx.changes += 1;
        let change = Change {
            kind,
            owner: owner.clone(),
            token,
            holders,
            waiters,
        };
        ctx.outbox
            .push(super::txn_context::PendingMessage::Change(self.id, name.clone(), ctx.changes, change));
    }
}
