//! Calls that find an existing claim: a retry adopts its own, a reentrant call joins its owner's.

use std::time::Duration;

use crate::claim::Cause;
use crate::queue::{
    AcquireOutcome, Hold, IncomingClaim, LockState, NewClaim, Refusal, Stage, StepContext, WaitPolicy, Waiting,
};

impl LockState {
    /// Adopts the claim of the call's request: takes over a waiting claim, or marks a hold as known
    /// to two calls.
    pub(super) fn adopt(
        &mut self,
        ctx: &mut impl StepContext,
        position: u64,
        incoming: &IncomingClaim<'_>,
    ) -> AcquireOutcome {
        let new = incoming.claim;
        let Some(claim) = self.get_mut(position) else {
            return AcquireOutcome::Gone;
        };
        if claim
            .hold(&new.id)
            .is_some_and(|hold| hold.callers.supersede(new.stream))
        {
            return AcquireOutcome::Superseded;
        }
        if let Some(field) = claim.terms.differs(new) {
            return AcquireOutcome::Refused(Refusal::OtherParameters { field });
        }
        let waiting = match &mut claim.stage {
            Stage::Holding(_) => return self.adopt_hold(ctx, position, new),
            Stage::Waiting(waiting) => waiting,
        };
        let mut adopting = Waiting {
            hold: Hold::of(new),
            replica: ctx.replica(),
        };
        adopting.hold.callers = adopting.hold.callers.after(waiting.hold.callers);
        let older = std::mem::replace(waiting, adopting);
        claim.terms.metadata = new.metadata.clone();
        claim.limits = new.limits;
        ctx.saved(position, claim);
        if older.hold.call != new.call {
            ctx.notify(older.replica, new.id);
        }
        if self.eligible(position) {
            return self.grant(ctx, position, incoming.waited, true);
        }
        if new.wait_policy == WaitPolicy::Wait {
            return self.waiting(ctx, position);
        }
        let first = self.first_holder(ctx.now()).map(Box::new);
        ctx.cancel(older.hold.call);
        self.end(ctx, position, Cause::Cancelled);
        AcquireOutcome::Busy(first)
    }

    fn adopt_hold(&mut self, ctx: &mut impl StepContext, position: u64, new: &NewClaim) -> AcquireOutcome {
        let Some(claim) = self.get_mut(position) else {
            return AcquireOutcome::Gone;
        };
        let Some(hold) = claim.hold_mut(&new.id) else {
            return AcquireOutcome::Gone;
        };
        let secret = hold.secret;
        // The same step, sent twice, is not a second call.
        if hold.call != new.call && hold.callers.found(new.stream) {
            hold.call = new.call;
        }
        ctx.saved(position, claim);
        self.held(ctx, position, secret, Duration::ZERO)
    }

    pub(super) fn reenter(&mut self, ctx: &mut impl StepContext, position: u64, new: &NewClaim) -> AcquireOutcome {
        let limit = new.limits.holds;
        let Some(claim) = self.get(position) else {
            return AcquireOutcome::Gone;
        };
        if let Some(field) = claim.terms.differs(new) {
            return AcquireOutcome::Refused(Refusal::OtherParameters { field });
        }
        let Some(holding) = claim.holding() else {
            return AcquireOutcome::Gone;
        };
        if holding.holds.len() >= limit as usize {
            return AcquireOutcome::Refused(Refusal::Full { limit });
        }
        self.add_hold(position, Hold::of(new));
        self.extend(ctx, position, new.ttl.get(), true);
        self.save(ctx, position);
        self.held(ctx, position, new.secret, Duration::ZERO)
    }
}
