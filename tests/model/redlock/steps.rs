//! What can happen: steps of the attempts, messages that arrive, time that passes, nodes that
//! forget. A message that was sent may arrive at any time, several times, and its answer be lost.

use super::attempt::{Attempt, MAJORITY, NODES, Stage};
use super::node::Node;
use super::{Flaw, State, World};

/// What happened, to which attempt and at which node.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "shown by Debug")]
pub enum Event {
    Begins(usize),
    Locks(usize, usize, u8),
    LocksUnheard(usize, usize, u8),
    Decides(usize, u8),
    Raises(usize, usize),
    RaisesUnheard(usize, usize),
    Granted(usize),
    Fails(usize),
    Cancels(usize, usize),
    BeginsRenewal(usize),
    Renews(usize, usize),
    RenewsUnheard(usize, usize),
    Renewed(usize),
    Forsakes(usize),
    Repairs(usize, usize),
    Releases(usize),
    Released(usize, usize),
    Lapses(usize),
    Expires(usize),
    Saves(usize),
    Forgets(usize),
    Admitted(usize),
}

/// All that may follow.
pub fn next(world: &World, state: &State) -> Vec<(Event, State)> {
    let mut out = Steps {
        world,
        state,
        next: Vec::new(),
    };
    for at in 0..state.attempts.len() {
        out.of_attempt(at);
        for node in 0..NODES {
            out.arriving(at, node);
        }
    }
    for node in 0..NODES {
        out.of_node(node);
    }
    out.next
}

struct Steps<'a> {
    world: &'a World,
    state: &'a State,
    next: Vec<(Event, State)>,
}

impl Steps<'_> {
    fn add(&mut self, what: Event, change: impl FnOnce(&mut State)) {
        let mut state = self.state.clone();
        change(&mut state);
        if state.nodes.iter().all(|node| node.c <= self.world.numbers) {
            self.next.push((what, state));
        }
    }

    /// A message that comes late, or again, or whose answer nobody waits for. What changes nothing is no
    /// event.
    fn stray(&mut self, what: Event, change: impl FnOnce(&mut State)) {
        if self.state.strays == 0 {
            return;
        }
        let before = self.next.len();
        self.add(what, |state| {
            change(state);
            state.strays -= 1;
        });
        if self
            .next
            .get(before)
            .is_some_and(|(_, state)| state.nodes == self.state.nodes)
        {
            self.next.truncate(before);
        }
    }

    fn epochs(&self) -> [u8; NODES] {
        let of = |node: &Node| if node.admitted { node.epoch } else { 0 };
        std::array::from_fn(|at| of(&self.state.nodes[at]))
    }

    fn of_attempt(&mut self, at: usize) {
        let (world, one) = (*self.world, &self.state.attempts[at]);
        let epochs = self.epochs();
        match one.stage {
            Stage::Unborn => {
                let before = self.state.attempts[..at]
                    .iter()
                    .rfind(|other| other.secret == one.secret);
                if before.is_none_or(|before| before.stage == Stage::Failed) {
                    self.add(Event::Begins(at), |state| {
                        let seen = state.granted.iter().copied().max().unwrap_or(0);
                        let one = &mut state.attempts[at];
                        (one.stage, one.locks, one.seen) = (Stage::Locking, epochs, seen);
                    });
                }
            }
            Stage::Locking => {
                for token in one.choices(world.flaw) {
                    let agreed = one.votes.iter().filter(|vote| **vote == token).count() >= MAJORITY;
                    self.add(Event::Decides(at, token), |state| {
                        let one = &mut state.attempts[at];
                        // Also where it is final: what lags behind is lifted.
                        (one.token, one.raises) = (token, one.locks);
                        if agreed {
                            state.grant(&world, at);
                        } else {
                            one.stage = Stage::Raising;
                        }
                    });
                }
                self.add(Event::Fails(at), |state| state.attempts[at].stage = Stage::Failed);
            }
            Stage::Raising => {
                let is_past = |node: usize| world.flaw == Flaw::CountsTooFar && one.votes[node] > one.token;
                let has = |node: usize| one.raised[node] || one.votes[node] == one.token || is_past(node);
                if (0..NODES).filter(|node| has(*node)).count() >= MAJORITY {
                    self.add(Event::Granted(at), |state| state.grant(&world, at));
                }
                self.add(Event::Fails(at), |state| state.attempts[at].stage = Stage::Failed);
            }
            Stage::Held => self.of_lease(at, epochs),
            Stage::Forsaken => self.of_belief(at),
            Stage::Failed | Stage::Released => {}
        }
    }

    fn of_lease(&mut self, at: usize, epochs: [u8; NODES]) {
        let (world, one) = (*self.world, &self.state.attempts[at]);
        if at == 0 && one.sent == one.counted && one.sent < world.renewals {
            self.add(Event::BeginsRenewal(at), |state| {
                let seen = state.granted.iter().copied().max().unwrap_or(0);
                let one = &mut state.attempts[at];
                (one.renews, one.renewed, one.refused) = (epochs, [false; NODES], [false; NODES]);
                (one.seen, one.late) = (seen, false);
                one.sent += 1;
            });
        }
        let majority = one.renewed.into_iter().filter(|renewed| *renewed).count() >= MAJORITY;
        if one.sent > one.counted && majority && !(world.timed && one.late) {
            self.add(Event::Renewed(at), |state| state.renewed(&world, at));
        }
        self.add(Event::Releases(at), |state| {
            let one = &mut state.attempts[at];
            (one.stage, one.believed) = (Stage::Released, false);
        });
        let against = one.refused.into_iter().filter(|refused| *refused).count();
        if one.is_renewing() && against >= MAJORITY {
            self.add(Event::Forsakes(at), |state| state.attempts[at].stage = Stage::Forsaken);
        }
        self.of_belief(at);
    }

    fn of_belief(&mut self, at: usize) {
        if self.state.attempts[at].believed {
            self.add(Event::Lapses(at), |state| state.attempts[at].believed = false);
        }
    }

    /// What was sent and arrives, at last or again.
    fn arriving(&mut self, at: usize, node: usize) {
        let (world, one) = (*self.world, self.state.attempts[at].clone());
        let flaw = world.flaw;
        if one.locks[node] > 0 {
            let there = &self.state.nodes[node];
            for (vote, after) in there.lock(one.secret, one.round, one.locks[node], world.jumps, world.clocks) {
                // An answer that is not heard is one that a decision did not wait for.
                if one.stage != Stage::Locking || one.votes[node] > 0 {
                    self.stray(Event::LocksUnheard(at, node, vote), |state| state.nodes[node] = after);
                } else {
                    self.add(Event::Locks(at, node, vote), |state| {
                        state.nodes[node] = after;
                        state.attempts[at].votes[node] = vote;
                    });
                }
            }
        }
        if one.raises[node] > 0 && !one.raised[node] {
            let raise =
                |state: &mut State| state.nodes[node].raise(one.secret, one.round, one.token, one.raises[node], flaw);
            if one.stage == Stage::Raising {
                self.add(Event::Raises(at, node), |state| {
                    state.attempts[at].raised[node] = raise(state)
                });
            } else {
                self.stray(Event::RaisesUnheard(at, node), |state| {
                    raise(state);
                });
            }
        }
        if one.renews[node] > 0 {
            let renew =
                |state: &mut State| state.nodes[node].renew(one.secret, one.token, one.renews[node], one.sent, flaw);
            if !one.is_renewing() || one.renewed[node] {
                self.stray(Event::RenewsUnheard(at, node), |state| {
                    renew(state);
                });
            } else {
                self.add(Event::Renews(at, node), |state| {
                    let says = flaw == Flaw::ForgetfulRefuse || state.nodes[node].votes(one.renews[node]);
                    let renewed = renew(state);
                    let one = &mut state.attempts[at];
                    (one.renewed[node], one.refused[node]) = (renewed, says && !renewed);
                });
            }
        }
        if one.repairs[node] > 0 {
            self.stray(Event::Repairs(at, node), |state| {
                state.nodes[node].repair(one.secret, one.token, one.repairs[node], one.counted, flaw);
            });
        }
        match one.stage {
            Stage::Failed => self.add(Event::Cancels(at, node), |state| {
                state.nodes[node].cancel(one.secret, one.round);
            }),
            Stage::Released | Stage::Forsaken => self.add(Event::Released(at, node), |state| {
                state.nodes[node].release(one.secret, one.token);
            }),
            _ => {}
        }
    }

    fn of_node(&mut self, node: usize) {
        let (world, there) = (*self.world, &self.state.nodes[node]);
        if self.state.ends > 0 && there.holder.is_some() && (!world.timed || self.state.may_expire(node)) {
            self.add(Event::Expires(node), |state| {
                state.ends -= 1;
                state.expire(node);
            });
        }
        if self.state.losses > 0 && world.snapshots && there.may_save() {
            self.add(Event::Saves(node), |state| state.nodes[node].save());
        }
        if self.state.losses > 0 {
            self.add(Event::Forgets(node), |state| {
                state.losses -= 1;
                state.nodes[node].lose(world.flaw);
                state.before_loss[node] = state.attempts.iter().map(Attempt::sent_before).collect();
            });
        }
        let waited = !world.timed || world.flaw == Flaw::NoQuarantine || self.state.may_admit(node);
        if !there.admitted && waited {
            self.add(Event::Admitted(node), |state| {
                state.nodes[node].admit(world.flaw);
                if world.flaw != Flaw::NoQuarantine {
                    state.outdate(node);
                }
            });
        }
    }
}
