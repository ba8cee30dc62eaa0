//! What is told of a batch that took effect: the answers to its verbs, and messages.

use std::collections::HashMap;

use super::Draft;
use crate::backend::failure::unavailable;
use crate::backend::record::locks::EntryState;
use crate::backend::record::message::Notice;
use crate::backend::record::root::{Resolved, server_of};
use crate::backend::record::store::{Message, ServerId, Stamp};
use crate::backend::record::verb::{Answer, Pending, Verb};
use crate::backend::record::{Core, local};
use crate::name::LockName;
use crate::queue::{AcquireOutcome, Expiry, Grant, Released, RenewOutcome, ReplicaId};

impl Draft {
    /// The messages to other servers. `token` is the last token before the commit.
    pub fn messages(&self, core: &Core, token: u64) -> Vec<Message> {
        let mut notices: HashMap<ServerId, Notice> = HashMap::new();
        for (replica, claim) in &self.effects.next {
            if let Some(server) = server_of(*replica) {
                notices.entry(server).or_default().next.push(*claim);
            }
        }
        if let Some(ends) = self.effects.ends {
            let waiting = self.record.waiters().filter_map(|waiter| server_of(waiter.replica));
            for server in waiting.chain(self.record.watchers.iter().map(|(server, _)| *server)) {
                notices.entry(server).or_default().ends = Some(ends);
            }
        }
        if !self.effects.changes.is_empty() {
            let changes = (self.effects.after, self.effects.changes.clone());
            for (server, _) in &self.record.watchers {
                notices.entry(*server).or_default().changes = Some(changes.clone());
            }
        }
        if !self.effects.forced.is_empty() {
            for server in core.liveness.living() {
                notices
                    .entry(server)
                    .or_default()
                    .forced
                    .clone_from(&self.effects.forced);
            }
        }
        notices.remove(&core.server);
        let notices = notices.into_iter();
        notices
            .map(|(to, notice)| Message {
                to,
                body: notice.write(token),
            })
            .collect()
    }

    /// Decides what the commit left open.
    pub fn resolve(&mut self, stamp: Stamp) {
        self.resolved = Some(self.record.resolve(stamp));
    }

    /// Answers the releases of a commit that took effect at an unknown time. Returns the other verbs, which find what they
    /// have done when they run again.
    pub fn answer_releases(
        &mut self,
        core: &Core,
        lock: &LockName,
        state: &mut EntryState,
        batch: Vec<Pending>,
    ) -> Vec<Pending> {
        core.tell_forced(lock, &self.effects.forced);
        let mut left = Vec::new();
        for (pending, (answer, _)) in batch.into_iter().zip(std::mem::take(&mut self.answers)) {
            match &answer {
                Answer::Released(outcome)
                    if outcome.next.is_none() && matches!(outcome.released, Released::Ended(_)) =>
                {
                    local::note(state, &pending.verb, &answer);
                    pending.answer(answer);
                }
                _ => left.push(pending),
            }
        }
        left
    }

    /// Answers the verbs at this time of the store, and tells the waiters and watchers of this server.
    pub fn answer(mut self, core: &Core, lock: &LockName, state: &mut EntryState, (batch, now): (Vec<Pending>, Stamp)) {
        let resolved = self.resolved.unwrap_or(Resolved::new(0, now));
        for (mut pending, (mut answer, ends)) in batch.into_iter().zip(std::mem::take(&mut self.answers)) {
            resolve(&mut answer, &resolved, ends);
            if let Some(reason) = self.unconfirmed.as_ref().filter(|_| answer.extends()) {
                match (&mut answer, &pending.verb) {
                    // It asks for the claim again, and is granted the same.
                    (Answer::Released(outcome), Verb::Release(_, Some(next))) if outcome.kept.is_none() => {
                        outcome.next = None;
                        local::tell_next(core, lock, state, next.id);
                    }
                    _ => {
                        pending.unsettled = true;
                        pending.fail(&unavailable(reason));
                        continue;
                    }
                }
            }
            local::note(state, &pending.verb, &answer);
            if let Answer::Watching(_, changes) = &mut answer {
                *changes = Some(core.watchers.add(lock, self.effects.upto));
            }
            pending.answer(answer);
        }
        let own = ReplicaId(core.server.0.get());
        for (_, claim) in self.effects.next.iter().filter(|(replica, _)| *replica == own) {
            local::tell_next(core, lock, state, *claim);
        }
        if !self.effects.changes.is_empty() {
            for change in &mut self.effects.changes {
                change.token = change.token.map(|token| resolved.token(token));
            }
            core.watchers.changed(lock, self.effects.after, self.effects.changes);
        }
        core.tell_forced(lock, &self.effects.forced);
    }
}

/// Replaces what was open in an answer.
fn resolve(answer: &mut Answer, resolved: &Resolved, ends: Option<Expiry>) {
    let grant = |grant: &mut Grant| {
        grant.token = resolved.token(grant.token);
        if let Some(ends) = ends {
            grant.ttl = ends.resolved(resolved.clock).known().saturating_sub(resolved.clock);
        }
    };
    match answer {
        Answer::Acquired(AcquireOutcome::Held(held)) => grant(held),
        Answer::Acquired(AcquireOutcome::Busy(Some(holder))) => holder.token = resolved.token(holder.token),
        Answer::Released(outcome) => outcome.next.as_mut().map_or((), grant),
        Answer::Renewed(RenewOutcome::Renewed(renewed)) => grant(renewed),
        Answer::Queue(queue) | Answer::Watching(queue, _) => {
            for holder in &mut queue.holders {
                holder.token = resolved.token(holder.token);
            }
        }
        Answer::Holder(Some(holder)) => holder.token = resolved.token(holder.token),
        _ => {}
    }
}
