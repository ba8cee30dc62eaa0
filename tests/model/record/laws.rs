//! What is promised. Each law is named by its promise, and says how it looks when the promise is broken.

use super::engine::{Call, Stage};
use super::root::{Holder, Root, TTL, Waiter};
use super::store::{Commit, State};
use super::{Chance, World};

pub const ONE_HOLDER: &str = "two clients count on the lock";
pub const LEASE_LASTS: &str = "the lock was taken from a client that counts on it";
pub const LEASE_IS_CONFIRMED: &str = "a client that counts on the lock was told that it is gone";
pub const LEASE_ENDS: &str = "a lease lives for longer than its TTL";
pub const END_IS_FINAL: &str = "an end that was shown was not final";
pub const UNDO_IS_FINAL: &str = "a call that had left waits or holds";
pub const TOKENS_RISE: &str = "a token does not rise";
pub const ONE_PLACE: &str = "a claim has two places";
pub const PLACE_LASTS: &str = "a place was taken";
pub const SUPERSEDED_STAYS_OUT: &str = "a call that was superseded would acquire again";
pub const CLOCK_RUNS: &str = "a lock's clock stands still after a server has twice found it so";
pub const READ_IS_CURRENT: &str = "a read shows what is not so at that moment";

impl State {
    fn has_left(&self, call: u8) -> bool {
        self.calls[usize::from(call)].stage == Stage::Left
    }

    fn counts(&self, call: &Call) -> bool {
        call.stage == Stage::Holds && self.time < call.until
    }

    /// What is wrong with this state.
    pub fn wrong(&self, world: &World) -> Option<&'static str> {
        let clock = self.clock(world.flaw);
        let live = self.root.live(clock);
        let calls = self.calls.iter().zip(world.calls);
        let counting = calls.filter(|(call, of)| self.counts(call) && !self.over[usize::from(of.0)]);
        let counting: Vec<u8> = counting.map(|(call, _)| call.token).collect();
        let is_taken = |token: &u8| live.is_none_or(|holder| holder.token != *token);
        let waits = |waiter: &Waiter| self.has_left(waiter.call);
        let is_undone = |holder: &Holder| self.has_left(holder.call) && !holder.adopted;
        let is_ended = |holder: &Holder| self.ended.contains(&holder.token);
        let laws = [
            (counting.windows(2).any(|tokens| tokens[0] != tokens[1]), ONE_HOLDER),
            (counting.iter().any(is_taken), LEASE_LASTS),
            (live.is_some_and(|holder| holder.ends - clock > TTL), LEASE_ENDS),
            (live.is_some_and(is_ended), END_IS_FINAL),
            (self.root.waiters.iter().any(waits), UNDO_IS_FINAL),
            (live.is_some_and(is_undone), UNDO_IS_FINAL),
        ];
        let broken = laws.iter().find(|(is_broken, _)| *is_broken);
        self.wrong.or(broken.map(|(_, law)| *law))
    }

    /// Compares a root that is committed with the one before.
    pub fn compare(&mut self, world: &World, after: &Root) {
        let holds = |claim: u8| after.holder.iter().filter(|holder| holder.claim == claim).count();
        let places = |claim: u8| after.waiters.iter().filter(|waiter| waiter.claim == claim).count() + holds(claim);
        for waiter in &self.root.waiters {
            let is_left = matches!(self.calls[usize::from(waiter.call)].stage, Stage::Leaving | Stage::Left);
            let mut tries = world.calls.iter().filter(|(.., is_try)| *is_try);
            let is_tried = tries.any(|(claim, ..)| *claim == waiter.claim);
            let is_dead = self.servers[usize::from(waiter.server)].is_dead;
            let may_go = is_left || is_tried || is_dead || self.has_spent(world, Chance::Misjudgement);
            if places(waiter.claim) == 0 && !may_go {
                self.wrong = Some(PLACE_LASTS);
            }
        }
        if (0..3).any(|claim| places(claim) > 1) {
            self.wrong = Some(ONE_PLACE);
        }
        self.show_end_unless(after.held());
    }

    /// A read is answered by what its server has in its cache.
    pub fn show(&mut self, commit: &Commit, clock: u8) {
        let shown = commit.root.held();
        if shown != self.root.live(clock).map(|holder| holder.token) {
            self.wrong = Some(READ_IS_CURRENT);
        }
        self.show_end_unless(shown);
    }

    /// The holder's lease is shown to have ended, unless it has this token.
    pub fn show_end_unless(&mut self, token: Option<u8>) {
        if let Some(ended) = self.root.held().filter(|held| token != Some(*held)) {
            self.show_end(ended);
        }
    }

    /// This call would acquire anew, although another call of its claim has ended it.
    pub fn would_acquire_anew(&mut self, world: &World, call: u8) {
        let mut calls = (0..).zip(self.calls.iter().zip(world.calls));
        let claim = world.claim(call);
        let is_ended = calls.any(|(other, (one, of))| other != call && of.0 == claim && one.stage == Stage::Over);
        let excuses = [Chance::Death, Chance::Removal, Chance::Misjudgement];
        if is_ended && !excuses.into_iter().any(|excuse| self.has_spent(world, excuse)) {
            self.wrong = Some(SUPERSEDED_STAYS_OUT);
        }
    }
}
