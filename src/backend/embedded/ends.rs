//! How claims and holds end in a namespace. Every end passes through [`NamespaceState::end_claim`]
//! or, for one hold of several, [`NamespaceState::end_hold`], with its cause.

use super::history::Ended;
use super::namespace_state::NamespaceState;
use super::record;
use super::txn_context::{RecordKey, TxnContext};
use crate::backend::{ChangeKind, ClaimLimits, Released};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName};
use crate::queue::lock_state::{Hold, Stage};

impl NamespaceState {
    pub(super) fn release_hold(&mut self, ctx: &mut TxnContext, name: &LockName, lease: &LeaseKey) -> Released {
        let Some((position, index)) = self.find_hold(name, lease) else {
            return Released::before(self.cause_of(name, lease));
        };
        self.end_hold(ctx, name, position, index, Cause::Released);
        Released::Ended(Cause::Released)
    }

    /// How the hold of a lease that is gone ended, if that is remembered.
    pub(super) fn cause_of(&self, name: &LockName, lease: &LeaseKey) -> Option<Cause> {
        let ended = self.finished.by_secret(&lease.secret)?;
        (ended.lock == *name && ended.token == lease.token).then_some(ended.cause)
    }

    /// Undoes a call. What the call does not own stays, and a cancel mark stops its late steps.
    pub(super) fn undo(&mut self, ctx: &mut TxnContext, name: &LockName, id: &ClaimId, call: CallId) -> Released {
        let Some(position) = self.find(name, id) else {
            self.marks.insert(call, ctx.now);
            return Released::Nothing;
        };
        let claim = self.locks.get(name).and_then(|lock| lock.get(position));
        match claim.map(|claim| &claim.stage) {
            Some(Stage::Waiting(hold)) if hold.call == call => {
                self.end_claim(ctx, name, position, Cause::Cancelled);
                Released::Ended(Cause::Cancelled)
            }
            Some(Stage::Holding(holding)) => {
                let own = |hold: &Hold| hold.id == *id && hold.call == call && !hold.adopted;
                let Some(index) = holding.holds.iter().position(own) else {
                    return self.mark_adopted(ctx, call);
                };
                self.end_hold(ctx, name, position, index, Cause::Undone);
                Released::Ended(Cause::Undone)
            }
            _ => self.mark_adopted(ctx, call),
        }
    }

    fn mark_adopted(&mut self, ctx: &TxnContext, call: CallId) -> Released {
        self.marks.insert(call, ctx.now);
        Released::Adopted
    }

    pub(super) fn force(&mut self, ctx: &mut TxnContext, name: &LockName, token: FencingToken) -> Released {
        if let Some(position) = self.find_token(name, token) {
            self.end_claim(ctx, name, position, Cause::Forced);
            return Released::Ended(Cause::Forced);
        }
        Released::before(self.finished.by_token(name, token).map(|ended| ended.cause))
    }

    /// Ends a holder whose lease has expired.
    pub(super) fn expire(&mut self, ctx: &mut TxnContext, name: &LockName, position: u64) {
        self.end_claim(ctx, name, position, Cause::Expired);
        self.after_step(ctx, name);
    }

    /// Ends one hold. The claim ends with its last hold.
    fn end_hold(&mut self, ctx: &mut TxnContext, name: &LockName, position: u64, index: usize, cause: Cause) {
        let Some(claim) = self.claim_mut(name, position) else {
            return;
        };
        let limits = claim.limits;
        let Some(holding) = claim.holding_mut() else { return };
        if holding.holds.len() == 1 {
            return self.end_claim(ctx, name, position, cause);
        }
        let token = holding.token;
        let hold = holding.holds.swap_remove(index);
        self.by_hold.remove(&hold.id);
        self.remember(ctx, name, token, &hold, cause, limits);
        self.save(ctx, name, position);
    }

    /// Ends a claim. Every claim ends here.
    pub(super) fn end_claim(&mut self, ctx: &mut TxnContext, name: &LockName, position: u64, cause: Cause) {
        let Some(claim) = self.locks.get_mut(name).and_then(|lock| lock.remove(position)) else {
            return;
        };
        for id in claim.hold_ids() {
            self.by_hold.remove(&id);
        }
        if let Some(holding) = claim.holding() {
            self.by_token.remove(&holding.token);
            ctx.expiries.remove(&(holding.ends, self.id, name.clone(), position));
            ctx.delete(RecordKey::Holder(self.id, name.clone(), position));
            for hold in &holding.holds {
                self.remember(ctx, name, holding.token, hold, cause, claim.limits);
            }
        }
        self.changed(ctx, name, ChangeKind::Ended(cause), &claim);
    }

    /// Remembers how a hold ended, unless its caller never received it.
    fn remember(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        token: FencingToken,
        hold: &Hold,
        cause: Cause,
        limits: ClaimLimits,
    ) {
        let Some(stored_cause) = record::cause_record(cause) else {
            return;
        };
        let ended = Ended {
            lock: name.clone(),
            token,
            cause,
            id: hold.retryable.then_some(hold.id),
        };
        let record = ctx
            .is_durable()
            .then(|| record::write_finished(&hold.secret, &ended, stored_cause));
        let position = self.finished.insert(hold.secret, ended, ctx.now);
        if let Some(record) = record {
            ctx.put(RecordKey::Finished(self.id, position), || record);
        }
        while let Some(position) = self.finished.pop_past(limits.finished as usize) {
            ctx.delete(RecordKey::Finished(self.id, position));
        }
    }
}
