//! What can happen: steps of the attempts, messages that arrive, time that passes, nodes that
//! forget. A message that was sent may arrive at any time, several times, and its answer be lost.

use super::node::{Node, SETTLED};
use super::{Flaw, State, World};

/// How many nodes there are.
pub const NODES: usize = 3;
const MAJORITY: usize = NODES / 2 + 1;

/// Where an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    Unborn,
    Locking,
    Raising,
    Held,
    Failed,
    Released,
    /// A renewal found no majority that has it, and it is let go; its client may not know yet.
    Forsaken,
}

/// One attempt of a call, and the lease that it may become.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub secret: u8,
    pub round: u8,
    pub stage: Stage,
    /// By node, the admission under which each step was sent there; 0 for not sent.
    locks: [u8; NODES],
    raises: [u8; NODES],
    renews: [u8; NODES],
    repairs: [u8; NODES],
    /// The answers to `lock`, to `raise`, and to the present `renew`.
    votes: [u8; NODES],
    raised: [bool; NODES],
    renewed: [bool; NODES],
    /// Who answered the present `renew` that it does not have the lease.
    refused: [bool; NODES],
    token: u8,
    /// The renewal that succeeded last, and the one that was sent last.
    counted: u8,
    sent: u8,
    /// Whether its client counts on it.
    pub believed: bool,
    /// The time of the present round is over.
    late: bool,
    /// The largest token that had been granted when the present round began.
    seen: u8,
}

impl Attempt {
    pub fn new(secret: u8, round: u8) -> Self {
        Self {
            secret,
            round,
            stage: Stage::Unborn,
            locks: [0; NODES],
            raises: [0; NODES],
            renews: [0; NODES],
            repairs: [0; NODES],
            votes: [0; NODES],
            raised: [false; NODES],
            renewed: [false; NODES],
            refused: [false; NODES],
            token: 0,
            counted: 0,
            sent: 0,
            believed: false,
            late: false,
            seen: 0,
        }
    }

    /// What it has to do with a node, to be compared.
    fn at(&self, node: usize) -> [u8; 8] {
        let flags = [self.raised[node], self.renewed[node], self.refused[node]].map(u8::from);
        let sent = [self.locks, self.raises, self.renews, self.repairs, self.votes].map(|by| by[node]);
        [
            sent[0], sent[1], sent[2], sent[3], sent[4], flags[0], flags[1], flags[2],
        ]
    }

    fn order(&mut self, order: [usize; NODES]) {
        fn by<T: Copy>(all: &mut [T; NODES], order: [usize; NODES]) {
            *all = order.map(|node| all[node]);
        }
        for all in [
            &mut self.locks,
            &mut self.raises,
            &mut self.renews,
            &mut self.repairs,
            &mut self.votes,
        ] {
            by(all, order);
        }
        by(&mut self.raised, order);
        by(&mut self.renewed, order);
        by(&mut self.refused, order);
    }

    /// The tokens that it may decide for: the largest of any majority of the answers, for others may
    /// come later.
    fn choices(&self) -> Vec<u8> {
        let mut votes: Vec<u8> = self.votes.into_iter().filter(|vote| *vote > 0).collect();
        votes.sort_unstable();
        let mut choices = votes.split_off(votes.len().min(MAJORITY - 1));
        choices.dedup();
        choices
    }

    fn is_renewing(&self) -> bool {
        self.stage == Stage::Held && self.sent > self.counted
    }

    /// Forgets what cannot make a difference any more.
    fn forget(&mut self, nodes: &[Node; NODES], flaw: Flaw) {
        for (at, node) in nodes.iter().enumerate() {
            let outdated = |sent: u8| flaw != Flaw::OneEpoch && sent < node.epoch;
            let over = node.is_over(self.secret, self.round);
            if outdated(self.locks[at]) || over {
                self.locks[at] = 0;
            }
            let mine = node
                .holder
                .is_some_and(|one| one.secret == self.secret && one.round == self.round);
            if outdated(self.raises[at]) || (over && !mine) {
                self.raises[at] = 0;
            }
            for sent in [&mut self.renews[at], &mut self.repairs[at]] {
                if outdated(*sent) {
                    *sent = 0;
                }
            }
        }
        if !self.is_open() {
            (self.votes, self.raised) = Default::default();
        }
        if self.stage == Stage::Failed {
            (self.seen, self.late) = (0, false);
        }
        if matches!(self.stage, Stage::Released | Stage::Forsaken) {
            (self.seen, self.late, self.counted) = (0, false, self.sent);
        }
        if !self.is_renewing() {
            (self.renewed, self.refused) = Default::default();
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Locking | Stage::Raising)
    }

    /// How far the steps go that were sent before a loss: 0 for none.
    pub fn sent_before(&self) -> u8 {
        if self.stage == Stage::Unborn { 0 } else { self.sent + 1 }
    }
}

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
                for token in one.choices() {
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
                let has = |node: usize| one.raised[node] || one.votes[node] == one.token;
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

impl State {
    /// Forgets what makes no difference any more, and which of the nodes is which.
    pub fn settle(&mut self, flaw: Flaw) {
        for one in &mut self.attempts {
            one.forget(&self.nodes, flaw);
        }
        let mut order: [usize; NODES] = std::array::from_fn(|node| node);
        order.sort_by_cached_key(|node| {
            let attempts: Vec<_> = self.attempts.iter().map(|one| one.at(*node)).collect();
            (self.nodes[*node].clone(), attempts, self.before_loss[*node].clone())
        });
        self.nodes = order.map(|node| self.nodes[node].clone());
        self.before_loss = order.map(|node| self.before_loss[node].clone());
        for one in &mut self.attempts {
            one.order(order);
        }
    }

    /// A majority has one and the same token for an attempt.
    fn grant(&mut self, world: &World, at: usize) {
        let one = &mut self.attempts[at];
        if world.timed && one.late {
            one.stage = Stage::Failed;
            return;
        }
        let (token, seen) = (one.token, one.seen);
        (one.stage, one.believed) = (Stage::Held, world.timed);
        let last = self.granted.iter().copied().max().unwrap_or(0);
        if self.granted.contains(&token) {
            self.wrong = Some("a token was granted twice");
        } else if token < seen || (world.timed && token < last) {
            self.wrong = Some("a token fell");
        }
        self.granted.push(token);
        self.judge(world);
    }

    /// A majority has renewed a lease; the others are repaired.
    fn renewed(&mut self, world: &World, at: usize) {
        let one = &mut self.attempts[at];
        one.counted = one.sent;
        one.believed = world.timed;
        one.repairs = one.renews;
        if one.token < one.seen {
            self.wrong = Some("a lease was renewed after a larger token had been granted");
        }
        self.judge(world);
    }

    fn judge(&mut self, world: &World) {
        let believed = self.attempts.iter().filter(|one| one.believed).count();
        if world.timed && believed > 1 {
            self.wrong = Some("two believe that they hold");
        }
    }

    fn of_holder(&self, node: usize) -> Option<(usize, u8)> {
        let holder = self.nodes[node].holder?;
        let of = |one: &Attempt| {
            let same = one.secret == holder.secret;
            same && (one.round == holder.round
                || (holder.round == SETTLED && matches!(one.stage, Stage::Held | Stage::Forsaken)))
        };
        Some((self.attempts.iter().position(of)?, holder.lengthened))
    }

    /// Whether a holder's time may be over: not while its client counts on what lengthened it last.
    fn may_expire(&self, node: usize) -> bool {
        self.of_holder(node).is_none_or(|(at, lengthened)| {
            let one = &self.attempts[at];
            !one.believed || lengthened < one.counted
        })
    }

    fn expire(&mut self, node: usize) {
        if let Some((at, lengthened)) = self.of_holder(node) {
            let one = &mut self.attempts[at];
            one.late |= one.is_open() || (one.sent > one.counted && lengthened == one.sent);
        }
        self.nodes[node].holder = None;
    }

    /// Whether the longest TTL has passed since a node forgot: what was sent before has ended.
    fn may_admit(&self, node: usize) -> bool {
        let before = self.before_loss[node].iter();
        let mut both = self.attempts.iter().zip(before);
        both.all(|(one, before)| !one.believed || one.counted + 1 > *before)
    }

    /// That time makes every round late that was under way when the node forgot.
    fn outdate(&mut self, node: usize) {
        for (one, before) in self.attempts.iter_mut().zip(self.before_loss[node].clone()) {
            let under_way = one.is_open() || one.sent > one.counted;
            one.late |= under_way && before > 0 && one.sent < before;
        }
        self.before_loss[node].clear();
    }
}
