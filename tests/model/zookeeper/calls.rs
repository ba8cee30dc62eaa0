//! What a call does next: it looks at the lock and sends a step, or waits.

use super::state::{Answer, Multi, NOBODY, Stage, State, Step, Watch};
use super::{Flaw, Protocol};

impl Protocol {
    /// Sends a step about the node of a call, as it is now.
    pub fn send(&self, state: &mut State, call: usize, step: Step, target: usize) {
        let session = self.session(state, self.replica(call));
        let path = match step {
            Step::Promote
            | Step::AdoptWaiter
            | Step::AdoptAndPromote
            | Step::MoveWaiter
            | Step::RemoveTry
            | Step::UndoWaiter => state.waiters[target].place,
            Step::AdoptHolder | Step::GrantAgain | Step::UndoHolder => state.holders[target].token,
            _ => 0,
        };
        let is_of_holder = matches!(step, Step::AdoptHolder | Step::GrantAgain | Step::UndoHolder);
        let version = if is_of_holder { state.holders[target].version } else { 0 };
        let of = &mut state.calls[call];
        of.stage = Stage::Sent;
        of.sent = Multi {
            step,
            session,
            target: u8::try_from(target).expect("few calls"),
            path,
            version,
            ..Multi::default()
        };
    }

    /// The call holds by the node of `target`.
    pub fn now_holds(&self, state: &mut State, call: usize, target: usize) {
        let holder = state.holders[target];
        let is_over = holder.version < state.over[target];
        let of = &mut state.calls[call];
        of.stage = Stage::Holds;
        of.holder = u8::try_from(target).expect("few calls");
        of.token = if is_over { 0 } else { holder.token };
        of.version = holder.version;
        of.is_unknown = false;
        of.is_in_doubt = false;
        of.judged_early = false;
    }

    /// The answer to a call's step has come.
    pub fn answered(&self, state: &mut State, call: usize, answer: Answer) {
        let sent = std::mem::take(&mut state.calls[call].sent);
        match answer {
            _ if sent.step.is_undo() => state.calls[call].stage = Stage::Undo,
            Answer::Holds => {
                let adopts = sent.step == Step::AdoptHolder;
                let target = if adopts { usize::from(sent.target) } else { call };
                self.now_holds(state, call, target);
                if adopts && self.has(Flaw::AdoptsWithoutRenewing) {
                    // Its time counts from now, which nobody who watches knows.
                    state.calls[call].version = 200;
                }
            }
            Answer::Waits => {
                let of = &mut state.calls[call];
                of.was_queued = true;
                of.epoch = sent.session & 1;
                if of.judged_early && self.has(Flaw::JudgesByAnEarlierList) {
                    self.send(state, call, Step::Promote, call);
                } else {
                    self.look(state, call);
                }
            }
            Answer::Removed if sent.step == Step::RemoveTry => state.calls[call].stage = Stage::Done,
            Answer::Removed | Answer::Refused => self.look(state, call),
        }
    }

    /// A step that is given up may still take effect. False: more of them than a call may have.
    pub fn give_up(&self, state: &mut State, call: usize) -> bool {
        let of = &mut state.calls[call];
        if !of.sent.is_some() {
            return true;
        }
        let Some(place) = of.late.iter().position(|late| !late.is_some()) else {
            return false;
        };
        of.late[place] = std::mem::take(&mut of.sent);
        true
    }

    /// Judges the lock as it is, and sends the step that follows, or waits.
    pub fn look(&self, state: &mut State, call: usize) {
        let has_request_id = self.has_request_id(self.claim(call));
        state.calls[call].watch = Watch::Nothing;
        if state.holds(call) {
            self.look_at_own_holder(state, call);
            return;
        }
        let holder = self
            .retries_of(call)
            .find(|other| has_request_id && state.holds(*other));
        if let Some(other) = holder {
            self.send(state, call, Step::AdoptHolder, other);
        } else if state.waits(call) {
            self.look_from_place(state, call);
        } else if let Some(other) = self
            .retries_of(call)
            .find(|other| has_request_id && state.waits(*other))
        {
            self.look_at_earlier(state, call, other);
        } else {
            self.look_anew(state, call);
        }
    }

    fn look_at_own_holder(&self, state: &mut State, call: usize) {
        let is_adopted = state.holders[call].is_adopted && !self.has(Flaw::GrantsAgainOverAnAdoption);
        if !state.calls[call].is_in_doubt {
            self.now_holds(state, call, call);
        } else if is_adopted {
            // Superseded: the retry's client counts on it as it is.
            state.calls[call].stage = Stage::Done;
        } else {
            self.send(state, call, Step::GrantAgain, call);
        }
    }

    fn was_queued_in_this_session(&self, state: &State, call: usize) -> bool {
        let of = &state.calls[call];
        of.was_queued && of.epoch == state.replicas[self.replica(call)].epoch
    }

    /// Its own claim waits.
    fn look_from_place(&self, state: &mut State, call: usize) {
        if state.waiters[call].session != self.session(state, self.replica(call)) {
            self.send(state, call, Step::MoveWaiter, call);
        } else if self.fits(state, call, NOBODY) {
            self.send(state, call, Step::Promote, call);
        } else if self.is_try(call) {
            self.send(state, call, Step::RemoveTry, call);
        } else {
            state.calls[call].stage = Stage::Waits;
            if self.world.watches {
                state.calls[call].stage = Stage::SetsAWatch;
                state.calls[call].watch = self.what_to_watch(state, call);
            }
        }
    }

    /// An earlier call of its request waits.
    fn look_at_earlier(&self, state: &mut State, call: usize, other: usize) {
        if self.was_queued_in_this_session(state, call) {
            // Another call has adopted its claim.
            state.calls[call].stage = Stage::Done;
        } else if self.fits(state, other, NOBODY) {
            self.send(state, call, Step::AdoptAndPromote, other);
        } else if self.is_try(call) {
            self.send(state, call, Step::RemoveTry, other);
        } else {
            self.send(state, call, Step::AdoptWaiter, other);
        }
    }

    /// Its request has no place.
    fn look_anew(&self, state: &mut State, call: usize) {
        let claim = self.claim(call);
        let is_kept_apart = self.has_request_id(claim) && !self.has(Flaw::NoRequestNode);
        if (is_kept_apart && state.has_ended(claim)) || self.was_queued_in_this_session(state, call) {
            state.calls[call].stage = Stage::Done;
            return;
        }
        state.calls[call].was_queued = false;
        if !state.is_used {
            self.send(state, call, Step::AcquireFree, call);
        } else if self.is_empty(state) {
            self.send(state, call, Step::AcquireEmpty, call);
        } else if self.has(Flaw::JoinsWithoutQueueing)
            && (0..self.calls()).all(|other| !state.waits(other))
            && self.would_fit(state, call, NOBODY)
        {
            self.send(state, call, Step::Join, call);
        } else if self.is_try(call) && self.world.shares[claim] == super::EXCLUSIVE {
            state.calls[call].stage = Stage::Done;
        } else {
            self.send(state, call, Step::Enqueue, call);
        }
    }

    /// The nearest waiter ahead that does not fit beside it, else the one holder in its way, else all children.
    fn what_to_watch(&self, state: &State, call: usize) -> Watch {
        let byte = |of: usize| u8::try_from(of).expect("few calls");
        let is_apart = |other: &usize| {
            let (permits, limit) = self.world.shares[self.claim(call)];
            let (others, of) = self.world.shares[self.claim(*other)];
            permits + others > limit.min(of) || limit != 9 || of != 9
        };
        let own = state.waiters[call].place;
        let ahead = (0..self.calls())
            .filter(|other| *other != call && state.waits(*other) && state.waiters[*other].place < own)
            .filter(is_apart)
            .max_by_key(|other| state.waiters[*other].place);
        if let Some(other) = ahead {
            return Watch::Waiter(byte(other), state.waiters[other].place);
        }
        let mut holders = (0..self.calls()).filter(|other| state.holds(*other)).filter(is_apart);
        let (first, second) = (holders.next(), holders.next());
        match (first, second.filter(|_| !self.has(Flaw::WatchesOneHolder))) {
            (Some(other), None) => Watch::Holder(byte(other), state.holders[other].token),
            _ => Watch::Children,
        }
    }

    /// The waiter of a replica that is next once `but` is gone.
    pub fn next_of(&self, state: &State, but: usize, replica: usize) -> Option<usize> {
        let session = self.session(state, replica);
        (0..self.calls()).find(|call| {
            self.replica(*call) == replica
                && state.calls[*call].stage == Stage::Waits
                && state.waits(*call)
                && state.waiters[*call].session == session
                && self.fits(state, *call, but)
        })
    }

    /// The steps that the calls of a replica sent before can be seen by now, or never take effect.
    pub fn settle_unknown(&self, state: &mut State, replica: usize) {
        for call in (0..self.calls()).filter(|call| self.replica(*call) == replica) {
            let of = &mut state.calls[call];
            if matches!(of.stage, Stage::Unknown | Stage::Undo) {
                of.is_unknown = false;
            }
            if of.stage == Stage::Undo && of.looked_first {
                let stays = state.waits(call) || (state.holds(call) && !state.holders[call].is_adopted);
                if stays {
                    let fault = "a step of a call took effect after its leave was answered";
                    state.wrong.get_or_insert(fault);
                }
                state.left |= 1 << call;
                state.calls[call].stage = Stage::Done;
            }
            if state.calls[call].stage == Stage::Unknown {
                self.look(state, call);
            }
        }
    }

    /// Raises the fence of a replica's session: all that was sent before takes no effect any more.
    pub fn raise_fence(&self, state: &mut State, replica: usize) {
        if !self.has(Flaw::RaisesNoFence) {
            for call in (0..self.calls()).filter(|call| self.replica(*call) == replica) {
                let of = &mut state.calls[call];
                for multi in of.late.iter_mut().chain([&mut of.sent]) {
                    multi.is_fenced = multi.is_some();
                }
            }
            for client in &mut state.clients {
                for multi in [&mut client.release, &mut client.late_release] {
                    if multi.is_some() && multi.next > 0 && usize::from(multi.session) / 2 == replica {
                        multi.is_fenced = true;
                    }
                }
            }
        }
        self.settle_unknown(state, replica);
    }

    /// A call that has left removes what it still has.
    pub fn look_for_undo(&self, state: &mut State, call: usize) {
        let is_adopted = state.holders[call].is_adopted && !self.has(Flaw::UndoIgnoresAdoption);
        if !self.reads_apart {
            self.undo_at_once(state, call, is_adopted);
            return;
        }
        let ignores = self.has(Flaw::UndoIgnoresAdoption);
        let is_own = |other: usize| state.holds(other) && (!state.holders[other].is_adopted || ignores);
        let any = self.has(Flaw::UndoRemovesAny);
        let others = self.retries_of(call).find(|other| any && is_own(*other));
        let step = if state.waits(call) {
            (Step::UndoWaiter, call)
        } else if is_own(call) {
            (Step::UndoHolder, call)
        } else if let Some(other) = others {
            (Step::UndoHolder, other)
        } else {
            self.end_undo(state, call);
            return;
        };
        self.send(state, call, step.0, step.1);
        state.calls[call].stage = Stage::Undoing;
    }

    fn undo_at_once(&self, state: &mut State, call: usize, is_adopted: bool) {
        state.waiters[call].is_there = false;
        if state.holds(call) && is_adopted {
            self.reach(super::Reached::UndoMetAnAdoption);
        } else if state.holds(call) {
            self.reach(super::Reached::UndidAHolder);
            state.holders[call].is_there = false;
        }
        if state.calls[call].is_unknown {
            // Flaw: the fence is raised after the look.
            state.calls[call].looked_first = true;
        } else {
            state.left |= 1 << call;
            state.calls[call].stage = Stage::Done;
        }
    }

    fn end_undo(&self, state: &mut State, call: usize) {
        if state.holds(call) {
            self.reach(super::Reached::UndoMetAnAdoption);
        }
        state.left |= 1 << call;
        state.calls[call].stage = Stage::Done;
    }
}
