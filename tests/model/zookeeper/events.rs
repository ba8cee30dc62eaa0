//! What may happen in a state, and what follows.

use super::state::{Answer, Releasing, Stage, State, Step, Watch};
use super::{Flaw, Protocol, Reached};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Begins(usize),
    ReadsAnEarlierList(usize),
    StepIsApplied(usize),
    LateStepIsApplied(usize, usize),
    GetsNoAnswer(usize),
    Leaves(usize),
    RaisesTheFence(usize),
    SetsAWatch(usize),
    Wakes(usize),
    IsAnswered(usize),
    LooksForUndo(usize),
    BatchIsApplied(usize, usize),
    BeliefEnds(usize),
    Releases(usize, usize, Option<usize>),
    ReleaseIsApplied(usize),
    ReleaseGetsNoAnswer(usize),
    LateReleaseIsApplied(usize),
    Renews(usize),
    RenewalIsApplied(usize),
    RenewalGetsNoAnswer(usize),
    LateRenewalIsApplied(usize),
    SeesAHolder(usize, usize),
    Elapses(usize, usize),
    Expires(usize),
    IsForced(usize),
    IsSwept,
    Crashes(usize),
    SessionEnds(u8),
    SessionIsSwitched(usize),
}

impl Protocol {
    pub fn begin(&self) -> State {
        let mut state = State::default();
        for replica in 0..2 {
            state.replicas[replica].is_up = true;
            state.sessions |= 1 << (replica * 2);
            state.fences |= 1 << (replica * 2);
        }
        state
    }

    pub fn events(&self, state: &State) -> Vec<Event> {
        let mut events = Vec::with_capacity(24);
        (0..self.calls()).for_each(|call| self.events_of_call(state, call, &mut events));
        (0..state.clients.len()).for_each(|claim| self.events_of_client(state, claim, &mut events));
        if state.is_used && self.is_empty(state) {
            events.push(Event::IsSwept);
        }
        (0..2).for_each(|replica| self.events_of_replica(state, replica, &mut events));
        if state.forced < self.world.forced {
            events.extend((0..self.calls()).filter(|call| state.holds(*call)).map(Event::IsForced));
        }
        events
    }

    fn events_of_call(&self, state: &State, call: usize, events: &mut Vec<Event>) {
        let (of, replica) = (&state.calls[call], self.replica(call));
        let late = (0..2).filter(|place| of.late[*place].is_some());
        events.extend(late.map(|place| Event::LateStepIsApplied(call, place)));
        if !state.replicas[replica].is_up {
            return;
        }
        match of.stage {
            Stage::Idle => events.extend(self.may_begin(state, call).then_some(Event::Begins(call))),
            Stage::Done => {}
            Stage::Undo if of.is_unknown && (!self.has(Flaw::LooksFirst) || of.looked_first) => {
                events.push(Event::RaisesTheFence(call));
            }
            Stage::Undo => events.push(Event::LooksForUndo(call)),
            Stage::Undoing => events.push(Event::StepIsApplied(call)),
            Stage::Unknown => events.extend([Event::RaisesTheFence(call), Event::Leaves(call)]),
            Stage::Sent => {
                events.extend([
                    Event::StepIsApplied(call),
                    Event::GetsNoAnswer(call),
                    Event::Leaves(call),
                ]);
                if self.has(Flaw::JudgesByAnEarlierList) && of.sent.step == Step::Enqueue && !of.judged_early {
                    events.push(Event::ReadsAnEarlierList(call));
                }
            }
            Stage::SetsAWatch => events.extend([Event::SetsAWatch(call), Event::Leaves(call)]),
            Stage::Waits => {
                events.push(Event::Leaves(call));
                events.extend(self.is_woken(state, call).then_some(Event::Wakes(call)));
            }
            Stage::IsNext => events.push(Event::Leaves(call)),
            Stage::Holds => events.extend([Event::IsAnswered(call), Event::Leaves(call)]),
        }
        if self.world.batches && is_batchable(state, call) {
            let with = |other: &usize| *other != call && self.replica(*other) == replica && is_batchable(state, *other);
            let others = (0..self.calls()).filter(with);
            events.extend(others.map(|other| Event::BatchIsApplied(call, other)));
        }
    }

    fn may_begin(&self, state: &State, call: usize) -> bool {
        let claim = self.claim(call);
        let client = &state.clients[claim];
        let is_idle = |other: usize| self.claim(other) == claim && state.calls[other].stage == Stage::Idle;
        let asks = !client.was_answered && client.releasing == Releasing::No;
        (self.world.hedges || asks) && !(0..call).any(is_idle)
    }

    fn is_woken(&self, state: &State, call: usize) -> bool {
        if self.world.watches {
            return state.calls[call].watch == Watch::Nothing;
        }
        self.has_lost_its_place(state, call) || self.fits(state, call, super::state::NOBODY)
    }

    fn has_lost_its_place(&self, state: &State, call: usize) -> bool {
        let session = self.session(state, self.replica(call));
        !state.waits(call) || state.waiters[call].session != session
    }

    fn events_of_client(&self, state: &State, claim: usize, events: &mut Vec<Event>) {
        let client = &state.clients[claim];
        let up = || (0..2).filter(|replica| state.replicas[*replica].is_up);
        if client.believes {
            events.push(Event::BeliefEnds(claim));
        }
        if client.was_answered && client.releasing == Releasing::No {
            for replica in up() {
                events.push(Event::Releases(claim, replica, None));
                let next = self.next_of(state, usize::from(client.holder), replica);
                let next = next.filter(|_| state.is_held_by(client));
                events.extend(next.map(|next| Event::Releases(claim, replica, Some(next))));
            }
            if client.renewals < self.world.renewals && !client.renewal.is_some() {
                events.push(Event::Renews(claim));
            }
        }
        if client.releasing == Releasing::Sent {
            if state.replicas[usize::from(client.release.session) / 2].is_up {
                events.push(Event::ReleaseIsApplied(claim));
            }
            events.push(Event::ReleaseGetsNoAnswer(claim));
        }
        if client.releasing == Releasing::Unknown && client.release_retries < self.world.release_retries {
            events.extend(up().map(|replica| Event::Releases(claim, replica, None)));
        }
        if client.late_release.is_some() {
            events.push(Event::LateReleaseIsApplied(claim));
        }
        if client.renewal.is_some() {
            events.extend([Event::RenewalIsApplied(claim), Event::RenewalGetsNoAnswer(claim)]);
        }
        if client.late_renewal.is_some() {
            events.push(Event::LateRenewalIsApplied(claim));
        }
    }

    fn events_of_replica(&self, state: &State, replica: usize, events: &mut Vec<Event>) {
        let of = &state.replicas[replica];
        for holder in 0..self.calls() {
            if self.reads_apart {
                self.events_of_watch(state, replica, holder, events);
            } else if replica == 0 && state.holds(holder) && !is_believed(state, holder, None) {
                // Whatever its version is, somebody may have seen it for a whole TTL by now.
                events.push(Event::Elapses(0, holder));
            }
        }
        if of.expires > 0 {
            events.push(Event::Expires(replica));
        }
        if of.is_up && state.crashes < self.world.crashes {
            events.push(Event::Crashes(replica));
        }
        let is_first = of.epoch == 0;
        if of.is_up && is_first && state.switched < self.world.session_switches {
            events.push(Event::SessionIsSwitched(replica));
        }
        let own = self.session(state, replica);
        let may_expire = is_first && state.expired < self.world.session_ends;
        let first = own - of.epoch;
        for session in [first, first + 1] {
            let lives = state.sessions >> session & 1 == 1;
            if lives && (!of.is_up || session != own || may_expire) {
                events.push(Event::SessionEnds(session));
            }
        }
    }

    fn events_of_watch(&self, state: &State, replica: usize, holder: usize, events: &mut Vec<Event>) {
        let of = &state.replicas[replica];
        let (seen, version) = (of.watched[holder], state.holders[holder].version);
        let may_watch = !self.has(Flaw::OnlyOwnLeasesExpire) || self.replica(holder) == replica;
        let is_new = seen != version + 1 && (seen == 0 || !self.has(Flaw::WatchesAnyVersion));
        if of.is_up && state.holds(holder) && is_new && may_watch {
            events.push(Event::SeesAHolder(replica, holder));
        }
        const ANY: [Flaw; 3] = [
            Flaw::ExpiryIgnoresTheVersion,
            Flaw::WatchesAnyVersion,
            Flaw::OnePathForEachClaim,
        ];
        let may_hit = ANY.iter().any(|flaw| self.has(*flaw)) || (state.holds(holder) && version + 1 == seen);
        let is_over = !is_believed(state, holder, Some(seen));
        if of.is_up && of.expires == 0 && seen > 0 && is_over && may_hit {
            events.push(Event::Elapses(replica, holder));
        }
    }

    /// What follows an event. None if it cannot happen.
    pub fn next(&self, before: &State, event: Event) -> Option<State> {
        let mut after = *before;
        self.happens(&mut after, event)?;
        if self.world.watches {
            self.wake_by_watches(before, &mut after);
        }
        self.settle(&mut after);
        Some(after)
    }

    fn happens(&self, state: &mut State, event: Event) -> Option<()> {
        match event {
            Event::Begins(call) => self.begin_call(state, call),
            Event::ReadsAnEarlierList(call) => {
                self.is_empty(state).then_some(())?;
                state.calls[call].judged_early = true;
            }
            Event::StepIsApplied(call) => {
                let (sent, zxid) = (state.calls[call].sent, state.next_zxid());
                let answer = self.apply(state, call, &sent, zxid);
                self.answered(state, call, answer);
            }
            Event::LateStepIsApplied(call, place) => self.apply_late(state, call, place),
            Event::GetsNoAnswer(call) => {
                let step = state.calls[call].sent.step;
                self.give_up(state, call).then_some(())?;
                let grants = self.world.grants_again && step.grants();
                let of = &mut state.calls[call];
                of.stage = Stage::Unknown;
                of.is_unknown = true;
                of.is_in_doubt |= grants;
            }
            Event::Leaves(call) => self.leave(state, call)?,
            Event::RaisesTheFence(call) => self.raise_fence(state, self.replica(call)),
            Event::SetsAWatch(call) => self.set_watch(state, call),
            Event::Wakes(call) => self.look(state, call),
            Event::IsAnswered(call) => self.deliver(state, call),
            Event::LooksForUndo(call) => self.look_for_undo(state, call),
            Event::BatchIsApplied(first, second) => self.apply_batch(state, first, second)?,
            Event::BeliefEnds(claim) => state.clients[claim].believes = false,
            Event::Releases(claim, replica, next) => self.begin_release(state, claim, replica, next),
            Event::ReleaseIsApplied(claim) => {
                let multi = state.clients[claim].release;
                self.release(state, claim, multi, false);
            }
            Event::ReleaseGetsNoAnswer(claim) => self.lose_release(state, claim)?,
            Event::LateReleaseIsApplied(claim) => {
                let multi = std::mem::take(&mut state.clients[claim].late_release);
                self.release(state, claim, multi, true);
            }
            Event::Renews(claim) => self.begin_renewal(state, claim),
            Event::RenewalIsApplied(claim) => self.renew(state, claim, false),
            Event::RenewalGetsNoAnswer(claim) => self.lose_renewal(state, claim)?,
            Event::LateRenewalIsApplied(claim) => self.renew(state, claim, true),
            Event::SeesAHolder(replica, holder) => {
                state.replicas[replica].watched[holder] = state.holders[holder].version + 1;
            }
            Event::Elapses(replica, holder) => self.elapse(state, replica, holder),
            Event::Expires(replica) => self.expire(state, replica),
            Event::IsForced(holder) => self.force(state, holder),
            Event::IsSwept => state.is_used = false,
            Event::Crashes(replica) => self.crash(state, replica)?,
            Event::SessionEnds(session) => self.end_session(state, session),
            Event::SessionIsSwitched(replica) => self.switch_session(state, replica),
        }
        Some(())
    }

    fn begin_call(&self, state: &mut State, call: usize) {
        self.send(state, call, Step::AcquireFree, call);
        if !self.world.hedges {
            for earlier in (0..call).filter(|earlier| self.claim(*earlier) == self.claim(call)) {
                state.calls[earlier].is_abandoned = true;
            }
        }
    }

    fn apply_late(&self, state: &mut State, call: usize, place: usize) {
        let late = std::mem::take(&mut state.calls[call].late[place]);
        let before = (state.is_used, state.holders, state.waiters);
        let zxid = state.next_zxid();
        self.apply(state, call, &late, zxid);
        if before != (state.is_used, state.holders, state.waiters) {
            self.reach(Reached::TookEffectLate);
        }
    }

    fn leave(&self, state: &mut State, call: usize) -> Option<()> {
        let (stage, was_sent) = (state.calls[call].stage, state.calls[call].sent.is_some());
        self.give_up(state, call).then_some(())?;
        let is_next = stage == Stage::IsNext && !self.has(Flaw::NextIsNotItsStep);
        state.calls[call].is_unknown |= was_sent || is_next;
        state.calls[call].stage = Stage::Undo;
        Some(())
    }

    /// What was read a moment ago is ahead; the watch is set now, and says whether it is there. A list that sets a
    /// watch on the children is the one that is judged.
    fn set_watch(&self, state: &mut State, call: usize) {
        let watch = state.calls[call].watch;
        let judges = watch == Watch::Children && !self.has(Flaw::JudgesAnotherList);
        let fits = judges && self.fits(state, call, super::state::NOBODY);
        let is_still_so = state.is_watched(watch) && state.waits(call) && !fits;
        if is_still_so || self.has(Flaw::WatchesBlindly) {
            state.calls[call].stage = Stage::Waits;
        } else {
            self.look(state, call);
        }
    }

    fn deliver(&self, state: &mut State, call: usize) {
        let of = state.calls[call];
        state.calls[call].stage = Stage::Done;
        if !of.is_abandoned {
            self.believe(state, self.claim(call), of.holder, of.token, of.version);
        }
    }

    /// Two steps in one `multi`. One that is refused refuses both: they are sent again apart.
    fn apply_batch(&self, state: &mut State, first: usize, second: usize) -> Option<()> {
        let (one, two) = (state.calls[first].sent, state.calls[second].sent);
        let is_grant = |answer: Answer, step: Step| answer == Answer::Holds && step != Step::AdoptHolder;
        let zxid = state.next_zxid();
        let of_one = self.apply(state, first, &one, zxid);
        let grants = is_grant(of_one, one.step);
        let may_share = self.has(Flaw::TwoGrantsShare);
        let zxid = if grants && may_share { zxid } else { state.next_zxid() };
        let of_two = self.apply(state, second, &two, zxid);
        let is_refused = of_one == Answer::Refused || of_two == Answer::Refused;
        if is_refused || (!may_share && grants && is_grant(of_two, two.step)) {
            return None;
        }
        self.reach(Reached::Batched);
        self.answered(state, first, of_one);
        self.answered(state, second, of_two);
        Some(())
    }

    /// A watch that was set says when its node goes, or the children change.
    fn wake_by_watches(&self, before: &State, after: &mut State) {
        let is_changed = (0..self.calls())
            .any(|call| before.holds(call) != after.holds(call) || before.waits(call) != after.waits(call));
        for call in 0..self.calls() {
            let of = after.calls[call];
            let is_gone = !after.is_watched(of.watch) && before.is_watched(of.watch);
            let fired = is_gone || (of.watch == Watch::Children && is_changed);
            if of.stage == Stage::Waits && (fired || self.has_lost_its_place(after, call)) {
                after.calls[call].watch = Watch::Nothing;
            }
        }
    }
}

fn is_batchable(state: &State, call: usize) -> bool {
    let of = &state.calls[call];
    of.stage == Stage::Sent && of.sent.is_some() && of.sent.step != Step::Join && !of.sent.step.is_undo()
}

/// A client is sure of a holder, by this version (plus one) or a newer one.
fn is_believed(state: &State, holder: usize, version: Option<u8>) -> bool {
    let token = state.holders[holder].token;
    state.clients.iter().any(|client| {
        let is_it = usize::from(client.holder) == holder && client.token == token;
        client.believes && is_it && version.is_none_or(|version| client.version < version)
    })
}
