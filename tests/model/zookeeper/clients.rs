//! What clients do: they count on a lease, renew it, release it; and how leases and sessions end.

use super::state::{Multi, Releasing, Stage, State, Step};
use super::{Flaw, Protocol, Reached};

/// More than any version: all that rests on a holder.
const ALL: u8 = 99;

impl Protocol {
    /// The client of a claim has an answer: it holds by this node, at this version.
    pub fn believe(&self, state: &mut State, claim: usize, holder: u8, token: u8, version: u8) {
        let client = &mut state.clients[claim];
        client.was_answered = true;
        client.holder = holder;
        client.token = token;
        // Without a token its time was over before the answer came.
        if client.releasing == Releasing::No && token != 0 {
            client.believes = true;
            client.version = version;
        }
    }

    /// What rests on this version (plus one) of a holder, or on older ones, has ended, also for answers on their way.
    fn end_time(&self, state: &mut State, holder: usize, seen: u8) {
        let token = state.holders[holder].token;
        state.over[holder] = state.over[holder].max(seen);
        for call in &mut state.calls {
            let is_it = call.stage == Stage::Holds && usize::from(call.holder) == holder && call.token == token;
            if is_it && call.version.saturating_add(1) <= seen {
                call.token = 0;
            }
        }
    }

    pub fn begin_release(&self, state: &mut State, claim: usize, replica: usize, next: Option<usize>) {
        let session = self.session(state, replica);
        let client = &mut state.clients[claim];
        if client.releasing == Releasing::Unknown {
            client.release_retries += 1;
        }
        client.believes = false;
        let (target, path) = (client.holder, client.token);
        let holder = state.holders[usize::from(target)];
        let is_there = holder.is_there && holder.token == path;
        if !is_there && !self.has(Flaw::OnePathForEachClaim) {
            client.releasing = Releasing::Done;
            return;
        }
        client.releasing = Releasing::Sent;
        client.release = Multi {
            step: Step::Release,
            session,
            target,
            path,
            version: holder.version,
            next: next.map_or(0, |next| u8::try_from(next).expect("few calls") + 1),
            next_path: next.map_or(0, |next| state.waiters[next].place),
            is_fenced: false,
        };
        if let Some(next) = next {
            state.calls[next].stage = Stage::IsNext;
            state.calls[next].watch = super::state::Watch::Nothing;
        }
    }

    /// The answer to a release is lost. None: two of them may not be under way.
    pub fn lose_release(&self, state: &mut State, claim: usize) -> Option<()> {
        let client = &mut state.clients[claim];
        if client.late_release.is_some() {
            return None;
        }
        client.late_release = std::mem::take(&mut client.release);
        client.releasing = Releasing::Unknown;
        if let Some(next) = client.late_release.next() {
            let call = &mut state.calls[next];
            if call.stage == Stage::IsNext {
                call.stage = Stage::Unknown;
                call.is_unknown = true;
                call.is_in_doubt = self.world.grants_again;
            }
        }
        Some(())
    }

    pub fn begin_renewal(&self, state: &mut State, claim: usize) {
        let is_there = state.is_held_by(&state.clients[claim]);
        let client = &mut state.clients[claim];
        client.renewals += 1;
        if is_there {
            client.renewal = Multi {
                step: Step::Renew,
                target: client.holder,
                path: client.token,
                version: state.holders[usize::from(client.holder)].version,
                ..Multi::default()
            };
        } else {
            client.believes = false;
        }
    }

    pub fn renew(&self, state: &mut State, claim: usize, is_late: bool) {
        let client = &mut state.clients[claim];
        let place = if is_late {
            &mut client.late_renewal
        } else {
            &mut client.renewal
        };
        let multi = std::mem::take(place);
        let target = usize::from(multi.target);
        let holder = &mut state.holders[target];
        let is_there = holder.is_there && holder.token == multi.path;
        let passes = is_there && (holder.version == multi.version || !self.reads_apart);
        let is_revived = !is_there && self.has(Flaw::RenewalCreates);
        if passes {
            holder.version += 1;
        } else if is_revived {
            state.is_used = true;
            *holder = super::state::Holder {
                is_there: true,
                is_adopted: false,
                version: multi.version + 1,
                token: multi.path,
            };
            state.over[target] = 0;
        }
        if is_late || !(passes || is_revived) {
            return;
        }
        self.reach(Reached::Renewed);
        let holder = state.holders[target];
        if state.clients[claim].releasing == Releasing::No && holder.version + 1 > state.over[target] {
            self.believe(state, claim, multi.target, holder.token, holder.version);
        }
    }

    pub fn lose_renewal(&self, state: &mut State, claim: usize) -> Option<()> {
        let client = &mut state.clients[claim];
        if client.late_renewal.is_some() {
            return None;
        }
        client.late_renewal = std::mem::take(&mut client.renewal);
        Some(())
    }

    /// A replica has seen a version for its whole TTL, and sends the expiry, or (read and step are one) it happens.
    pub fn elapse(&self, state: &mut State, replica: usize, holder: usize) {
        if !self.reads_apart {
            self.reach(Reached::Expired);
            self.end_time(state, holder, ALL);
            self.end_holder(state, holder);
            return;
        }
        let seen = state.replicas[replica].watched[holder];
        self.end_time(state, holder, seen);
        let node = state.holders[holder];
        let of = &mut state.replicas[replica];
        of.expires = u8::try_from(holder).expect("few calls") + 1;
        of.expires_path = node.token;
        of.expires_version = if self.has(Flaw::WatchesAnyVersion) {
            node.version
        } else {
            seen - 1
        };
    }

    pub fn expire(&self, state: &mut State, replica: usize) {
        let of = &mut state.replicas[replica];
        let holder = usize::from(of.expires) - 1;
        let (path, version) = (of.expires_path, of.expires_version);
        of.expires = 0;
        of.watched[holder] = 0;
        let version = (!self.has(Flaw::ExpiryIgnoresTheVersion)).then_some(version);
        match self.found(state, holder, path, version) {
            Some(of) => {
                self.reach(Reached::Expired);
                self.end_holder(state, of);
            }
            None => self.reach(Reached::ExpiryMetANewerVersion),
        }
    }

    pub fn force(&self, state: &mut State, holder: usize) {
        self.end_time(state, holder, ALL);
        self.end_holder(state, holder);
        state.forced += 1;
        let client = &mut state.clients[self.claim(holder)];
        if usize::from(client.holder) == holder {
            client.believes = false;
        }
    }

    pub fn crash(&self, state: &mut State, replica: usize) -> Option<()> {
        state.crashes += 1;
        state.replicas[replica].is_up = false;
        for call in (0..self.calls()).filter(|call| self.replica(*call) == replica) {
            if !matches!(state.calls[call].stage, Stage::Idle | Stage::Done) {
                self.give_up(state, call).then_some(())?;
                state.calls[call].stage = Stage::Done;
            }
        }
        Some(())
    }

    pub fn end_session(&self, state: &mut State, session: u8) {
        state.sessions &= !(1 << session);
        state.fences &= !(1 << session);
        for waiter in state.waiters.iter_mut().filter(|waiter| waiter.session == session) {
            waiter.is_there = false;
        }
        let replica = usize::from(session) / 2;
        let of = state.replicas[replica];
        if of.is_up && of.epoch == session & 1 {
            state.expired += 1;
            self.begin_session(state, replica);
            self.settle_unknown(state, replica);
        }
    }

    /// A replica gives up its session for a new one; the old one lives on until its time is over.
    pub fn switch_session(&self, state: &mut State, replica: usize) {
        state.switched += 1;
        self.begin_session(state, replica);
        if !self.has(Flaw::OldFenceStays) {
            state.fences &= !(1 << (replica * 2));
        }
        self.settle_unknown(state, replica);
    }

    fn begin_session(&self, state: &mut State, replica: usize) {
        state.replicas[replica].epoch = 1;
        state.sessions |= 1 << (replica * 2 + 1);
        state.fences |= 1 << (replica * 2 + 1);
    }
}
