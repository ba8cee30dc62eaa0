//! How claims and holds end. Every end passes through [`LockState::end_claim`] or, for one hold of several,
//! [`LockState::end_hold`], with its cause.

use std::time::Duration;

use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, Secret};
use crate::queue::{
    ChangeKind, Claim, EndedHold, EndedKey, Hold, Kept, LockState, Released, Stage, StepContext, StreamNumber,
};

impl LockState {
    /// Ends the claim at this position, with all its holds, and notifies the waiters that fit then: a holder whose lease
    /// has expired, or a waiter whose replica is gone ([`Cause::Cancelled`]).
    pub fn end(&mut self, ctx: &mut impl StepContext, position: u64, cause: Cause) {
        self.end_claim(ctx, position, cause);
        self.notify_eligible(ctx);
    }

    /// Releases a hold, after which the claim stays for `keep_for`. Also returns how long it stays; the first release of a
    /// hold decides that.
    pub(super) fn release_hold(
        &mut self,
        ctx: &mut impl StepContext,
        lease: &LeaseKey,
        keep_for: Option<Duration>,
    ) -> (Released, Option<Duration>) {
        let Some((position, index)) = self.find_hold(lease) else {
            let released = Released::before(ctx.ended(EndedKey::Lease(lease)));
            let is_released = released == Released::EndedBefore(Cause::Released);
            let kept = is_released.then(|| self.kept(lease.token)).flatten();
            return (released, kept.map(|kept| kept.ends.remaining(ctx.now())));
        };
        if let Some(time) = keep_for {
            self.keep(ctx, position, time);
        }
        self.end_hold(ctx, position, index, Cause::Released);
        (Released::Ended(Cause::Released), keep_for)
    }

    fn kept(&self, token: FencingToken) -> Option<Kept> {
        self.get(self.find_token(token)?)?.holding()?.kept
    }

    /// Keeps a claim for at least this time, also after its last hold has ended.
    fn keep(&mut self, ctx: &mut impl StepContext, position: u64, time: Duration) {
        let Some(holding) = self.get_mut(position).and_then(Claim::holding_mut) else {
            return;
        };
        let ends = ctx.expiry(time);
        let kept = holding.kept.map_or(ends, |kept| kept.ends.later(ends));
        let span = kept.remaining(ctx.now());
        holding.kept = Some(Kept { ends: kept, span });
        let before = holding.ends;
        holding.ends = before.later(kept);
        holding.span = holding.span.max(span);
        ctx.expiry_moved(position, Some(before), holding.ends);
    }

    /// Undoes a call. What the call does not own stays, and a cancel mark stops its late steps.
    pub(super) fn undo(&mut self, ctx: &mut impl StepContext, id: &ClaimId, call: CallId) -> Released {
        let Some(position) = self.find(id) else {
            ctx.cancel(call);
            return Released::Nothing;
        };
        match self.get(position).map(|claim| &claim.stage) {
            Some(Stage::Waiting(waiting)) if waiting.hold.call == call => {
                self.end_claim(ctx, position, Cause::Cancelled);
                Released::Ended(Cause::Cancelled)
            }
            Some(Stage::Holding(holding)) => {
                let own = |hold: &Hold| hold.id == *id && hold.call == call && !hold.callers.adopted;
                let Some(index) = holding.holds.iter().position(own) else {
                    return mark_adopted(ctx, call);
                };
                self.end_hold(ctx, position, index, Cause::Undone);
                Released::Ended(Cause::Undone)
            }
            _ => mark_adopted(ctx, call),
        }
    }

    /// Takes out what a request has: its waiting claim, or its hold. A hold that no call of this session has asked for last, or
    /// one of a later stream, stays. Also returns the secret of the hold.
    pub(super) fn cancel_request(
        &mut self,
        ctx: &mut impl StepContext,
        id: &ClaimId,
        stream: StreamNumber,
    ) -> (Released, Option<Secret>) {
        let position = self.find(id);
        let Some((position, claim)) = position.and_then(|position| Some((position, self.get(position)?))) else {
            return (Released::Nothing, None);
        };
        let Some(hold) = claim.hold(id).filter(|hold| hold.callers.are_of(stream)) else {
            return (Released::Adopted, None);
        };
        let secret = hold.secret;
        // Its call may still be waiting, and must not acquire again.
        ctx.cancel(hold.call);
        match &claim.stage {
            Stage::Waiting(waiting) => {
                ctx.notify(waiting.replica, *id);
                self.end_claim(ctx, position, Cause::Cancelled);
                (Released::Ended(Cause::Cancelled), None)
            }
            Stage::Holding(holding) => {
                let index = holding.holds.iter().position(|hold| hold.id == *id);
                self.end_hold(ctx, position, index.unwrap_or_default(), Cause::Undone);
                (Released::Ended(Cause::Undone), Some(secret))
            }
        }
    }

    pub(super) fn force(&mut self, ctx: &mut impl StepContext, token: FencingToken) -> Released {
        if let Some(position) = self.find_token(token) {
            self.end_claim(ctx, position, Cause::Forced);
            return Released::Ended(Cause::Forced);
        }
        Released::before(ctx.ended(EndedKey::Token(token)))
    }

    /// Ends one hold. The claim ends with its last hold, unless it is kept.
    fn end_hold(&mut self, ctx: &mut impl StepContext, position: u64, index: usize, cause: Cause) {
        let Some(holding) = self.get_mut(position).and_then(Claim::holding_mut) else {
            return;
        };
        let is_last = holding.holds.len() == 1;
        if is_last {
            let now = ctx.now();
            let Some(kept) = holding.kept.filter(|kept| !kept.ends.remaining(now).is_zero()) else {
                return self.end_claim(ctx, position, cause);
            };
            let before = std::mem::replace(&mut holding.ends, kept.ends);
            holding.span = kept.span;
            ctx.expiry_moved(position, Some(before), kept.ends);
        }
        let hold = self.remove_hold(position, index);
        if let (Some(hold), Some(claim)) = (hold, self.get(position)) {
            remember(ctx, claim, &hold, cause);
            ctx.saved(position, claim);
            if is_last {
                self.changed(ctx, ChangeKind::Ended(cause), claim);
            }
        }
    }

    /// Ends a claim. Every claim ends here.
    fn end_claim(&mut self, ctx: &mut impl StepContext, position: u64, cause: Cause) {
        let Some(claim) = self.remove(position) else {
            return;
        };
        ctx.removed(position, &claim);
        if let Some(holding) = claim.holding() {
            for hold in &holding.holds {
                remember(ctx, &claim, hold, cause);
            }
        }
        self.changed(ctx, ChangeKind::Ended(cause), &claim);
    }
}

fn mark_adopted(ctx: &mut impl StepContext, call: CallId) -> Released {
    ctx.cancel(call);
    Released::Adopted
}

/// Remembers how a hold of this claim ended, unless its caller never received it.
fn remember(ctx: &mut impl StepContext, claim: &Claim, hold: &Hold, cause: Cause) {
    let Some(holding) = claim.holding() else { return };
    if matches!(cause, Cause::Undone | Cause::Cancelled) {
        return;
    }
    ctx.remember(EndedHold {
        secret: hold.secret,
        token: holding.token,
        cause,
        id: hold.retryable.then_some(hold.id),
        limit: claim.limits.finished,
    });
}
