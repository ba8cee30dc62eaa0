//! The state of a whole store: its namespaces, and the turn that steps over them run in.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::txn_context::{TxnContext, PendingMessage, NamespaceId, WriteSet};
use super::file::Loaded;
use super::lock::{Claim, Holding, Stage, Waiting};
use super::history::Finished;
use super::namespace_state::NamespaceState;
use crate::backend::Notification;
use crate::name::Namespace;

/// How many finished calls a turn forgets at most, for forgetting is writing.
const FORGOTTEN_PER_TURN: usize = 10_000;
/// How long what may be forgotten may stay, so that a quiet store is not woken for each call.
const FORGET_EVERY: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct StateMachine {
    names: Vec<Namespace>,
    spaces: Vec<NamespaceState>,
    ctx: TxnContext,
    /// Not all that may be forgotten was.
    unforgotten: bool,
}

impl StateMachine {
    pub fn new(clock: Arc<dyn Clock>, durable: bool) -> Self {
        Self {
            names: Vec::new(),
            spaces: Vec::new(),
            ctx: TxnContext::new(clock, durable),
            unforgotten: false,
        }
    }

    /// The number of a namespace; a new one is empty.
    pub fn namespace_id(&mut self, name: &Namespace) -> NamespaceId {
        if let Some(id) = self.names.iter().position(|known| known == name) {
            return id;
        }
        let id = self.spaces.len();
        self.names.push(name.clone());
        self.spaces.push(NamespaceState::new(id));
        id
    }

    pub fn name(&self, id: NamespaceId) -> &Namespace {
        &self.names[id]
    }

    /// Begins a turn: reads the clock once for all its steps, and lets what has run out go.
    pub fn begin(&mut self) {
        self.ctx.read_clock();
        while let Some((ends, id, name, place)) = self.ctx.ends.first().cloned() {
            if ends > self.ctx.now {
                break;
            }
            self.ctx.ends.pop_first();
            self.spaces[id].expire(&mut self.ctx, &name, place);
        }
        self.forget();
    }

    fn forget(&mut self) {
        if !self.unforgotten && self.forgets_at().is_none_or(|due| due > self.ctx.now) {
            return;
        }
        self.unforgotten = false;
        for space in &mut self.spaces {
            self.unforgotten |= space.forget(&mut self.ctx, FORGOTTEN_PER_TURN);
        }
    }

    /// The namespace and the desk that a step works on.
    pub fn at(&mut self, id: NamespaceId) -> (&mut NamespaceState, &mut TxnContext) {
        (&mut self.spaces[id], &mut self.ctx)
    }

    /// When the next turn is due, if nobody asks for one before.
    pub fn due(&self) -> Option<Duration> {
        if self.unforgotten {
            return Some(self.ctx.now);
        }
        let ends = self.ctx.ends.first().map(|(ends, ..)| *ends);
        [ends, self.forgets_at()].into_iter().flatten().min()
    }

    /// When what is remembered is looked through: what is due then is forgotten.
    fn forgets_at(&self) -> Option<Duration> {
        let remembered = self.spaces.iter();
        let due = remembered.flat_map(|space| [space.finished.due(), space.marks.due()]);
        due.flatten().min().map(|due| due + FORGET_EVERY)
    }

    /// What the turn changes in the file.
    pub fn take_writes(&mut self) -> WriteSet {
        self.ctx.take_writes()
    }

    /// Ends a turn that is durable: tells what happened.
    pub fn post(&mut self) {
        for mail in std::mem::take(&mut self.ctx.outbox) {
            match mail {
                PendingMessage::Notification(id, wake) => self.spaces[id].post.send(wake),
                PendingMessage::Change(id, name, number, change) => self.spaces[id].watchers.send(&name, number, &change),
            }
        }
    }

    /// Takes the file's word on what holds and has finished, at start and after a turn that may not
    /// have become durable. Waiters are known to memory alone and keep their order; so does a waiter
    /// whose grant was lost with the turn.
    pub fn rebuild(&mut self, loaded: Loaded) {
        self.ctx.read_clock();
        self.ctx.ends.clear();
        self.ctx.outbox.clear();
        let _ = self.ctx.take_writes();
        // Tokens of the lost turn were shown to nobody, but to skip them costs nothing.
        self.ctx.high_water = self.ctx.high_water.max(loaded.high_water);
        let memory: Vec<_> = self.spaces.iter_mut().map(NamespaceState::clear).collect();
        for (namespace, name, place, claim) in loaded.holders(self.ctx.now) {
            let id = self.namespace_id(&namespace);
            self.spaces[id].restore(&mut self.ctx, &name, place, claim);
        }
        for (namespace, finished) in loaded.finished {
            let id = self.namespace_id(&namespace);
            self.spaces[id].finished = Finished::restored(finished, self.ctx.now);
        }
        for (id, locks) in memory.into_iter().enumerate() {
            for (name, lock) in locks {
                let waiters = lock
                    .iter()
                    .filter_map(|(place, claim)| Some((place, waiting_again(claim)?)));
                for (place, claim) in waiters {
                    self.spaces[id].restore_waiter(&mut self.ctx, &name, place, claim);
                }
            }
        }
        self.resume();
    }

    fn resume(&mut self) {
        for space in &mut self.spaces {
            let names: Vec<_> = space.locks.keys().cloned().collect();
            for name in names {
                space.after(&mut self.ctx, &name);
            }
            space.watchers.clear();
            space.post.send(Notification::Gap);
        }
        self.post();
    }
}

/// A claim of memory as a waiter: one that waits, or waited until the lost turn granted it.
fn waiting_again(claim: &Claim) -> Option<Claim> {
    let mut claim = claim.clone();
    if let Stage::Holding(Holding {
        waited: true, holds, ..
    }) = &claim.stage
    {
        let hold = holds.first()?.clone();
        claim.stage = Stage::Waiting(Waiting { hold });
    }
    claim.waiting_for().is_some().then_some(claim)
}

#[cfg(test)]
mod tests;
