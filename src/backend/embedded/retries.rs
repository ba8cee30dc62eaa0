//! Calls that find a claim which is there already: a retry adopts its own, a reentrant call joins
//! its owner's.

use std::time::Duration;

use super::desk::Desk;
use super::lock::{Hold, Stage};
use super::space::{Coming, Space};
use crate::backend::{NewClaim, Patience, Place, Refusal, Wake};
use crate::claim::Cause;
use crate::name::LockName;

impl Space {
    /// A call has found the claim of its request: takes over one that waits, notes on a hold that
    /// two calls know it.
    pub(super) fn adopt(&mut self, desk: &mut Desk, name: &LockName, place: u64, coming: &Coming<'_>) -> Place {
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

    pub(super) fn reenter(&mut self, desk: &mut Desk, name: &LockName, place: u64, new: &NewClaim) -> Place {
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
        self.by_hold.insert(new.id, (name.clone(), place));
        self.prolong(desk, name, place, new.ttl.get(), true);
        self.save(desk, name, place);
        self.held(desk, name, place, new.secret, Duration::ZERO)
    }
}
