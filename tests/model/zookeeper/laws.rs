//! What must be true in every state.

use super::Protocol;
use super::state::{CLAIMS, Multi, NOBODY, Releasing, Stage, State, Watch};

impl Protocol {
    pub fn wrong(&self, state: &State) -> Option<&'static str> {
        let calls = || 0..self.calls();
        let believers = (0..CLAIMS).filter(|claim| state.clients[*claim].believes);
        let holders = calls().filter(|call| state.holds(*call)).map(|call| self.claim(call));
        let is_gone = |claim: usize| {
            let client = &state.clients[claim];
            client.believes && !state.is_held_by(client)
        };
        let has_two_places = |claim: usize| {
            let of = calls().filter(|call| self.claim(*call) == claim);
            let places = of.map(|call| usize::from(state.holds(call)) + usize::from(state.waits(call)));
            self.has_request_id(claim) && places.sum::<usize>() > 1
        };
        if let Some(wrong) = state.wrong {
            return Some(wrong);
        }
        let laws = [
            (!self.fit(believers), "more believe that they hold than fit"),
            (!self.fit(holders), "more holders than fit"),
            ((0..CLAIMS).any(is_gone), "a client counts on a holder that is gone"),
            ((0..CLAIMS).any(has_two_places), "a request has two places"),
        ];
        let broken = laws.iter().find(|(is_broken, _)| *is_broken);
        broken.map(|(_, law)| *law).or_else(|| self.wrong_when_quiet(state))
    }

    fn fit(&self, claims: impl Iterator<Item = usize>) -> bool {
        let (used, limit) = claims.fold((0, u8::MAX), |(used, limit), claim| {
            let (permits, of) = self.world.shares[claim];
            (used + permits, limit.min(of))
        });
        used <= limit
    }

    /// What must be true once nothing is under way.
    fn wrong_when_quiet(&self, state: &State) -> Option<&'static str> {
        if !self.is_quiet(state) {
            return None;
        }
        let calls = || 0..self.calls();
        let is_waiting = |call: usize| state.calls[call].stage == Stage::Waits;
        let is_left_behind = |call: usize| {
            let session = state.waiters[call].session;
            let replica = &state.replicas[usize::from(session) / 2];
            let lives = replica.is_up && replica.epoch == session & 1;
            state.waits(call) && !is_waiting(call) && lives
        };
        if calls().any(is_left_behind) {
            return Some("a waiter was left behind");
        }
        let is_awake = |call: usize| {
            let wakes = if self.world.watches {
                state.calls[call].watch == Watch::Nothing
            } else {
                self.fits(state, call, NOBODY)
            };
            state.waits(call) && is_waiting(call) && wakes
        };
        let all_wait = calls().all(|call| !state.waits(call) || is_waiting(call));
        let is_stuck = calls().any(|call| state.waits(call) && self.fits(state, call, NOBODY));
        if all_wait && is_stuck && !calls().any(is_awake) {
            return Some("nobody wakes a waiter that fits");
        }
        let is_counted_on = |call: usize| {
            let by = |client: &super::state::Client| {
                client.believes && usize::from(client.holder) == call && client.token == state.holders[call].token
            };
            state.clients.iter().any(by)
        };
        let all_down = state.replicas.iter().all(|replica| !replica.is_up);
        let only_own = self.has(super::Flaw::OnlyOwnLeasesExpire);
        let is_watched = |call: usize| {
            let watches =
                |replica: usize| state.replicas[replica].is_up && (!only_own || self.replica(call) == replica);
            all_down || (0..2).any(watches)
        };
        let stays = |call: usize| state.holds(call) && !is_counted_on(call) && !is_watched(call);
        calls()
            .any(stays)
            .then_some("nobody watches over a lease that nobody counts on")
    }

    fn is_quiet(&self, state: &State) -> bool {
        let rests = |stage: Stage| matches!(stage, Stage::Done | Stage::Waits | Stage::Idle);
        (0..self.calls()).all(|call| rests(state.calls[call].stage) && !state.calls[call].late[0].is_some())
            && state.clients.iter().all(|client| {
                let late = [client.late_release, client.renewal, client.late_renewal];
                client.releasing != Releasing::Sent && !late.iter().any(Multi::is_some)
            })
            && state.replicas.iter().all(|replica| replica.expires == 0)
    }
}
