//! How claims and holds end. Every end passes through [`LockState::end_claim`] or, for one hold of several,
//! [`LockState::end_hold`], with its cause.

use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey};
use crate::queue::{ChangeKind, Claim, EndedHold, EndedKey, Hold, LockState, Released, Stage, StepContext};

impl LockState {
    /// Ends the claim at this position, with all its holds, and notifies the waiters that fit then: a holder whose lease
    /// has expired, or a waiter whose replica is gone ([`Cause::Cancelled`]).
    pub fn end(&mut self, ctx: &mut impl StepContext, position: u64, cause: Cause) {
        self.end_claim(ctx, position, cause);
        self.notify_eligible(ctx);
    }

    pub(super) fn release_hold(&mut self, ctx: &mut impl StepContext, lease: &LeaseKey) -> Released {
        let Some((position, index)) = self.find_hold(lease) else {
            return Released::before(ctx.ended(EndedKey::Lease(lease)));
        };
        self.end_hold(ctx, position, index, Cause::Released);
        Released::Ended(Cause::Released)
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
                let own = |hold: &Hold| hold.id == *id && hold.call == call && !hold.adopted;
                let Some(index) = holding.holds.iter().position(own) else {
                    return mark_adopted(ctx, call);
                };
                self.end_hold(ctx, position, index, Cause::Undone);
                Released::Ended(Cause::Undone)
            }
            _ => mark_adopted(ctx, call),
        }
    }

    pub(super) fn force(&mut self, ctx: &mut impl StepContext, token: FencingToken) -> Released {
        if let Some(position) = self.find_token(token) {
            self.end_claim(ctx, position, Cause::Forced);
            return Released::Ended(Cause::Forced);
        }
        Released::before(ctx.ended(EndedKey::Token(token)))
    }

    /// Ends one hold. The claim ends with its last hold.
    fn end_hold(&mut self, ctx: &mut impl StepContext, position: u64, index: usize, cause: Cause) {
        let holds = self.get(position).and_then(Claim::holding).map(|it| it.holds.len());
        if holds == Some(1) {
            return self.end_claim(ctx, position, cause);
        }
        let hold = self.remove_hold(position, index);
        if let (Some(hold), Some(claim)) = (hold, self.get(position)) {
            remember(ctx, claim, &hold, cause);
            ctx.saved(position, claim);
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
