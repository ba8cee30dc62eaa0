//! One node: what each script does, as `src/backend/redlock/*.lua` do it, with small numbers for
//! microseconds.

use super::Flaw;

/// How many secrets there are: calls, each with its attempts.
pub const SECRETS: usize = 3;
/// The round of a holder that is past its attempt: renewed or repaired.
pub const SETTLED: u8 = 9;
/// The tombstone of all rounds.
const OVER: u8 = 255;

/// Who holds at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    pub secret: u8,
    pub round: u8,
    pub val: u8,
    /// The renewal that lengthened it last; 0 for none.
    pub lengthened: u8,
}

/// What a node remembers, and what it has lost.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The counter; 0 for none.
    pub c: u8,
    pub holder: Option<Holder>,
    /// By secret: 0 for none, `round + 1` for all rounds up to it, [`OVER`] for all.
    tombs: [u8; SECRETS],
    /// Names an admission; steps that were sent under another one do nothing.
    pub epoch: u8,
    pub admitted: bool,
    floor: u8,
    /// The largest number that it ever took part in: what its clock has passed.
    most: u8,
    /// What it had on disk when it lost its memory, if that comes back.
    snapshot: Option<(u8, Holder)>,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            c: 0,
            holder: None,
            tombs: [0; SECRETS],
            epoch: 1,
            admitted: true,
            floor: 1,
            most: 0,
            snapshot: None,
        }
    }
}

impl Node {
    /// Whether steps that were sent under this admission count.
    pub fn votes(&self, epoch: u8) -> bool {
        self.admitted && self.epoch == epoch
    }

    /// Whether its holder has this secret and token.
    pub fn holds(&self, secret: u8, token: u8) -> bool {
        self.holder.is_some_and(|one| one.secret == secret && one.val == token)
    }

    /// All that `lock` may do: a number for the attempt, and the node after it.
    pub fn lock(&self, secret: u8, round: u8, epoch: u8, jumps: u8, clocks: u8) -> Vec<(u8, Self)> {
        if !self.votes(epoch) || self.is_over(secret, round) {
            return Vec::new();
        }
        match self.holder {
            Some(one) if one.secret == secret && one.round == round => return vec![(one.val, self.clone())],
            Some(_) => return Vec::new(),
            None => {}
        }
        // A counter goes on; without one, the clock says any number from the floor on. The hint
        // jumps by any amount.
        let (least, more) = match self.c {
            0 => (self.floor, clocks),
            c => ((c + 1).max(self.floor), 0),
        };
        let minted = |val: u8| {
            let mut node = self.clone();
            node.c = val;
            node.most = node.most.max(val);
            node.holder = Some(Holder {
                secret,
                round,
                val,
                lengthened: 0,
            });
            (val, node)
        };
        (least..=least + more.max(jumps)).map(minted).collect()
    }

    pub fn raise(&mut self, secret: u8, round: u8, token: u8, epoch: u8, flaw: Flaw) -> bool {
        let Some(holder) = self.holder.filter(|_| self.votes(epoch)) else {
            return false;
        };
        let mine = holder.secret == secret && holder.round == round;
        let may = holder.val == token || self.c < token || flaw == Flaw::RaisesDown;
        if mine && may {
            self.c = token;
            self.most = self.most.max(token);
            self.holder = Some(Holder { val: token, ..holder });
        }
        mine && may
    }

    pub fn renew(&mut self, secret: u8, token: u8, epoch: u8, by: u8, flaw: Flaw) -> bool {
        let Some(holder) = self.holder.filter(|_| self.votes(epoch)) else {
            return false;
        };
        let mine = holder.secret == secret && (holder.val == token || flaw == Flaw::RenewsAnyToken);
        if mine {
            self.holder = Some(Holder {
                round: SETTLED,
                lengthened: holder.lengthened.max(by),
                ..holder
            });
        }
        mine
    }

    pub fn repair(&mut self, secret: u8, token: u8, epoch: u8, by: u8, flaw: Flaw) {
        let may = match self.holder {
            None => self.c <= token,
            Some(one) => one.secret == secret && (one.val == token || self.c < token),
        };
        let may = may && self.tombs[usize::from(secret)] != OVER;
        if !self.votes(epoch) || !(may || flaw == Flaw::RepairsAnything) {
            return;
        }
        let lengthened = self.holder.map_or(0, |one| one.lengthened);
        self.c = self.c.max(token);
        self.most = self.most.max(token);
        self.holder = Some(Holder {
            secret,
            round: SETTLED,
            val: token,
            lengthened: lengthened.max(by),
        });
    }

    /// Whether no late `lock` of this round, nor an earlier one, does anything.
    pub fn is_over(&self, secret: u8, round: u8) -> bool {
        self.tombs[usize::from(secret)] > round
    }

    /// The end of an attempt.
    pub fn cancel(&mut self, secret: u8, round: u8) {
        if self
            .holder
            .is_some_and(|one| one.secret == secret && one.round <= round)
        {
            self.holder = None;
        }
        let tomb = &mut self.tombs[usize::from(secret)];
        *tomb = (*tomb).max(round + 1);
    }

    /// The end of a lease.
    pub fn release(&mut self, secret: u8, token: u8) {
        if self.holds(secret, token) {
            self.holder = None;
        }
        self.tombs[usize::from(secret)] = OVER;
    }

    /// Writes what it has to disk.
    pub fn save(&mut self) {
        self.snapshot = self.holder.map(|holder| (self.c, holder));
    }

    /// Loses its memory, or goes back to what was on disk.
    pub fn lose(&mut self, flaw: Flaw) {
        let back = self.snapshot.take();
        self.c = back.map_or(0, |(c, _)| c);
        // Holders of another admission count for nothing.
        self.holder = back.map(|(_, holder)| holder).filter(|_| flaw == Flaw::KeepsOldHolders);
        self.tombs = [0; SECRETS];
        self.admitted = false;
    }

    /// Is trusted again.
    pub fn admit(&mut self, flaw: Flaw) {
        self.admitted = true;
        if flaw != Flaw::OneEpoch {
            self.epoch += 1;
        }
        self.floor = if flaw == Flaw::NoFloor { 1 } else { self.most + 1 };
    }

    /// Whether it may still write something to disk that a loss would bring back.
    pub fn may_save(&self) -> bool {
        self.snapshot.is_none() && self.holder.is_some()
    }
}
