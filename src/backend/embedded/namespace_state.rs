//! The verbs of the trait on one namespace: pure steps over its locks, at the time of the context.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::sync::mpsc;

use super::history::Finished;
use super::record;
use super::txn_context::{NamespaceId, RecordKey, TxnContext};
use super::watching::Watchers;
use crate::backend::cancel_marks::CancelMarks;
use crate::backend::notifications::NotificationSender;
use crate::backend::{
    AcquireOutcome, Change, ChangeKind, Grant, InspectLimit, LockPage, LockSummary, NewClaim, Notification,
    PageRequest, Refusal, ReleaseOutcome, ReleaseTarget, RenewOutcome, WaitPolicy, WatchEvent,
};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Secret, Ttl};
use crate::queue::lock_state::{Claim, Hold, LockState, Stage};

/// The maximum number of holders, and of waiters, in a watcher's full state.
const WATCH_LIMIT: usize = 1000;

/// A claim of a call, with the time that the call had waited when it sent the step.
pub struct IncomingClaim<'a> {
    pub claim: &'a NewClaim,
    pub waited: Duration,
}

/// One namespace of a store.
#[derive(Debug)]
pub struct NamespaceState {
    pub id: NamespaceId,
    /// Boxed, so that the nodes of the tree, of which half may be empty, are small.
    pub locks: BTreeMap<LockName, Box<LockState>>,
    /// The positions of this namespace's claims: by the ids of their holds, for calls, and by their
    /// tokens, for leases. Claim ids do not suffice: re-entry can keep a claim after its first hold
    /// has ended, and a retry of that hold's request creates another claim of the same id.
    pub(super) by_hold: HashMap<ClaimId, (LockName, u64)>,
    pub(super) by_token: HashMap<FencingToken, (LockName, u64)>,
    pub finished: Finished,
    pub marks: CancelMarks<Duration>,
    pub watchers: Watchers,
    pub notifications: NotificationSender,
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
            notifications: NotificationSender::default(),
        }
    }

    /// See [`crate::backend::Backend::acquire`].
    pub fn acquire(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        incoming: &IncomingClaim<'_>,
        claim_limit: u32,
    ) -> AcquireOutcome {
        let new = incoming.claim;
        if self.marks.contains(&new.call) {
            return AcquireOutcome::Cancelled;
        }
        if let Some(position) = self.find(name, &new.id) {
            return self.adopt(ctx, name, position, incoming);
        }
        if let Some(ended) = self.finished.by_id(&new.id).filter(|ended| ended.lock == *name) {
            return AcquireOutcome::Finished(ended.cause);
        }
        // Waiting claims and holds of all locks count.
        if self.by_hold.len() >= claim_limit as usize {
            return AcquireOutcome::Refused(Refusal::StoreFull { limit: claim_limit });
        }
        let lock = self.locks.entry(name.clone()).or_default();
        if let Some(position) = lock.reentry_target(new) {
            return self.reenter(ctx, name, position, new);
        }
        if let Some(existing) = lock.mismatch(new.mode) {
            return AcquireOutcome::Refused(Refusal::LimitMismatch { existing });
        }
        let fits = lock.admits(new.mode);
        if !fits && new.wait_policy == WaitPolicy::NoWait {
            return AcquireOutcome::Busy(lock.first_holder(ctx.now).map(Box::new));
        }
        if lock.len() >= new.limits.queue as usize {
            let limit = new.limits.queue;
            return AcquireOutcome::Refused(Refusal::Full { limit });
        }
        let position = lock.push(Claim::waiting(new, ctx.wall));
        self.by_hold.insert(new.id, (name.clone(), position));
        if fits {
            lock.settle();
            return self.grant(ctx, name, position, incoming.waited, false);
        }
        self.changed_at(ctx, name, ChangeKind::Queued, position);
        self.waiting(ctx, name, position)
    }

    /// See [`crate::backend::Backend::promote`].
    pub fn promote(&mut self, ctx: &mut TxnContext, name: &LockName, incoming: &IncomingClaim<'_>) -> AcquireOutcome {
        let new = incoming.claim;
        if self.marks.contains(&new.call) {
            return AcquireOutcome::Cancelled;
        }
        let Some(position) = self.find(name, &new.id) else {
            return self
                .finished
                .by_secret(&new.secret)
                .map_or(AcquireOutcome::Gone, |ended| AcquireOutcome::Finished(ended.cause));
        };
        match self.call_of(name, position, &new.id) {
            Some((call, _)) if call != new.call => AcquireOutcome::Superseded,
            Some((_, Some(secret))) => self.held(ctx, name, position, secret, Duration::ZERO),
            _ if self.locks[name].eligible(position) => self.grant(ctx, name, position, incoming.waited, true),
            _ => self.waiting(ctx, name, position),
        }
    }

    /// The call that owns a hold or a waiting claim, and the secret if it is a hold.
    fn call_of(&self, name: &LockName, position: u64, id: &ClaimId) -> Option<(CallId, Option<Secret>)> {
        match &self.locks.get(name)?.get(position)?.stage {
            Stage::Waiting(hold) => Some((hold.call, None)),
            Stage::Holding(holding) => {
                let hold = holding.holds.iter().find(|hold| hold.id == *id)?;
                Some((hold.call, Some(hold.secret)))
            }
        }
    }

    /// See [`crate::backend::Backend::release`].
    pub fn release(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<IncomingClaim<'_>>,
    ) -> ReleaseOutcome {
        let released = match target {
            ReleaseTarget::Hold(lease) => self.release_hold(ctx, name, lease),
            ReleaseTarget::Call(id, call) => self.undo(ctx, name, id, call),
            ReleaseTarget::Forced(token) => self.force(ctx, name, token),
        };
        let next = next.and_then(|next| self.promote_next(ctx, name, &next));
        self.after_step(ctx, name);
        ReleaseOutcome { released, next }
    }

    /// Promotes the named waiter, if its call still owns it and it is eligible.
    fn promote_next(&mut self, ctx: &mut TxnContext, name: &LockName, next: &IncomingClaim<'_>) -> Option<Grant> {
        let position = self.find(name, &next.claim.id)?;
        let lock = self.locks.get_mut(name)?;
        lock.settle();
        let waiting = lock.get(position)?.waiting_for()?;
        if waiting.call != next.claim.call || !lock.eligible(position) {
            return None;
        }
        match self.grant(ctx, name, position, next.waited, true) {
            AcquireOutcome::Held(grant) => Some(grant),
            _ => None,
        }
    }

    /// See [`crate::backend::Backend::renew`].
    pub fn renew(&mut self, ctx: &mut TxnContext, lease: &LeaseKey, ttl: Option<Ttl>) -> RenewOutcome {
        let name = &lease.lock.name;
        let found = self.find_hold(name, lease).and_then(|(position, index)| {
            let hold = self.claim_mut(name, position)?.holding_mut()?.holds.get_mut(index)?;
            Some((position, hold))
        });
        let Some((position, hold)) = found else {
            return RenewOutcome::Gone(self.cause_of(name, lease));
        };
        let ttl = ttl.map_or(hold.ttl, Ttl::get);
        let ttl_changed = std::mem::replace(&mut hold.ttl, ttl) != ttl;
        if self.extend(ctx, name, position, ttl, ttl_changed) {
            self.save(ctx, name, position);
        }
        match self.held(ctx, name, position, lease.secret, Duration::ZERO) {
            AcquireOutcome::Held(grant) => RenewOutcome::Renewed(grant),
            _ => RenewOutcome::Gone(None),
        }
    }

    /// Extends a lease to `ttl` from now, unless it already lives longer. Returns whether the
    /// record changed. If the TTL of one of its holds changed, the lease time after a restart is
    /// computed anew.
    pub(super) fn extend(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        position: u64,
        ttl: Duration,
        ttl_changed: bool,
    ) -> bool {
        let now = ctx.now;
        let Some(holding) = self.claim_mut(name, position).and_then(Claim::holding_mut) else {
            return false;
        };
        let before = holding.ends;
        holding.ends = before.max(now + ttl);
        // Not the TTL: a shorter TTL must not reduce, after a restart, the time that was granted
        // before.
        let left = holding.ends - now;
        let changed = ttl_changed || left > holding.span;
        if changed {
            holding.span = left;
        }
        let after = holding.ends;
        ctx.expiries.remove(&(before, self.id, name.clone(), position));
        ctx.expiries.insert((after, self.id, name.clone(), position));
        changed
    }

    /// See [`crate::backend::Backend::inspect`].
    pub fn inspect(&self, ctx: &TxnContext, name: &LockName, limit: InspectLimit) -> Queue {
        self.locks
            .get(name)
            .map(|lock| lock.view(ctx.now, limit))
            .unwrap_or_default()
    }

    /// See [`crate::backend::Backend::holder`].
    pub fn holder(&self, ctx: &TxnContext, name: &LockName, token: FencingToken) -> Option<Holder> {
        let position = self.find_token(name, token)?;
        self.locks.get(name)?.get(position)?.holder(ctx.now)
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

    /// The queue, and a channel that receives each later change.
    pub fn watch(&mut self, ctx: &TxnContext, name: &LockName) -> (Queue, mpsc::Receiver<WatchEvent>) {
        let changes = self.watchers.add(name, ctx.changes);
        (self.inspect(ctx, name, InspectLimit::of_each(WATCH_LIMIT)), changes)
    }

    /// Forgets at most `limit` entries whose time has passed. Returns whether more may be left.
    pub fn forget(&mut self, ctx: &mut TxnContext, limit: usize) -> bool {
        self.marks.purge(ctx.now);
        for _ in 0..limit {
            let Some(position) = self.finished.pop_old(ctx.now) else {
                return false;
            };
            ctx.delete(RecordKey::Finished(self.id, position));
        }
        true
    }

    /// Inserts a claim at its earlier position when the queue is rebuilt.
    pub fn restore(&mut self, ctx: &mut TxnContext, name: &LockName, position: u64, claim: Claim) {
        for id in claim.hold_ids() {
            self.by_hold.insert(id, (name.clone(), position));
        }
        if let Some(holding) = claim.holding() {
            ctx.expiries.insert((holding.ends, self.id, name.clone(), position));
            self.by_token.insert(holding.token, (name.clone(), position));
        }
        self.locks.entry(name.clone()).or_default().insert(position, claim);
    }

    /// Inserts a waiter into a queue that is rebuilt, unless the file contains its claim. Its
    /// position can be lower than that of a restored holder, because a lock that becomes free
    /// numbers its claims from 0 again; the waiter is then appended.
    pub fn restore_waiter(&mut self, ctx: &mut TxnContext, name: &LockName, position: u64, claim: Claim) {
        if claim.hold_ids().any(|id| self.find(name, &id).is_some()) {
            return;
        }
        let tail = self.locks.get(name).map_or(0, |lock| lock.tail());
        self.restore(ctx, name, position.max(tail), claim);
    }

    /// Drops all locks and finished calls, because they are read from the file again.
    pub fn clear(&mut self) -> BTreeMap<LockName, Box<LockState>> {
        self.by_hold.clear();
        self.by_token.clear();
        self.finished = Finished::default();
        std::mem::take(&mut self.locks)
    }

    pub(super) fn find(&self, name: &LockName, id: &ClaimId) -> Option<u64> {
        let (lock, position) = self.by_hold.get(id)?;
        (lock == name).then_some(*position)
    }

    pub(super) fn find_token(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        let (lock, position) = self.by_token.get(&token)?;
        (lock == name).then_some(*position)
    }

    /// The position of the holder that a lease is of, and the index of its hold.
    pub(super) fn find_hold(&self, name: &LockName, lease: &LeaseKey) -> Option<(u64, usize)> {
        let position = self.find_token(name, lease.token)?;
        Some((position, self.locks.get(name)?.hold_of(position, lease)?))
    }

    pub(super) fn claim_mut(&mut self, name: &LockName, position: u64) -> Option<&mut Claim> {
        self.locks.get_mut(name)?.get_mut(position)
    }

    pub(super) fn hold_mut(&mut self, name: &LockName, position: u64, id: &ClaimId) -> Option<&mut Hold> {
        let holding = self.claim_mut(name, position)?.holding_mut()?;
        holding.holds.iter_mut().find(|hold| hold.id == *id)
    }

    pub(super) fn waiting(&self, ctx: &TxnContext, name: &LockName, position: u64) -> AcquireOutcome {
        AcquireOutcome::Waiting(self.locks[name].ahead(position, ctx.now))
    }

    pub(super) fn held(
        &self,
        ctx: &TxnContext,
        name: &LockName,
        position: u64,
        secret: Secret,
        waited: Duration,
    ) -> AcquireOutcome {
        let claim = self.locks.get(name).and_then(|lock| lock.get(position));
        let grant = claim.and_then(|claim| claim.grant(secret, ctx.now, waited));
        grant.map_or(AcquireOutcome::Gone, AcquireOutcome::Held)
    }

    /// Makes an eligible waiting claim a holder. Tokens are minted only here.
    pub(super) fn grant(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        position: u64,
        waited: Duration,
        queued: bool,
    ) -> AcquireOutcome {
        let Some(token) = ctx.mint() else {
            return AcquireOutcome::Gone;
        };
        let Some(lock) = self.locks.get_mut(name) else {
            return AcquireOutcome::Gone;
        };
        let Some((secret, ttl)) = lock
            .get(position)
            .and_then(Claim::waiting_for)
            .map(|hold| (hold.secret, hold.ttl))
        else {
            return AcquireOutcome::Gone;
        };
        let ends = ctx.now + ttl;
        lock.hold(position, token, ends, ctx.wall, queued);
        ctx.expiries.insert((ends, self.id, name.clone(), position));
        self.by_token.insert(token, (name.clone(), position));
        self.save(ctx, name, position);
        let held = self.held(ctx, name, position, secret, waited);
        self.changed_at(ctx, name, ChangeKind::Granted, position);
        held
    }

    /// Adds a holder's record to the batch's changes.
    pub(super) fn save(&self, ctx: &mut TxnContext, name: &LockName, position: u64) {
        if !ctx.is_durable() {
            return;
        }
        let claim = self.locks.get(name).and_then(|lock| lock.get(position));
        if let Some((claim, holding)) = claim.and_then(|claim| Some((claim, claim.holding()?))) {
            let key = RecordKey::Holder(self.id, name.clone(), position);
            ctx.put(key, || record::write_holder(claim, holding));
        }
    }

    /// Notifies the waiters that became eligible, and drops a lock without claims.
    pub fn after_step(&mut self, ctx: &mut TxnContext, name: &LockName) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        lock.settle();
        for claim in lock.take_newly_eligible() {
            ctx.notify(self.id, Notification::Next(name.clone(), claim));
        }
        if lock.is_empty() {
            self.locks.remove(name);
        }
    }

    /// Tells watchers of a change of the claim at this position.
    pub(super) fn changed_at(&self, ctx: &mut TxnContext, name: &LockName, kind: ChangeKind, position: u64) {
        if self.watchers.any(name)
            && let Some(claim) = self.locks.get(name).and_then(|lock| lock.get(position))
        {
            self.changed(ctx, name, kind, claim);
        }
    }

    /// Tells watchers of a change of a claim, which may have left its queue.
    pub(super) fn changed(&self, ctx: &mut TxnContext, name: &LockName, kind: ChangeKind, claim: &Claim) {
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
            claim: claim.terms.labels(),
            token: claim.holding().map(|holding| holding.token),
            holders,
            waiters,
        };
        ctx.outbox.push(super::txn_context::PendingMessage::Change(
            self.id,
            name.clone(),
            ctx.changes,
            change,
        ));
    }
}
