//! What can happen.

use super::engine::{Server, Stage};
use super::root::{Root, Verb};
use super::store::State;
use super::{Chance, Flaw, World};

#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "shown by Debug")]
pub enum Event {
    Acquires(u8),
    Promotes(u8),
    Leaves(u8),
    Releases(u8, Option<u8>),
    Renews(u8),
    Reads(u8),
    /// This server looks at the lock, and ends the waiting claims of that one.
    Looks(u8, u8),
    /// At this estimate of the lock's clock.
    Sends(u8, u8),
    Arrives(u8),
    ArrivesUnanswered(u8),
    LosesAnAnswer(u8),
    Settles(u8),
    SendsAgain(u8),
    Ticks,
    StepsBack,
    Dies(u8),
    Forgets(u8),
    IsRemoved,
}

/// All that may follow.
pub fn next(world: &World, state: &State) -> Vec<(Event, State)> {
    let mut out = Steps {
        world,
        state,
        next: Vec::new(),
    };
    (0..state.calls.len() as u8).for_each(|call| out.of_call(call));
    (0..state.servers.len() as u8).for_each(|server| out.of_server(server));
    out.of_store();
    out.next
}

struct Steps<'a> {
    world: &'a World,
    state: &'a State,
    next: Vec<(Event, State)>,
}

impl Steps<'_> {
    fn add(&mut self, event: Event, change: impl FnOnce(&mut State)) {
        let mut state = self.state.clone();
        change(&mut state);
        state.normalise(self.world);
        self.next.push((event, state));
    }

    /// A call turns to its server.
    fn ask(&mut self, event: Event, call: u8, stage: Stage, verb: Verb) {
        let (claim, server) = (self.world.claim(call), self.world.server(call));
        self.add(event, |state| {
            state.over[usize::from(claim)] |= stage == Stage::Releasing;
            state.call(call).stage = stage;
            state.servers[usize::from(server)].queue.push(verb);
        });
    }

    fn of_call(&mut self, call: u8) {
        let (state, world) = (self.state, self.world);
        let server = &state.servers[usize::from(world.server(call))];
        let one = &state.calls[usize::from(call)];
        if server.is_dead {
            return;
        }
        match one.stage {
            Stage::Wants => self.ask(Event::Acquires(call), call, Stage::Asked, Verb::Acquire(call)),
            Stage::Asked => self.ask(Event::Leaves(call), call, Stage::Leaving, Verb::Undo(call)),
            Stage::Waits => {
                self.ask(Event::Leaves(call), call, Stage::Leaving, Verb::Undo(call));
                // It is told when its claim is eligible, or not its own any more.
                let root = &state.root;
                let is_free = root.live(state.clock(world.flaw)).is_none();
                let place = root.waiters.iter().position(|waiter| waiter.call == call);
                if place.is_none_or(|place| place == 0 && is_free) {
                    self.ask(Event::Promotes(call), call, Stage::Asked, Verb::Promote(call));
                }
            }
            Stage::Holds => {
                let token = one.token;
                let waits = |other: &u8| {
                    let is_here = world.server(*other) == world.server(call);
                    is_here && state.calls[usize::from(*other)].stage == Stage::Waits
                };
                let nexts = (0..state.calls.len() as u8).filter(waits).map(Some);
                for next in nexts.chain([None]) {
                    let release = Verb::Release { call, token, next };
                    self.ask(Event::Releases(call, next), call, Stage::Releasing, release);
                }
                if state.may(Chance::Renewal) && !one.is_renewing {
                    self.add(Event::Renews(call), |state| {
                        state.spend(Chance::Renewal);
                        state.call(call).is_renewing = true;
                        state.servers[usize::from(world.server(call))]
                            .queue
                            .push(Verb::Renew { call, token });
                    });
                }
            }
            Stage::Releasing | Stage::Leaving | Stage::Left | Stage::Over => {}
        }
    }

    fn of_server(&mut self, at: u8) {
        let (state, world) = (self.state, self.world);
        let server = &state.servers[usize::from(at)];
        if server.is_dead {
            return;
        }
        let (clock, cached) = (state.clock(world.flaw), server.cache.clock);
        if !server.queue.is_empty() && (server.flight.is_none() || world.flaw == Flaw::TwoInFlight) {
            self.add(Event::Sends(at, clock), |state| state.send(world, at, clock));
            // The lock's clock is at least at the cached stamp; here any time between is possible.
            if server.cache.version > 0 && cached < clock {
                self.add(Event::Sends(at, cached), |state| state.send(world, at, cached));
            }
            if state.may(Chance::FastEstimate) {
                self.add(Event::Sends(at, clock + 1), |state| {
                    state.spend(Chance::FastEstimate);
                    state.send(world, at, clock + 1);
                });
            }
        }
        match &server.flight {
            Some(flight) if flight.is_read => self.add(Event::SendsAgain(at), |state| state.send_again(at)),
            Some(flight) if flight.is_lost => self.add(Event::Settles(at), |state| state.settle(world, at, true)),
            Some(_) if state.may(Chance::Loss) => self.add(Event::LosesAnAnswer(at), |state| {
                state.spend(Chance::Loss);
                state.lose(at);
            }),
            _ => {}
        }
        if state.may(Chance::Read) {
            self.add(Event::Reads(at), |state| {
                state.spend(Chance::Read);
                state.servers[usize::from(at)].queue.push(Verb::Inspect);
            });
        }
        if state.may(Chance::Forget) && server.cache.version > 0 && server.flight.is_none() {
            self.add(Event::Forgets(at), |state| {
                state.spend(Chance::Forget);
                state.servers[usize::from(at)].cache = Root::default();
            });
        }
        if state.may(Chance::Death) {
            self.add(Event::Dies(at), |state| state.die(world, at));
        }
        for (other, dead) in (0..).zip(&state.servers) {
            let waits = state.root.waiters.iter().any(|waiter| waiter.server == other);
            let is_asked = server.queue.iter().any(|verb| matches!(verb, Verb::Look { .. }));
            let may_misjudge = state.may(Chance::Misjudgement) && other != at;
            if waits && !is_asked && server.flight.is_none() && (dead.is_dead || may_misjudge) {
                self.add(Event::Looks(at, other), |state| {
                    if !dead.is_dead {
                        state.spend(Chance::Misjudgement);
                    }
                    state.servers[usize::from(at)].queue.push(Verb::Look { dead: other });
                });
            }
        }
    }

    fn of_store(&mut self) {
        let (state, world) = (self.state, self.world);
        for (place, commit) in state.net.iter().enumerate() {
            let server = &state.servers[usize::from(commit.server)];
            self.add(Event::Arrives(commit.server), |state| state.arrive(world, place, true));
            if state.may(Chance::Loss) && server.waits_for(commit) {
                self.add(Event::ArrivesUnanswered(commit.server), |state| {
                    state.spend(Chance::Loss);
                    state.arrive(world, place, false);
                });
            }
        }
        if state.may(Chance::Tick) {
            self.add(Event::Ticks, |state| {
                state.spend(Chance::Tick);
                state.time += 1;
            });
        }
        if state.may(Chance::StepBack) {
            self.add(Event::StepsBack, |state| {
                state.spend(Chance::StepBack);
                state.back += 2;
            });
        }
        if state.may(Chance::Removal) && state.may_remove() {
            self.add(Event::IsRemoved, |state| {
                state.spend(Chance::Removal);
                state.remove(world.flaw);
            });
        }
    }
}

impl State {
    fn die(&mut self, world: &World, at: u8) {
        self.spend(Chance::Death);
        self.servers[usize::from(at)] = Server {
            is_dead: true,
            ..Server::default()
        };
        for (call, of) in self.calls.iter_mut().zip(world.calls) {
            if of.1 == at && call.stage != Stage::Holds {
                call.stage = Stage::Over;
            }
        }
    }
}
