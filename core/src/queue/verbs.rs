//! The verbs on one lock.

use std::time::Duration;

use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, Secret, Ttl};
use crate::queue::{
    AcquireOutcome, Change, ChangeKind, Claim, EndedKey, Grant, Hold, IncomingClaim, InspectLimit, LockState, Refusal,
    ReleaseOutcome, ReleaseTarget, RenewOutcome, Stage, StepContext, WaitPolicy,
};

impl LockState {
    /// See [`crate::backend::Backend::acquire`].
    pub fn acquire(&mut self, ctx: &mut impl StepContext, incoming: &IncomingClaim<'_>) -> AcquireOutcome {
        let new = incoming.claim;
        if ctx.is_cancelled(&new.call) {
            return AcquireOutcome::Cancelled;
        }
        if let Some(position) = self.find(&new.id) {
            return self.adopt(ctx, position, incoming);
        }
        if let Some(cause) = ctx.ended(EndedKey::Request(new)) {
            return AcquireOutcome::Finished(cause);
        }
        if let Some(refusal) = ctx.store_limit_reached() {
            return AcquireOutcome::Refused(refusal);
        }
        if let Some(position) = self.reentry_target(new) {
            return self.reenter(ctx, position, new);
        }
        if let Some(existing) = self.mismatch(new.mode) {
            return AcquireOutcome::Refused(Refusal::LimitMismatch { existing });
        }
        let fits = self.admits(new.mode);
        if !fits && new.wait_policy == WaitPolicy::NoWait {
            return AcquireOutcome::Busy(self.first_holder(ctx.now()).map(Box::new));
        }
        if self.len() >= new.limits.queue as usize {
            let limit = new.limits.queue;
            return AcquireOutcome::Refused(Refusal::Full { limit });
        }
        let position = self.push(Claim::waiting(new, ctx.replica(), ctx.wall()));
        if fits {
            self.settle();
            return self.grant(ctx, position, incoming.waited, false);
        }
        self.save(ctx, position);
        self.changed_at(ctx, ChangeKind::Queued, position);
        self.waiting(ctx, position)
    }

    /// See [`crate::backend::Backend::promote`].
    pub fn promote(&mut self, ctx: &mut impl StepContext, incoming: &IncomingClaim<'_>) -> AcquireOutcome {
        let new = incoming.claim;
        if ctx.is_cancelled(&new.call) {
            return AcquireOutcome::Cancelled;
        }
        let Some(position) = self.find(&new.id) else {
            let ended = ctx.ended(EndedKey::Waiter(new));
            return ended.map_or(AcquireOutcome::Gone, AcquireOutcome::Finished);
        };
        match self.call_of(position, &new.id) {
            Some((call, _)) if call != new.call => AcquireOutcome::Superseded,
            Some((_, Some(secret))) => self.held(ctx, position, secret, Duration::ZERO),
            _ if self.eligible(position) => self.grant(ctx, position, incoming.waited, true),
            _ => self.waiting(ctx, position),
        }
    }

    /// The call that owns a hold or a waiting claim, and the secret if it is a hold.
    fn call_of(&self, position: u64, id: &ClaimId) -> Option<(CallId, Option<Secret>)> {
        match &self.get(position)?.stage {
            Stage::Waiting(waiting) => Some((waiting.hold.call, None)),
            Stage::Holding(holding) => {
                let hold = holding.holds.iter().find(|hold| hold.id == *id)?;
                Some((hold.call, Some(hold.secret)))
            }
        }
    }

    /// See [`crate::backend::Backend::owns`].
    pub fn owns(&self, id: &ClaimId, call: CallId) -> bool {
        let claim = self.find(id).and_then(|position| self.get(position));
        claim.is_some_and(|claim| match &claim.stage {
            Stage::Waiting(waiting) => waiting.hold.call == call,
            Stage::Holding(holding) => {
                let own = |hold: &Hold| hold.id == *id && hold.call == call && !hold.callers.adopted;
                holding.holds.iter().any(own)
            }
        })
    }

    /// See [`crate::backend::Backend::release`].
    pub fn release(
        &mut self,
        ctx: &mut impl StepContext,
        target: ReleaseTarget<'_>,
        next: Option<IncomingClaim<'_>>,
    ) -> ReleaseOutcome {
        let mut cancelled = None;
        let (released, kept) = match target {
            ReleaseTarget::Hold(lease) => self.release_hold(ctx, lease, None),
            ReleaseTarget::Keeping(lease, time) => self.release_hold(ctx, lease, Some(time)),
            ReleaseTarget::Call(id, call) => (self.undo(ctx, id, call), None),
            ReleaseTarget::Request(id, stream) => {
                let released;
                (released, cancelled) = self.cancel_request(ctx, id, stream);
                (released, None)
            }
            ReleaseTarget::Forced(token) => (self.force(ctx, token), None),
        };
        let next = next.and_then(|next| self.promote_next(ctx, &next));
        self.notify_eligible(ctx);
        ReleaseOutcome {
            released,
            next,
            kept,
            cancelled,
        }
    }

    /// Promotes the named waiter, if its call still owns it and it is eligible.
    fn promote_next(&mut self, ctx: &mut impl StepContext, next: &IncomingClaim<'_>) -> Option<Grant> {
        let position = self.find(&next.claim.id)?;
        self.settle();
        let waiting = self.get(position)?.waiting_for()?;
        if waiting.call != next.claim.call || !self.eligible(position) {
            return None;
        }
        match self.grant(ctx, position, next.waited, true) {
            AcquireOutcome::Held(grant) => Some(grant),
            _ => None,
        }
    }

    /// See [`crate::backend::Backend::renew`].
    pub fn renew(&mut self, ctx: &mut impl StepContext, lease: &LeaseKey, ttl: Option<Ttl>) -> RenewOutcome {
        let found = self.find_hold(lease).and_then(|(position, index)| {
            let hold = self.get_mut(position)?.holding_mut()?.holds.get_mut(index)?;
            Some((position, hold))
        });
        let Some((position, hold)) = found else {
            return RenewOutcome::Gone(ctx.ended(EndedKey::Lease(lease)));
        };
        let ttl = ttl.map_or(hold.ttl, Ttl::get);
        let ttl_changed = std::mem::replace(&mut hold.ttl, ttl) != ttl;
        if self.extend(ctx, position, ttl, ttl_changed) {
            self.save(ctx, position);
        }
        match self.held(ctx, position, lease.secret, Duration::ZERO) {
            AcquireOutcome::Held(grant) => RenewOutcome::Renewed(grant),
            _ => RenewOutcome::Gone(None),
        }
    }

    /// Extends a lease to `ttl` from now, unless it already lives longer. Returns whether more than its end changed: if
    /// the TTL of one of its holds changed, the lease time after a restart is computed anew.
    pub(super) fn extend(
        &mut self,
        ctx: &mut impl StepContext,
        position: u64,
        ttl: Duration,
        ttl_changed: bool,
    ) -> bool {
        let Some(holding) = self.get_mut(position).and_then(Claim::holding_mut) else {
            return false;
        };
        let before = holding.ends;
        holding.ends = before.later(ctx.expiry(ttl));
        // Not the TTL: a shorter TTL must not reduce, after a restart, the time that was granted
        // before.
        let left = holding.ends.remaining(ctx.now());
        let changed = ttl_changed || left > holding.span;
        if changed {
            holding.span = left;
        }
        ctx.expiry_moved(position, Some(before), holding.ends);
        changed
    }

    /// See [`crate::backend::Backend::inspect`]; `now` is a time on the lock's clock.
    pub fn inspect(&self, now: Duration, limit: InspectLimit) -> Queue {
        self.view(now, limit)
    }

    /// See [`crate::backend::Backend::holder`]; `now` is a time on the lock's clock.
    pub fn holder(&self, now: Duration, token: FencingToken) -> Option<Holder> {
        self.get(self.find_token(token)?)?.holder(now)
    }

    /// Extends the prefix over the claims that fit now, and notifies the waiters that became eligible. A queue that was
    /// rebuilt needs it; the verbs do it themselves.
    pub fn notify_eligible(&mut self, ctx: &mut impl StepContext) {
        self.settle();
        for (replica, claim) in self.take_newly_eligible() {
            ctx.notify(replica, claim);
        }
    }

    pub(super) fn waiting(&self, ctx: &impl StepContext, position: u64) -> AcquireOutcome {
        AcquireOutcome::Waiting(self.ahead(position, ctx.now()))
    }

    pub(super) fn held(
        &self,
        ctx: &mut impl StepContext,
        position: u64,
        secret: Secret,
        waited: Duration,
    ) -> AcquireOutcome {
        let held = self.get(position).and_then(|claim| Some((claim, claim.holding()?)));
        held.map_or(AcquireOutcome::Gone, |(claim, holding)| {
            let ttl = ctx.answer_ttl(holding.ends);
            AcquireOutcome::Held(claim.grant(holding, secret, (ttl, waited)))
        })
    }

    /// Makes an eligible waiting claim a holder. Tokens are made only here.
    pub(super) fn grant(
        &mut self,
        ctx: &mut impl StepContext,
        position: u64,
        waited: Duration,
        queued: bool,
    ) -> AcquireOutcome {
        let Some(token) = ctx.next_token() else {
            return AcquireOutcome::Gone;
        };
        let hold = self.get(position).and_then(Claim::waiting_for);
        let Some((secret, ttl)) = hold.map(|hold| (hold.secret, hold.ttl)) else {
            return AcquireOutcome::Gone;
        };
        let ends = ctx.expiry(ttl);
        self.hold(position, token, ends, ctx.wall(), queued);
        ctx.expiry_moved(position, None, ends);
        self.save(ctx, position);
        let held = self.held(ctx, position, secret, waited);
        self.changed_at(ctx, ChangeKind::Granted, position);
        held
    }

    pub(super) fn save(&self, ctx: &mut impl StepContext, position: u64) {
        if let Some(claim) = self.get(position) {
            ctx.saved(position, claim);
        }
    }

    /// Tells watchers of a change of the claim at this position.
    pub(super) fn changed_at(&self, ctx: &mut impl StepContext, kind: ChangeKind, position: u64) {
        if let Some(claim) = self.get(position) {
            self.changed(ctx, kind, claim);
        }
    }

    /// Tells watchers of a change of a claim, which may have left its queue.
    pub(super) fn changed(&self, ctx: &mut impl StepContext, kind: ChangeKind, claim: &Claim) {
        if !ctx.is_watched() {
            return;
        }
        ctx.changed(Change {
            kind,
            claim: claim.terms.labels(),
            token: claim.holding().map(|holding| holding.token),
            holders: self.holders(),
            waiters: self.waiters(),
        });
    }
}
