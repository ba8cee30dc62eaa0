//! Calls that find a claim which is there already: a retry adopts its own, a reentrant call joins
//! its owner's.

use std::time::Duration;

use super::txn_context::TxnContext;
use super::lock::{Hold, Stage};
use super::namespace_state::{IncomingClaim, NamespaceState};
use crate::backend::{NewClaim, WaitPolicy, AcquireOutcome, Refusal, Notification};
use crate::claim::Cause;
use crate::name::LockName;

impl NamespaceState {
    /// A call has found the claim of its request: takes over one that waits, notes on a hold that
    /// two calls know it.
    pub(super) fn adopt(&mut self, ctx: &mut TxnContext, name: &LockName, place: u64, coming: &IncomingClaim<'_>) -> AcquireOutcome {
        let new = coming.claim;
        let Some(claim) = self.claim_mut(name, place) else {
            return AcquireOutcome::Gone;
        };
        if let Some(field) = claim.differs(new) {
            return AcquireOutcome::Refused(Refusal::OtherParameters { field });
        }
        let waiting = match &mut claim.stage {
            Stage::Holding(_) => return self.adopt_hold(ctx, name, place, new),
            Stage::Waiting(waiting) => waiting,
        };
        let older = std::mem::replace(&mut waiting.hold, Hold::of(new));
        claim.metadata = new.metadata.clone();
        claim.limits = new.limits;
        if older.call != new.call {
            ctx.wake(self.id, Notification::Next(name.clone(), new.id));
        }
        let lock = &self.locks[name];
        if lock.eligible(place) {
            return self.grant(ctx, name, place, coming.waited, true);
        }
        if new.wait_policy == WaitPolicy::Wait {
            return self.waiting(ctx, name, place);
        }
        let first = lock.first_holder(ctx.now).map(Box::new);
        self.marks.insert(older.call, ctx.now);
        self.end_claim(ctx, name, place, Cause::Left);
        self.after(ctx, name);
        AcquireOutcome::Busy(first)
    }

    fn adopt_hold(&mut self, ctx: &mut TxnContext, name: &LockName, place: u64, new: &NewClaim) -> AcquireOutcome {
        let Some(hold) = self.hold_mut(name, place, &new.id) else {
            return AcquireOutcome::Gone;
        };
        let secret = hold.secret;
        // The same step sent twice is not a second call.
        if hold.call != new.call {
            hold.adopted = true;
        }
        self.save(ctx, name, place);
        self.held(ctx, name, place, secret, Duration::ZERO)
    }

    pub(super) fn reenter(&mut self, ctx: &mut TxnContext, name: &LockName, place: u64, new: &NewClaim) -> AcquireOutcome {
        let limit = new.limits.holds;
        let Some(claim) = self.claim_mut(name, place) else {
            return AcquireOutcome::Gone;
        };
        if let Some(field) = claim.differs(new) {
            return AcquireOutcome::Refused(Refusal::OtherParameters { field });
        }
        let Some(holding) = claim.holding_mut() else {
            return AcquireOutcome::Gone;
        };
        if holding.holds.len() >= limit as usize {
            return AcquireOutcome::Refused(Refusal::Full { limit });
        }
        holding.holds.push(Hold::of(new));
        self.by_hold.insert(new.id, (name.clone(), place));
        self.prolong(ctx, name, place, new.ttl.get(), true);
        self.save(ctx, name, place);
        self.held(ctx, name, place, new.secret, Duration::ZERO)
    }
}
