//! What each `multi` does at the store: its conditions, then its writes.

use super::state::{Answer, Holder, Multi, NOBODY, Releasing, Stage, State, Step, Waiter};
use super::{Flaw, Protocol, Reached};

/// A waiter behind all others, of no session.
const LAST: Waiter = Waiter {
    is_there: true,
    session: 0,
    place: 99,
    arrival: 99,
};

impl Protocol {
    pub fn has(&self, flaw: Flaw) -> bool {
        self.world.has(flaw)
    }

    pub fn calls(&self) -> usize {
        self.world.calls.len()
    }

    pub fn claim(&self, call: usize) -> usize {
        usize::from(self.world.calls[call].0)
    }

    pub fn replica(&self, call: usize) -> usize {
        usize::from(self.world.calls[call].1)
    }

    pub fn session(&self, state: &State, replica: usize) -> u8 {
        u8::try_from(replica * 2).expect("few replicas") + state.replicas[replica].epoch
    }

    pub fn is_try(&self, call: usize) -> bool {
        self.world.tries >> call & 1 == 1
    }

    pub fn has_request_id(&self, claim: usize) -> bool {
        self.world.request_ids >> claim & 1 == 1
    }

    /// The other calls of its claim.
    pub fn retries_of(&self, call: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.calls()).filter(move |other| *other != call && self.claim(*other) == self.claim(call))
    }

    /// Whether the path of a node is the one that was meant.
    pub fn is_same(&self, path: u8, meant: u8) -> bool {
        path == meant || self.has(Flaw::OnePathForEachClaim) || self.has(Flaw::UsesItsPathAgain)
    }

    /// Condition `fence`.
    pub fn passes_fence(&self, state: &State, multi: &Multi) -> bool {
        let is_alive = if self.has(Flaw::StepsIgnoreTheFence) {
            state.sessions >> multi.session & 1 == 1
        } else {
            state.fences >> multi.session & 1 == 1 && !multi.is_fenced
        };
        is_alive || (multi.step == Step::RemoveTry && self.has(Flaw::TriesIgnoreTheFence))
    }

    /// Whether the waiter of a call fits beside all holders and all waiters ahead, without `but`.
    pub fn fits(&self, state: &State, call: usize, but: usize) -> bool {
        self.fits_by(state, call, but, |waiter| waiter.place)
    }

    fn fits_by(&self, state: &State, call: usize, but: usize, place: fn(&Waiter) -> u8) -> bool {
        let own = place(&state.waiters[call]);
        let (mut used, mut limit) = self.world.shares[self.claim(call)];
        for other in (0..self.calls()).filter(|other| *other != call && *other != but) {
            let (permits, of) = self.world.shares[self.claim(other)];
            let waiter = &state.waiters[other];
            let ahead = waiter.is_there && place(waiter) < own;
            used += permits * (u8::from(state.holds(other)) + u8::from(ahead));
            if (state.holds(other) || ahead) && !self.has(Flaw::IgnoresSmallerLimits) {
                limit = limit.min(of);
            }
        }
        used <= limit
    }

    /// The same for a call that comes now.
    pub fn would_fit(&self, state: &State, call: usize, but: usize) -> bool {
        let mut queued = *state;
        queued.waiters[call] = LAST;
        self.fits(&queued, call, but)
    }

    pub fn is_empty(&self, state: &State) -> bool {
        (0..self.calls()).all(|call| !state.holds(call) && !state.waits(call))
    }

    /// Condition `request`: its node is there.
    fn is_known(&self, state: &State, call: usize) -> bool {
        let claim = self.claim(call);
        let has_place = |other: usize| self.claim(other) == claim && (state.holds(other) || state.waits(other));
        let is_kept_apart = self.has_request_id(claim) && !self.has(Flaw::NoRequestNode);
        is_kept_apart && (state.has_ended(claim) || (0..self.calls()).any(has_place))
    }

    /// Grants to a call, whose claim waits as `from` if it does. `gone` leaves in the same step.
    fn grant(&self, state: &mut State, call: usize, from: Option<usize>, token: u8, gone: usize) {
        let in_order = match from {
            Some(waiter) => self.fits_by(state, waiter, gone, |waiter| waiter.arrival),
            None => {
                let mut queued = *state;
                queued.waiters[call] = LAST;
                self.fits_by(&queued, call, gone, |waiter| waiter.arrival)
            }
        };
        let claim = self.claim(call);
        let has_ended = self.has_request_id(claim) && state.has_ended(claim);
        let faults = [
            (!in_order, "a claim overtook another"),
            (
                state.has_left(call),
                "a step of a call took effect after its leave was answered",
            ),
            (has_ended, "a request that had ended was granted again"),
            (token <= state.last_token, "a token was not larger than all before"),
        ];
        for (_, fault) in faults.iter().filter(|(happened, _)| *happened) {
            state.wrong.get_or_insert(fault);
        }
        state.last_token = state.last_token.max(token);
        if let Some(waiter) = from {
            state.waiters[waiter].is_there = false;
        }
        state.is_used = true;
        state.holders[call] = Holder {
            is_there: true,
            token,
            ..Holder::default()
        };
        state.over[call] = 0;
    }

    fn note_tidy(&self, state: &mut State, call: usize) {
        if state.has_left(call) {
            let fault = "a step of a call took effect after its leave was answered";
            state.wrong.get_or_insert(fault);
        }
    }

    /// The step of a call.
    pub fn apply(&self, state: &mut State, call: usize, multi: &Multi, zxid: u8) -> Answer {
        if !multi.step.is_undo() && !self.passes_fence(state, multi) {
            self.reach(Reached::WasFenced);
            return Answer::Refused;
        }
        match multi.step {
            Step::AcquireFree | Step::AcquireEmpty | Step::Join | Step::Enqueue => {
                self.acquire(state, call, multi, zxid)
            }
            Step::Promote | Step::AdoptAndPromote => self.promote(state, call, multi, zxid),
            Step::AdoptWaiter | Step::MoveWaiter | Step::RemoveTry | Step::UndoWaiter => {
                self.change_waiter(state, call, multi, zxid)
            }
            Step::AdoptHolder => self.adopt_holder(state, call, multi),
            Step::GrantAgain => self.grant_again(state, call, multi, zxid),
            Step::UndoHolder => self.undo_holder(state, call, multi),
            Step::Release | Step::Renew | Step::Nothing => Answer::Refused,
        }
    }

    fn acquire(&self, state: &mut State, call: usize, multi: &Multi, zxid: u8) -> Answer {
        let is_free = match multi.step {
            Step::AcquireFree => !state.is_used,
            Step::AcquireEmpty => {
                state.is_used && (self.is_empty(state) || self.has(Flaw::TakesAnEmptyLockByItsVersion))
            }
            _ => state.is_used,
        };
        if !is_free || self.is_known(state, call) {
            return Answer::Refused;
        }
        if multi.step == Step::Enqueue {
            self.note_tidy(state, call);
            state.waiters[call] = Waiter {
                is_there: true,
                session: multi.session,
                place: zxid,
                arrival: zxid,
            };
            return Answer::Waits;
        }
        if multi.step == Step::AcquireEmpty {
            self.reach(Reached::TookAnEmptyLock);
        }
        self.grant(state, call, None, zxid, NOBODY);
        Answer::Holds
    }

    fn is_waiter(&self, state: &State, call: usize, path: u8) -> bool {
        state.waits(call) && self.is_same(state.waiters[call].place, path)
    }

    fn is_holder(&self, state: &State, call: usize, path: u8) -> bool {
        state.holds(call) && self.is_same(state.holders[call].token, path)
    }

    fn promote(&self, state: &mut State, call: usize, multi: &Multi, zxid: u8) -> Answer {
        let target = usize::from(multi.target);
        let is_there = self.is_waiter(state, target, multi.path);
        if multi.step == Step::AdoptAndPromote && is_there {
            self.reach(Reached::AdoptedAndPromoted);
        }
        let any = multi.step == Step::Promote && self.has(Flaw::PromotesAnyWaiter);
        let is_new = any && state.is_used && !state.waits(call) && !self.is_known(state, call);
        if !is_there && !is_new {
            return Answer::Refused;
        }
        self.grant(state, call, is_there.then_some(target), zxid, NOBODY);
        Answer::Holds
    }

    /// Conditions `own` and `theirs`: the waiter is deleted by its path.
    fn change_waiter(&self, state: &mut State, call: usize, multi: &Multi, zxid: u8) -> Answer {
        let target = usize::from(multi.target);
        let is_gone = !self.is_waiter(state, target, multi.path);
        if is_gone && multi.step == Step::MoveWaiter && self.has(Flaw::MovesAnyWaiter) {
            return self.move_what_is_gone(state, call, multi);
        }
        if is_gone {
            return Answer::Refused;
        }
        let earlier = state.waiters[target];
        match multi.step {
            Step::AdoptWaiter => {
                self.reach(Reached::AdoptedAWaiter);
                self.note_tidy(state, call);
                let keeps = !self.has(Flaw::AdoptionLosesThePlace);
                state.waiters[target].is_there = false;
                state.waiters[call] = Waiter {
                    session: multi.session,
                    place: if keeps { earlier.place } else { zxid },
                    ..earlier
                };
                Answer::Waits
            }
            Step::MoveWaiter => {
                self.reach(Reached::MovedAWaiter);
                state.waiters[target].session = multi.session;
                Answer::Waits
            }
            step => {
                if step == Step::RemoveTry {
                    self.reach(Reached::RemovedATry);
                    if target != call {
                        self.note_tidy(state, call);
                    }
                }
                state.waiters[target].is_there = false;
                Answer::Removed
            }
        }
    }

    /// What a move without the condition `own` does: it creates the waiter.
    fn move_what_is_gone(&self, state: &mut State, call: usize, multi: &Multi) -> Answer {
        if !state.is_used || state.waits(call) {
            return Answer::Refused;
        }
        self.note_tidy(state, call);
        state.waiters[call] = Waiter {
            is_there: true,
            session: multi.session,
            place: multi.path,
            arrival: multi.path,
        };
        Answer::Waits
    }

    fn adopt_holder(&self, state: &mut State, call: usize, multi: &Multi) -> Answer {
        let target = usize::from(multi.target);
        let is_unchanged = state.holders[target].version == multi.version || !self.reads_apart;
        if !self.is_holder(state, target, multi.path) || !is_unchanged {
            return Answer::Refused;
        }
        self.reach(Reached::AdoptedAHolder);
        self.note_tidy(state, call);
        let holder = &mut state.holders[target];
        holder.is_adopted = true;
        if !self.has(Flaw::AdoptsWithoutRenewing) {
            holder.version = (holder.version + 1).min(6);
        }
        Answer::Holds
    }

    /// A holder that was adopted has another version.
    fn grant_again(&self, state: &mut State, call: usize, multi: &Multi, zxid: u8) -> Answer {
        let holder = state.holders[call];
        let is_unchanged = !holder.is_adopted && (holder.version == multi.version || !self.reads_apart);
        let passes = is_unchanged || self.has(Flaw::GrantsAgainOverAnAdoption);
        if !self.is_holder(state, call, multi.path) || !passes {
            return Answer::Refused;
        }
        self.reach(Reached::GrantedAgain);
        self.note_tidy(state, call);
        if zxid <= state.last_token {
            state.wrong.get_or_insert("a token was not larger than all before");
        }
        state.last_token = state.last_token.max(zxid);
        state.over[call] = 0;
        state.holders[call] = Holder {
            is_there: true,
            token: zxid,
            ..Holder::default()
        };
        Answer::Holds
    }

    fn undo_holder(&self, state: &mut State, call: usize, multi: &Multi) -> Answer {
        let ignores = self.has(Flaw::UndoIgnoresTheVersion);
        let is_it = |state: &State, of: usize| {
            self.is_holder(state, of, multi.path) && (state.holders[of].version == multi.version || ignores)
        };
        let Some(of) = self.of_claim(state, call, multi, is_it) else {
            return Answer::Refused;
        };
        self.reach(Reached::UndidAHolder);
        state.holders[of].is_there = false;
        Answer::Removed
    }

    /// The holder that a step is about: with one path for each claim, any of its claim.
    fn of_claim(
        &self,
        state: &State,
        call: usize,
        multi: &Multi,
        is_it: impl Fn(&State, usize) -> bool,
    ) -> Option<usize> {
        let target = usize::from(multi.target);
        if is_it(state, target) {
            return Some(target);
        }
        let any = self.has(Flaw::OnePathForEachClaim);
        self.retries_of(call).find(|other| any && is_it(state, *other))
    }

    /// The holder of this path and version, for a release or an expiry.
    pub fn found(&self, state: &State, target: usize, path: u8, version: Option<u8>) -> Option<usize> {
        let is_it = |state: &State, of: usize| {
            let is_unchanged = version.is_none_or(|version| state.holders[of].version == version);
            self.is_holder(state, of, path) && is_unchanged
        };
        let multi = Multi {
            target: u8::try_from(target).expect("few calls"),
            ..Multi::default()
        };
        self.of_claim(state, target, &multi, is_it)
    }

    /// A holder ends; its request's node remembers that.
    pub fn end_holder(&self, state: &mut State, call: usize) {
        state.holders[call].is_there = false;
        let claim = self.claim(call);
        if self.has_request_id(claim) {
            state.ended |= 1 << claim;
        }
    }

    /// A release, with the promotion of its next in the same `multi`. It comes in time, with its answer lost or not, or
    /// late.
    pub fn release(&self, state: &mut State, client: usize, multi: Multi, is_late: bool) {
        let target = usize::from(multi.target);
        let version = self.reads_apart.then_some(multi.version);
        let found = self.found(state, target, multi.path, version);
        let next = multi.next();
        let next_is_there =
            |next: usize| self.is_waiter(state, next, multi.next_path) && self.passes_fence(state, &multi);
        let needs_none = next.is_some() && self.has(Flaw::NextNeedsNoHolder);
        let passes = next.is_none_or(next_is_there) && (found.is_some() || needs_none);
        if passes {
            if let Some(next) = next {
                self.reach(Reached::ReleasedWithNext);
                if is_late {
                    self.reach(Reached::UnknownReleasePromoted);
                }
                let zxid = state.next_zxid();
                self.grant(state, next, Some(next), zxid, found.unwrap_or(NOBODY));
            }
            if let Some(of) = found {
                self.end_holder(state, of);
            }
        }
        if is_late {
            return;
        }
        let is_there = self.is_holder(state, target, multi.path);
        let of = &mut state.clients[client];
        of.release = Multi::default();
        if passes || !is_there {
            of.releasing = Releasing::Done;
        } else {
            // It was renewed meanwhile, or its next has left: sent again alone.
            let version = state.holders[target].version;
            state.clients[client].release = Multi {
                version,
                next: 0,
                next_path: 0,
                is_fenced: false,
                ..multi
            };
        }
        if let Some(next) = next.filter(|next| state.calls[*next].stage == Stage::IsNext) {
            if passes {
                self.now_holds(state, next, next);
            } else {
                self.look(state, next);
            }
        }
    }
}
