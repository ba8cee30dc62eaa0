//! How claims and holds end in a namespace. Every end goes through [`NamespaceState::end_claim`] or, for one
//! hold of several, [`NamespaceState::end_hold`], with its cause.

use super::txn_context::{TxnContext, RecordKey};
use super::lock::{Hold, Stage};
use super::history::Ended;
use super::record;
use super::namespace_state::NamespaceState;
use crate::backend::{ChangeKind, ClaimLimits, Released};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName};

impl NamespaceState {
    pub(super) fn release_hold(&mut self, ctx: &mut TxnContext, name: &LockName, lease: &LeaseKey) -> Released {
        let hold = self.find_token(name, lease.token).and_then(|place| {
            let index = self.locks.get(name)?.hold_of(place, lease)?;
            Some((place, index))
        });
        let Some((place, index)) = hold else {
            return self.ended_before(name, lease);
        };
        self.end_hold(ctx, name, place, index, Cause::Released);
        Released::Ended(Cause::Released)
    }

    pub(super) fn ended_before(&self, name: &LockName, lease: &LeaseKey) -> Released {
        let ended = self.finished.by_secret(&lease.secret);
        ended
            .filter(|ended| ended.lock == *name && ended.token == lease.token)
            .map_or(Released::Nothing, |ended| Released::EndedBefore(ended.cause))
    }

    /// Undoes what a call did. What is not its own stays, and the mark stops what comes late.
    pub(super) fn undo(&mut self, ctx: &mut TxnContext, name: &LockName, id: &ClaimId, call: CallId) -> Released {
        let Some(place) = self.find(name, id) else {
            self.marks.insert(call, ctx.now);
            return Released::Nothing;
        };
        let claim = self.locks.get(name).and_then(|lock| lock.get(place));
        match claim.map(|claim| &claim.stage) {
            Some(Stage::Waiting(waiting)) if waiting.hold.call == call => {
                self.end_claim(ctx, name, place, Cause::Left);
                Released::Ended(Cause::Left)
            }
            Some(Stage::Holding(holding)) => {
                let own = |hold: &Hold| hold.id == *id && hold.call == call && !hold.adopted;
                let Some(index) = holding.holds.iter().position(own) else {
                    return self.mark_adopted(ctx, call);
                };
                self.end_hold(ctx, name, place, index, Cause::TakenBack);
                Released::Ended(Cause::TakenBack)
            }
            _ => self.mark_adopted(ctx, call),
        }
    }

    fn mark_adopted(&mut self, ctx: &TxnContext, call: CallId) -> Released {
        self.marks.insert(call, ctx.now);
        Released::Adopted
    }

    pub(super) fn force(&mut self, ctx: &mut TxnContext, name: &LockName, token: FencingToken) -> Released {
        if let Some(place) = self.find_token(name, token) {
            self.end_claim(ctx, name, place, Cause::Forced);
            return Released::Ended(Cause::Forced);
        }
        let ended = self.finished.by_token(name, token);
        ended.map_or(Released::Nothing, |ended| Released::EndedBefore(ended.cause))
    }

    /// A holder's time has passed.
    pub(super) fn expire(&mut self, ctx: &mut TxnContext, name: &LockName, place: u64) {
        self.end_claim(ctx, name, place, Cause::Expired);
        self.after(ctx, name);
    }

    /// Ends one hold; with its last hold the claim ends.
    fn end_hold(&mut self, ctx: &mut TxnContext, name: &LockName, place: u64, index: usize, cause: Cause) {
        let Some(claim) = self.claim_mut(name, place) else {
            return;
        };
        let limits = claim.limits;
        let Some(holding) = claim.holding_mut() else { return };
        if holding.holds.len() == 1 {
            return self.end_claim(ctx, name, place, cause);
        }
        let token = holding.token;
        let hold = holding.holds.swap_remove(index);
        self.by_hold.remove(&hold.id);
        self.remember(ctx, name, token, &hold, cause, limits);
        self.save(ctx, name, place);
    }

    /// The one way in which a claim ends.
    pub(super) fn end_claim(&mut self, ctx: &mut TxnContext, name: &LockName, place: u64, cause: Cause) {
        let Some(claim) = self.locks.get_mut(name).and_then(|lock| lock.remove(place)) else {
            return;
        };
        for id in claim.hold_ids() {
            self.by_hold.remove(&id);
        }
        let token = claim.holding().map(|holding| holding.token);
        if let Some(holding) = claim.holding() {
            self.by_token.remove(&holding.token);
            ctx.ends.remove(&(holding.ends, self.id, name.clone(), place));
            ctx.delete(RecordKey::Holder(self.id, name.clone(), place));
            for hold in &holding.holds {
                self.remember(ctx, name, holding.token, hold, cause, claim.limits);
            }
        }
        self.changed(ctx, name, ChangeKind::Ended(cause), &claim.owner, token);
    }

    /// Remembers how a hold ended. What nobody received is forgotten.
    fn remember(
        &mut self,
        ctx: &mut TxnContext,
        name: &LockName,
        token: FencingToken,
        hold: &Hold,
        cause: Cause,
        limits: ClaimLimits,
    ) {
        let Some(cause_record) = record::remembered(cause) else {
            return;
        };
        let ended = Ended {
            lock: name.clone(),
            token,
            cause,
            id: hold.retryable.then_some(hold.id),
        };
        let place = self.finished.next();
        ctx.put(RecordKey::finished(self.id, &hold.secret), || {
            record::write_finished(place, &ended, cause_record)
        });
        self.finished.insert(hold.secret, ended, ctx.now);
        while let Some(secret) = self.finished.pop_past(limits.finished as usize) {
            ctx.delete(RecordKey::finished(self.id, &secret));
        }
    }
}
