//! What a call knows of an attempt, and of the lease that it may become.

use super::Flaw;
use super::node::Node;

/// How many nodes there are.
pub const NODES: usize = 3;
pub const MAJORITY: usize = NODES / 2 + 1;

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
    pub locks: [u8; NODES],
    pub raises: [u8; NODES],
    pub renews: [u8; NODES],
    pub repairs: [u8; NODES],
    /// The answers to `lock`, to `raise`, and to the present `renew`.
    pub votes: [u8; NODES],
    pub raised: [bool; NODES],
    pub renewed: [bool; NODES],
    /// Who answered the present `renew` that it does not have the lease.
    pub refused: [bool; NODES],
    pub token: u8,
    /// The renewal that succeeded last, and the one that was sent last.
    pub counted: u8,
    pub sent: u8,
    /// Whether its client counts on it.
    pub believed: bool,
    /// The time of the present round is over.
    pub late: bool,
    /// The largest token that had been granted when the present round began.
    pub seen: u8,
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
    pub fn at(&self, node: usize) -> [u8; 8] {
        let flags = [self.raised[node], self.renewed[node], self.refused[node]].map(u8::from);
        let sent = [self.locks, self.raises, self.renews, self.repairs, self.votes].map(|by| by[node]);
        [
            sent[0], sent[1], sent[2], sent[3], sent[4], flags[0], flags[1], flags[2],
        ]
    }

    pub fn order(&mut self, order: [usize; NODES]) {
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
    pub fn choices(&self, flaw: Flaw) -> Vec<u8> {
        let mut votes: Vec<u8> = self.votes.into_iter().filter(|vote| *vote > 0).collect();
        votes.sort_unstable();
        let needed = if flaw == Flaw::CountsTooFar { 1 } else { MAJORITY };
        let mut choices = if votes.len() < MAJORITY {
            Vec::new()
        } else {
            votes.split_off(needed - 1)
        };
        choices.dedup();
        choices
    }

    pub fn is_renewing(&self) -> bool {
        self.stage == Stage::Held && self.sent > self.counted
    }

    /// Forgets what cannot make a difference any more.
    pub fn forget(&mut self, nodes: &[Node; NODES], flaw: Flaw) {
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

    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Locking | Stage::Raising)
    }

    /// How far the steps go that were sent before a loss: 0 for none.
    pub fn sent_before(&self) -> u8 {
        if self.stage == Stage::Unborn { 0 } else { self.sent + 1 }
    }
}
