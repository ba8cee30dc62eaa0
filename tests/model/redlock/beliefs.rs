//! What was granted and who counts on it, and what time may take from whom.

use super::attempt::{Attempt, NODES, Stage};
use super::node::SETTLED;
use super::{Flaw, State, World};

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
    pub fn grant(&mut self, world: &World, at: usize) {
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
    pub fn renewed(&mut self, world: &World, at: usize) {
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
    pub fn may_expire(&self, node: usize) -> bool {
        self.of_holder(node).is_none_or(|(at, lengthened)| {
            let one = &self.attempts[at];
            !one.believed || lengthened < one.counted
        })
    }

    /// Its time is over. A node remembers which rounds that ended, and lets those that follow go on. Here it
    /// remembers nothing, so that every round may come again: more than may happen.
    pub fn expire(&mut self, node: usize) {
        if let Some((at, lengthened)) = self.of_holder(node) {
            let one = &mut self.attempts[at];
            one.late |= one.is_open() || (one.sent > one.counted && lengthened == one.sent);
        }
        self.nodes[node].holder = None;
    }

    /// Whether the longest TTL has passed since a node forgot: what was sent before has ended.
    pub fn may_admit(&self, node: usize) -> bool {
        let before = self.before_loss[node].iter();
        let mut both = self.attempts.iter().zip(before);
        both.all(|(one, before)| !one.believed || one.counted + 1 > *before)
    }

    /// That time makes every round late that was under way when the node forgot.
    pub fn outdate(&mut self, node: usize) {
        for (one, before) in self.attempts.iter_mut().zip(self.before_loss[node].clone()) {
            let under_way = one.is_open() || one.sent > one.counted;
            one.late |= under_way && before > 0 && one.sent < before;
        }
        self.before_loss[node].clear();
    }
}
