//! How claims and holds end in a namespace. Every end goes through [`Space::end_claim`] or, for one
//! hold of several, [`Space::end_hold`], with its cause.

use super::desk::{Desk, Slot};
use super::lock::{Hold, Stage};
use super::memory::Ended;
use super::record;
use super::space::Space;
use crate::backend::{ChangeKind, ClaimLimits, Found};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName};

impl Space {
    pub(super) fn release(&mut self, desk: &mut Desk, name: &LockName, lease: &LeaseKey) -> Found {
        let hold = self.find_token(name, lease.token).and_then(|place| {
            let index = self.locks.get(name)?.hold_of(place, lease)?;
            Some((place, index))
        });
        let Some((place, index)) = hold else {
            return self.ended_before(name, lease);
        };
        self.end_hold(desk, name, place, index, Cause::Released);
        Found::Ended(Cause::Released)
    }

    pub(super) fn ended_before(&self, name: &LockName, lease: &LeaseKey) -> Found {
        let ended = self.finished.by_secret(&lease.secret);
        ended
            .filter(|ended| ended.lock == *name && ended.token == lease.token)
            .map_or(Found::Nothing, |ended| Found::EndedBefore(ended.cause))
    }

    /// Undoes what a call did. What is not its own stays, and the mark stops what comes late.
    pub(super) fn undo(&mut self, desk: &mut Desk, name: &LockName, id: &ClaimId, call: CallId) -> Found {
        let Some(place) = self.find(name, id) else {
            self.marks.insert(call, desk.now);
            return Found::Nothing;
        };
        let claim = self.locks.get(name).and_then(|lock| lock.get(place));
        match claim.map(|claim| &claim.stage) {
            Some(Stage::Waiting(waiting)) if waiting.hold.call == call => {
                self.end_claim(desk, name, place, Cause::Left);
                Found::Ended(Cause::Left)
            }
            Some(Stage::Holding(holding)) => {
                let own = |hold: &Hold| hold.id == *id && hold.call == call && !hold.adopted;
                let Some(index) = holding.holds.iter().position(own) else {
                    return self.mark_adopted(desk, call);
                };
                self.end_hold(desk, name, place, index, Cause::TakenBack);
                Found::Ended(Cause::TakenBack)
            }
            _ => self.mark_adopted(desk, call),
        }
    }

    fn mark_adopted(&mut self, desk: &Desk, call: CallId) -> Found {
        self.marks.insert(call, desk.now);
        Found::Adopted
    }

    pub(super) fn force(&mut self, desk: &mut Desk, name: &LockName, token: FencingToken) -> Found {
        if let Some(place) = self.find_token(name, token) {
            self.end_claim(desk, name, place, Cause::Forced);
            return Found::Ended(Cause::Forced);
        }
        let ended = self.finished.by_token(name, token);
        ended.map_or(Found::Nothing, |ended| Found::EndedBefore(ended.cause))
    }

    /// A holder's time has passed.
    pub(super) fn expire(&mut self, desk: &mut Desk, name: &LockName, place: u64) {
        self.end_claim(desk, name, place, Cause::Expired);
        self.after(desk, name);
    }

    /// Ends one hold; with its last hold the claim ends.
    fn end_hold(&mut self, desk: &mut Desk, name: &LockName, place: u64, index: usize, cause: Cause) {
        let Some(claim) = self.claim_mut(name, place) else {
            return;
        };
        let limits = claim.limits;
        let Some(holding) = claim.holding_mut() else { return };
        if holding.holds.len() == 1 {
            return self.end_claim(desk, name, place, cause);
        }
        let token = holding.token;
        let hold = holding.holds.swap_remove(index);
        self.by_hold.remove(&hold.id);
        self.remember(desk, name, token, &hold, cause, limits);
        self.save(desk, name, place);
    }

    /// The one way in which a claim ends.
    pub(super) fn end_claim(&mut self, desk: &mut Desk, name: &LockName, place: u64, cause: Cause) {
        let Some(claim) = self.locks.get_mut(name).and_then(|lock| lock.remove(place)) else {
            return;
        };
        for id in claim.hold_ids() {
            self.by_hold.remove(&id);
        }
        let token = claim.holding().map(|holding| holding.token);
        if let Some(holding) = claim.holding() {
            self.by_token.remove(&holding.token);
            desk.ends.remove(&(holding.ends, self.id, name.clone(), place));
            desk.delete(Slot::Holder(self.id, name.clone(), place));
            for hold in &holding.holds {
                self.remember(desk, name, holding.token, hold, cause, claim.limits);
            }
        }
        self.changed(desk, name, ChangeKind::Ended(cause), &claim.owner, token);
    }

    /// Remembers how a hold ended. What nobody received is forgotten.
    fn remember(
        &mut self,
        desk: &mut Desk,
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
        desk.put(Slot::finished(self.id, &hold.secret), || {
            record::write_finished(place, &ended, cause_record)
        });
        self.finished.insert(hold.secret, ended, desk.now);
        while let Some(secret) = self.finished.pop_past(limits.finished as usize) {
            desk.delete(Slot::finished(self.id, &secret));
        }
    }
}
