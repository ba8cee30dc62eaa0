//! The root of a lock, and the verbs on a copy of it. What depends on the store's clock stays open: the stamp of the
//! commit decides it.

use super::{Flaw, World};

/// The TTL of a lease.
pub const TTL: u8 = 2;
/// How many ended holds are remembered. Whether the root has them or an immutable part that it names is the same here.
const ENDED: usize = 2;
/// How many versions the log has.
const LOG: usize = 2;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    pub claim: u8,
    /// The call that was granted the lock.
    pub call: u8,
    /// 0: minted by the commit.
    pub token: u8,
    pub ends: u8,
    /// The lease ends no earlier than its TTL after the commit's stamp.
    pub is_open: bool,
    pub adopted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Waiter {
    pub claim: u8,
    pub call: u8,
    pub server: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    Released,
    Expired,
}

/// One without a version stands for a lock without a root, and its token for the floor of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Root {
    pub version: u8,
    /// The stamp of its commit: the lock's clock, and the store's.
    pub clock: u8,
    pub time: u8,
    /// The last token that was minted.
    pub token: u8,
    pub holder: Option<Holder>,
    pub waiters: Vec<Waiter>,
    pub ended: Vec<(u8, Cause)>,
    /// The calls that a try of another call has cancelled.
    pub marks: Vec<u8>,
    /// The versions of the last commits, newest last.
    pub log: Vec<u8>,
}

/// A verb, with its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    Acquire(u8),
    Promote(u8),
    Undo(u8),
    Release {
        call: u8,
        token: u8,
        next: Option<u8>,
    },
    Renew {
        call: u8,
        token: u8,
    },
    Inspect,
    /// Ends what has expired, and the waiting claims of this server, which is dead.
    Look {
        dead: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// With the token; 0: that of the commit.
    Held(u8),
    Waiting,
    /// A try found the lock held; or the claim had ended, or its call was cancelled or superseded.
    Over,
    /// The claim is not known.
    Gone,
    /// A verb that has nothing to say.
    Done,
}

/// What a batch makes of a root.
pub struct Draft {
    pub root: Root,
    pub outcomes: Vec<(Verb, Outcome)>,
    pub not_before: u8,
    pub not_after: u8,
    pub changed: bool,
}

impl Draft {
    /// Runs a batch at this time of the lock's clock.
    pub fn run(world: &World, cached: &Root, now: u8, batch: &[Verb]) -> Self {
        let mut root = cached.clone();
        let (mut not_before, mut not_after) = (0, u8::MAX);
        match &root.holder {
            Some(holder) if holder.ends <= now => {
                not_before = holder.ends;
                root.end(Cause::Expired);
            }
            Some(holder) => not_after = holder.ends,
            None => {}
        }
        let before = match world.flaw {
            Flaw::ShowsUncommittedEnds if batch == [Verb::Inspect] => root.clone(),
            _ => cached.clone(),
        };
        let mut outcomes = Vec::new();
        for verb in batch {
            outcomes.push((*verb, root.step(world, *verb)));
            if let Verb::Release { next: Some(next), .. } = *verb
                && root.waiters.first().is_some_and(|first| first.call == next)
            {
                let promote = Verb::Promote(next);
                outcomes.push((promote, root.step(world, promote)));
            }
        }
        Self {
            changed: root != before,
            root,
            outcomes,
            not_before,
            not_after,
        }
    }
}

impl Root {
    /// Whether this call was cancelled, or its claim has ended.
    fn is_over(&self, call: u8, claim: u8) -> bool {
        self.marks.contains(&call) || self.ended.iter().any(|(ended, _)| *ended == claim)
    }

    fn grant(&mut self, claim: u8, call: u8) -> Outcome {
        self.holder = Some(Holder {
            claim,
            call,
            is_open: true,
            ..Holder::default()
        });
        Outcome::Held(0)
    }

    fn end(&mut self, cause: Cause) {
        let Some(holder) = self.holder.take() else { return };
        self.ended.retain(|(claim, _)| *claim != holder.claim);
        self.ended.push((holder.claim, cause));
        if self.ended.len() > ENDED {
            self.ended.remove(0);
        }
    }

    pub fn add_to_log(&mut self, version: u8) {
        if self.log.len() >= LOG {
            self.log.remove(0);
        }
        self.log.push(version);
    }

    /// The holder's token.
    pub fn held(&self) -> Option<u8> {
        self.holder.as_ref().map(|holder| holder.token)
    }

    /// The holder whose lease has not ended at this time of the lock's clock.
    pub fn live(&self, clock: u8) -> Option<&Holder> {
        self.holder.as_ref().filter(|holder| holder.ends > clock)
    }

    fn step(&mut self, world: &World, verb: Verb) -> Outcome {
        match verb {
            Verb::Acquire(call) => self.acquire(world, call),
            Verb::Promote(call) => self.promote(world.claim(call), call),
            Verb::Undo(call) => {
                let (claim, flaw) = (world.claim(call), world.flaw);
                let is_call = |of: u8| of == call || flaw == Flaw::UndoIgnoresCall;
                self.waiters
                    .retain(|waiter| waiter.claim != claim || !is_call(waiter.call));
                self.holder.take_if(|holder| {
                    let is_kept = holder.adopted && flaw != Flaw::UndoIgnoresAdoption;
                    holder.claim == claim && holder.call == call && !is_kept
                });
                Outcome::Done
            }
            Verb::Release { token, .. } => {
                let is_any = world.flaw == Flaw::ReleasesAnyToken;
                if self
                    .holder
                    .as_ref()
                    .is_some_and(|holder| holder.token == token || is_any)
                {
                    self.end(Cause::Released);
                }
                Outcome::Done
            }
            Verb::Renew { token, .. } => match &mut self.holder {
                Some(holder) if holder.token == token => {
                    holder.is_open = true;
                    Outcome::Held(token)
                }
                _ => Outcome::Gone,
            },
            Verb::Inspect => Outcome::Done,
            Verb::Look { dead } => {
                self.waiters.retain(|waiter| waiter.server != dead);
                Outcome::Done
            }
        }
    }

    fn acquire(&mut self, world: &World, call: u8) -> Outcome {
        let (claim, server, is_try) = world.calls[usize::from(call)];
        if self.marks.contains(&call) {
            return Outcome::Over;
        }
        let is_free = self.holder.is_none();
        if let Some(at) = self.waiters.iter().position(|waiter| waiter.claim == claim) {
            let adopting = Waiter { claim, call, server };
            if world.flaw == Flaw::AcquireIsNotIdempotent && self.waiters[at].call == call {
                self.waiters.push(adopting);
                return Outcome::Waiting;
            }
            let older = std::mem::replace(&mut self.waiters[at], adopting);
            if is_free && at == 0 {
                self.waiters.remove(0);
                return self.grant(claim, call);
            }
            if !is_try {
                return Outcome::Waiting;
            }
            self.waiters.remove(at);
            if world.flaw != Flaw::TryLeavesNoMark {
                self.marks.push(older.call);
            }
            return Outcome::Over;
        }
        if let Some(holder) = self.holder.as_mut().filter(|holder| holder.claim == claim) {
            holder.adopted |= holder.call != call && world.flaw != Flaw::AdoptionIsNotWritten;
            return Outcome::Held(holder.token);
        }
        if self.is_over(call, claim) {
            return Outcome::Over;
        }
        if is_free && self.waiters.is_empty() {
            return self.grant(claim, call);
        }
        if is_try {
            return Outcome::Over;
        }
        self.waiters.push(Waiter { claim, call, server });
        Outcome::Waiting
    }

    fn promote(&mut self, claim: u8, call: u8) -> Outcome {
        if self.marks.contains(&call) {
            return Outcome::Over;
        }
        if let Some(at) = self.waiters.iter().position(|waiter| waiter.claim == claim) {
            if self.waiters[at].call != call {
                return Outcome::Over;
            }
            if self.holder.is_some() || at > 0 {
                return Outcome::Waiting;
            }
            self.waiters.remove(0);
            return self.grant(claim, call);
        }
        match &self.holder {
            Some(holder) if holder.claim == claim && holder.call == call => Outcome::Held(holder.token),
            Some(holder) if holder.claim == claim => Outcome::Over,
            _ if self.is_over(call, claim) => Outcome::Over,
            _ => Outcome::Gone,
        }
    }
}
