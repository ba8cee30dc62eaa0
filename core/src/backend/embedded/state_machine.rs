//! The state of a whole store: its namespaces, and the batch in which their steps run.

use std::sync::Arc;
use std::time::Duration;

use super::file::Loaded;
use super::history::Finished;
use super::namespace_state::NamespaceState;
use super::record;
use super::txn_context::{NamespaceId, PendingMessage, RecordKey, TxnContext, WriteSet};
use crate::backend::Notification;
use crate::backend::local_clock::{Clock, NO_BOOT};
use crate::claim::Cause;
use crate::name::Namespace;
use crate::queue::{Claim, Holding, ReplicaId, Stage, Waiting};

/// The maximum number of finished calls that one batch forgets, because each costs a write.
const FORGOTTEN_PER_BATCH: usize = 10_000;
/// How long entries may be kept past their time, so that an idle store does not wake for each call.
const FORGET_EVERY: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct StateMachine {
    names: Vec<Namespace>,
    namespaces: Vec<NamespaceState>,
    ctx: TxnContext,
    /// Whether entries that may be forgotten are left over from the last batch.
    forget_pending: bool,
}

impl StateMachine {
    pub fn new(clock: Arc<dyn Clock>, durable: bool) -> Self {
        Self {
            names: Vec::new(),
            namespaces: Vec::new(),
            ctx: TxnContext::new(clock, durable),
            forget_pending: false,
        }
    }

    /// The id of a namespace; a new one is empty.
    pub fn namespace_id(&mut self, name: &Namespace) -> NamespaceId {
        if let Some(id) = self.names.iter().position(|known| known == name) {
            return id;
        }
        let id = self.namespaces.len();
        self.names.push(name.clone());
        self.namespaces.push(NamespaceState::new(id));
        id
    }

    pub fn name(&self, id: NamespaceId) -> &Namespace {
        &self.names[id]
    }

    /// Reads the clock for steps that only read.
    pub fn read_clock(&mut self) {
        self.ctx.read_clock();
    }

    /// Begins a batch: reads the clock once for all its steps, and ends what has expired.
    pub fn begin(&mut self) {
        self.ctx.read_clock();
        while let Some((ends, id, name, position)) = self.ctx.expiries.first().cloned() {
            if ends > self.ctx.now {
                break;
            }
            self.ctx.expiries.pop_first();
            self.namespaces[id].run(&mut self.ctx, &name, u32::MAX, |lock, ctx| {
                lock.end(ctx, position, Cause::Expired);
            });
        }
        self.forget();
    }

    fn forget(&mut self) {
        if !self.forget_pending && self.forgets_at().is_none_or(|due| due > self.ctx.now) {
            return;
        }
        self.forget_pending = false;
        for state in &mut self.namespaces {
            self.forget_pending |= state.forget(&mut self.ctx, FORGOTTEN_PER_BATCH);
        }
    }

    /// The namespace and the context in which a step runs.
    pub fn at(&mut self, id: NamespaceId) -> (&mut NamespaceState, &mut TxnContext) {
        (&mut self.namespaces[id], &mut self.ctx)
    }

    /// When the next batch is due if no step arrives before.
    pub fn due(&self) -> Option<Duration> {
        if self.forget_pending {
            return Some(self.ctx.now);
        }
        let ends = self.ctx.expiries.first().map(|(ends, ..)| *ends);
        [ends, self.forgets_at()].into_iter().flatten().min()
    }

    /// When [`Self::forget`] runs next.
    fn forgets_at(&self) -> Option<Duration> {
        let remembered = self.namespaces.iter();
        let due = remembered.flat_map(|state| [state.finished.due(), state.marks.due()]);
        due.flatten().min().map(|due| due + FORGET_EVERY)
    }

    /// The batch's changes to the file.
    pub fn take_writes(&mut self) -> WriteSet {
        self.ctx.take_writes()
    }

    /// Ends a durable batch: sends its notifications and changes.
    pub fn publish(&mut self) {
        for message in std::mem::take(&mut self.ctx.outbox) {
            match message {
                PendingMessage::Notification(id, notification) => self.namespaces[id].notifications.send(notification),
                PendingMessage::Change(id, name, number, change) => {
                    self.namespaces[id].watchers.send(&name, number, &change)
                }
            }
        }
    }

    /// Replaces the holders and finished calls by those of the file, at start and after a batch
    /// that may not have become durable. Waiters exist in memory only and keep their order; so does
    /// a waiter whose grant was lost with the batch. A lease lives for its whole TTL again, because its client could not renew
    /// it meanwhile; at the start of a process it ends when it would have ended, if the file knows that.
    pub fn rebuild(&mut self, loaded: Loaded, is_start: bool) {
        self.ctx.read_clock();
        self.ctx.expiries.clear();
        self.ctx.outbox.clear();
        let _ = self.ctx.take_writes();
        // Tokens of the lost batch were returned to no caller, but skipping them costs nothing.
        self.ctx.high_water = self.ctx.high_water.max(loaded.high_water);
        let previous: Vec<_> = self.namespaces.iter_mut().map(NamespaceState::clear).collect();
        self.ctx.identify_boot(loaded.inode);
        let boot = self.ctx.boot;
        let ends_are_right = is_start && boot != NO_BOOT && loaded.ends_of == boot;
        self.ctx.ends_of = loaded.ends_of;
        for (namespace, name, position, claim) in loaded.holders(self.ctx.now, ends_are_right) {
            let id = self.namespace_id(&namespace);
            self.namespaces[id].restore(&mut self.ctx, &name, position, claim);
        }
        for (namespace, finished) in loaded.finished {
            let id = self.namespace_id(&namespace);
            self.namespaces[id].finished = Finished::restored(finished, self.ctx.now);
        }
        for (id, locks) in previous.into_iter().enumerate() {
            for (name, lock) in locks {
                let waiters = lock
                    .iter()
                    .filter_map(|(position, claim)| Some((position, as_waiter(claim)?)));
                for (position, claim) in waiters {
                    self.namespaces[id].restore_waiter(&mut self.ctx, &name, position, claim);
                }
            }
        }
        if !ends_are_right {
            self.ctx.set_ends_of(NO_BOOT);
            self.save_ends();
        }
        self.resume();
    }

    /// Writes all holders with their ends, so that a later process goes on with them, unless those in the file are right.
    pub fn save_ends(&mut self) {
        let boot = self.ctx.boot;
        if self.ctx.ends_of == boot {
            return;
        }
        for state in &self.namespaces {
            for (name, lock) in &state.locks {
                for (position, claim) in lock.iter() {
                    let Some(holding) = claim.holding() else { continue };
                    let key = RecordKey::Holder(state.id, name.clone(), position);
                    self.ctx.put(key, || record::write_holder(claim, holding));
                }
            }
        }
        self.ctx.set_ends_of(boot);
    }

    fn resume(&mut self) {
        for state in &mut self.namespaces {
            let names: Vec<_> = state.locks.keys().cloned().collect();
            for name in names {
                state.run(&mut self.ctx, &name, u32::MAX, |lock, ctx| lock.notify_eligible(ctx));
            }
            state.watchers.clear();
            state.notifications.send(Notification::Gap);
        }
        self.publish();
    }
}

/// A claim of the previous state as a waiter, if it waits, or waited until the lost batch granted
/// it.
fn as_waiter(claim: &Claim) -> Option<Claim> {
    let mut claim = claim.clone();
    if let Stage::Holding(Holding {
        waited: true, holds, ..
    }) = &claim.stage
    {
        claim.stage = Stage::Waiting(Waiting {
            hold: holds.first()?.clone(),
            replica: ReplicaId::default(),
        });
    }
    claim.waiting_for().is_some().then_some(claim)
}

#[cfg(test)]
mod tests;
