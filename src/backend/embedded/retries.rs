//! Calls that find an existing claim: a retry adopts its own, a reentrant call joins its owner's.

use std::time::Duration;

use super::namespace_state::{IncomingClaim, NamespaceState};
use super::txn_context::TxnContext;
use crate::backend::{AcquireOutcome, NewClaim, Notification, Refusal, WaitPolicy};
use crate::claim::Cause;
use crate::name::LockName;
use crate::queue::lock_state::{Hold, Stage};

impl NamespaceState {
    /// Adopts the claim of the call's request: takes over a waiting claim, or marks a hold as known
    /// to two calls.
    pub(super) fn adopt(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        position: u64,
        incoming: &IncomingClaim<'_>,
    ) -> AcquireOutcome {
        let new = incoming.claim;
        let Some(claim) = self.claim_mut(name, position) else {
            return AcquireOutcome::Gone;
        };
        if let Some(field) = claim.terms.differs(new) {
            return AcquireOutcome::Refused(Refusal::OtherParameters { field });
        }
        let waiting = match &mut claim.stage {
            Stage::Holding(_) => return self.adopt_hold(ctx, name, position, new),
            Stage::Waiting(waiting) => waiting,
        };
        let older = std::mem::replace(waiting, Hold::of(new));
        claim.terms.metadata = new.metadata.clone();
        claim.limits = new.limits;
        if older.call != new.call {
            ctx.notify(self.id, Notification::Next(name.clone(), new.id));
        }
        let lock = &self.locks[name];
        if lock.eligible(position) {
            return self.grant(ctx, name, position, incoming.waited, true);
        }
        if new.wait_policy == WaitPolicy::Wait {
            return self.waiting(ctx, name, position);
        }
        let first = lock.first_holder(ctx.now).map(Box::new);
        self.marks.insert(older.call, ctx.now);
        self.end_claim(ctx, name, position, Cause::Cancelled);
        self.after_step(ctx, name);
        AcquireOutcome::Busy(first)
    }

    fn adopt_hold(&mut self, ctx: &mut TxnContext, name: &LockName, position: u64, new: &NewClaim) -> AcquireOutcome {
        let Some(hold) = self.hold_mut(name, position, &new.id) else {
            return AcquireOutcome::Gone;
        };
        let secret = hold.secret;
        // The same step, sent twice, is not a second call.
        if hold.call != new.call {
            hold.adopted = true;
        }
        self.save(ctx, name, position);
        self.held(ctx, name, position, secret, Duration::ZERO)
    }

    pub(super) fn reenter(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        position: u64,
        new: &NewClaim,
    ) -> AcquireOutcome {
        let limit = new.limits.holds;
        let Some(claim) = self.claim_mut(name, position) else {
            return AcquireOutcome::Gone;
        };
        if let Some(field) = claim.terms.differs(new) {
            return AcquireOutcome::Refused(Refusal::OtherParameters { field });
        }
        let Some(holding) = claim.holding_mut() else {
            return AcquireOutcome::Gone;
        };
        if holding.holds.len() >= limit as usize {
            return AcquireOutcome::Refused(Refusal::Full { limit });
        }
        holding.holds.push(Hold::of(new));
        self.by_hold.insert(new.id, (name.clone(), position));
        self.extend(ctx, name, position, new.ttl.get(), true);
        self.save(ctx, name, position);
        self.held(ctx, name, position, new.secret, Duration::ZERO)
    }
}
