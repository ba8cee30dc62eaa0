//! Acquires a lock: grants a new claim at once or enqueues it; [`super::existing_claim`] handles claims that exist already.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

use super::grant::FreeAttempt;
use super::{Replica, TRIES, changed, created, name_in, outcome_of};
use crate::backend::tree::data::child::{Child, Place};
use crate::backend::tree::data::record::{Claim, Memory};
use crate::backend::tree::data::view::View;
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::backend::tree::group_commit::{Class, Step};
use crate::backend::tree::history::RequestWrite;
use crate::backend::tree::store::{Failure, NodeKind, Op};
use crate::backend::{AcquireOutcome, NewClaim, QueuePosition, Refusal, WaitPolicy};
use crate::claim::Holder;
use crate::name::{LockName, Mode};
use crate::queue::Callers;

/// A lock as it was read for one call.
pub struct ListedLock {
    pub connection: Arc<FencedConnection>,
    pub view: Arc<View>,
    /// What is known of the call's request, and how its record is written.
    pub memory: Option<Memory>,
    pub request_write: RequestWrite,
}

/// The outcome of one attempt.
pub enum Attempt {
    Done(AcquireOutcome),
    /// The lock has no claim.
    Empty,
    /// It changed concurrently.
    Changed,
}

impl From<AcquireOutcome> for Attempt {
    fn from(outcome: AcquireOutcome) -> Self {
        Self::Done(outcome)
    }
}

/// The outcome of a try that was enqueued. If its session ended, and its waiter with it, the try is decided anew.
fn of_try(outcome: AcquireOutcome) -> Attempt {
    match outcome {
        AcquireOutcome::Gone => Attempt::Changed,
        outcome => outcome.into(),
    }
}

/// Keeps later calls on the lock of this replica waiting, until the place of this one is known.
pub type InOrder = Option<OwnedMutexGuard<()>>;

/// A step that was not sent may follow one that made a waiter, which the undo of the call must remove.
fn may_have_effect(failure: Failure) -> Failure {
    match failure {
        Failure::NotSent(reason) => Failure::Unavailable(reason),
        failure => failure,
    }
}

impl Replica {
    /// See [`crate::backend::Backend::acquire`].
    pub async fn acquire(&self, lock: &LockName, new: &NewClaim) -> Result<AcquireOutcome, Failure> {
        let connection = self.connections.ready().await?;
        // Keeps the order of arrival: a call that may have to wait is sent after the call before it was enqueued. Therefore
        // no other await may come before this one.
        let mut in_order = match new.wait_policy {
            WaitPolicy::NoWait => None,
            WaitPolicy::Wait => Some(self.table.wait_for_earlier_calls(lock).await),
        };
        // Calls that have waited for one that failed are told so together.
        if in_order.is_some() && self.connections.current().borrow().is_none() {
            return Err(Failure::NotSent("the connection was lost".into()));
        }
        self.ensure_bucket(lock).await?;
        let outcome = self.acquire_now(lock, new, &connection, &mut in_order).await;
        drop(in_order);
        let outcome = outcome_of(outcome).map_err(may_have_effect)?;
        self.calls.note_outcome(new.call, &outcome);
        Ok(outcome)
    }

    /// See [`crate::backend::Backend::orders_acquires`].
    pub fn orders_acquires(&self, lock: &LockName) -> bool {
        // Steps that wait for a connection have no order.
        self.connections.current().borrow().is_some() && self.table.has_sent_appends(lock)
    }

    async fn acquire_now(
        &self,
        lock: &LockName,
        new: &NewClaim,
        connection: &FencedConnection,
        in_order: &mut InOrder,
    ) -> Result<AcquireOutcome, Failure> {
        if self.must_wait(lock, new, connection)
            && let Attempt::Done(outcome) = self.enqueue(lock, new, RequestWrite::Create, in_order).await?
        {
            return Ok(outcome);
        }
        if self.reads(new) {
            // Readers do not keep each other waiting.
            drop(in_order.take());
        }
        let mut is_there = match self.grant_free(lock, new, RequestWrite::Create, false).await? {
            FreeAttempt::Held(grant) => return Ok(AcquireOutcome::Held(grant)),
            FreeAttempt::Refused { is_there } => is_there,
        };
        for _ in 0..TRIES {
            let snapshot = self.snapshot(lock, new).await?;
            match self.acquire_by(lock, new, &snapshot, in_order).await? {
                Attempt::Done(outcome) => return Ok(outcome),
                Attempt::Changed => {}
                Attempt::Empty => match self.grant_free(lock, new, snapshot.request_write, is_there).await? {
                    FreeAttempt::Held(grant) => return Ok(AcquireOutcome::Held(grant)),
                    FreeAttempt::Refused { is_there: now } => is_there = now,
                },
            }
        }
        Err(Failure::Contended)
    }

    /// Whether a claim has to wait, as far as this replica knows. Its step asks for what matters besides.
    fn must_wait(&self, lock: &LockName, new: &NewClaim, connection: &FencedConnection) -> bool {
        let limit = new.limits.queue as usize;
        let missing_from_view = self.table.missing_from_view(lock);
        if new.wait_policy == WaitPolicy::NoWait || new.reentrant {
            return false;
        }
        let must_wait = self.table.ask(lock, connection, |view| {
            !view.is_empty()
                && !view.admits(new.mode)
                && view.mismatch(new.mode).is_none()
                && view.of_claim(&new.id).is_none()
                // Far from the limit, a view that is a little old suffices.
                && view.len() + missing_from_view < limit / 2
        });
        // Otherwise callers that hold for less than a round trip would never wait, and no release would hand over.
        let is_taken_unseen = || {
            self.batcher.bounds.independent
                && new.mode == Mode::Exclusive
                && missing_from_view < limit / 2
                && (self.leases.has_any(lock) || self.table.has_waiters(lock))
        };
        must_wait.unwrap_or_else(is_taken_unseen)
    }

    /// Reads the request of a call, and then the lock.
    pub async fn snapshot(&self, lock: &LockName, new: &NewClaim) -> Result<ListedLock, Failure> {
        let connection = self.connections.ready().await?;
        let request = self.paths.request(lock, new.id);
        // The request first: what it says was so when the lock was listed, or its version has changed since.
        let memory = async {
            match new.retryable {
                true => self.history.read(connection.generation, &request).await,
                false => Ok(None),
            }
        };
        let view = self.table.list(lock, &connection);
        let (memory, view) = if self.batcher.bounds.independent {
            // Reads that are under way have no order.
            (memory.await?, view.await?)
        } else {
            let (memory, view) = tokio::join!(biased; memory, view);
            (memory?, view?)
        };
        let read_over = connection.generation;
        let request_write = memory.as_ref().map_or(RequestWrite::Create, |(_, version)| {
            let version = *version;
            RequestWrite::Replace { version, read_over }
        });
        Ok(ListedLock {
            connection,
            view,
            memory: memory.and_then(|(memory, _)| memory),
            request_write,
        })
    }

    async fn acquire_by(
        &self,
        lock: &LockName,
        new: &NewClaim,
        snapshot: &ListedLock,
        in_order: &mut InOrder,
    ) -> Result<Attempt, Failure> {
        let view = &snapshot.view;
        if new.retryable
            && let Some(attempt) = self.find_request(lock, new, snapshot).await?
        {
            return Ok(attempt);
        }
        if new.reentrant
            && let Some(attempt) = self.join(lock, new, snapshot).await?
        {
            return Ok(attempt);
        }
        if let Some(existing) = view.mismatch(new.mode) {
            return Ok(AcquireOutcome::Refused(Refusal::LimitMismatch { existing }).into());
        }
        if view.is_empty() {
            return Ok(Attempt::Empty);
        }
        if new.wait_policy == WaitPolicy::NoWait && !view.admits(new.mode) {
            let first = self.first_holder(&snapshot.connection, lock, view).await?;
            return Ok(AcquireOutcome::Busy(first).into());
        }
        let limit = new.limits.queue;
        if view.len() >= limit as usize {
            return Ok(AcquireOutcome::Refused(Refusal::Full { limit }).into());
        }
        self.enqueue(lock, new, snapshot.request_write, in_order).await
    }

    async fn enqueue(
        &self,
        lock: &LockName,
        new: &NewClaim,
        request_write: RequestWrite,
        in_order: &mut InOrder,
    ) -> Result<Attempt, Failure> {
        let more = self.history.begin(lock, new, new.id, request_write);
        let ops = more.into_iter().collect();
        let claim = Claim::of(new);
        let more = (ops, request_write.read_over());
        let waiter = self.put_waiter(lock, new, (&claim, None), more, in_order);
        let Some(waiter) = waiter.await? else {
            return Ok(Attempt::Changed);
        };
        // It has its place, so the next call may be sent while this one lists the lock.
        drop(in_order.take());
        self.promote_new(lock, new, &waiter).await
    }

    /// Creates the waiter of a call, with other operations, over the connection that what they rest on was read over.
    /// `in_order` says that the call has waited for earlier
    /// ones. None if it was refused.
    pub async fn put_waiter(
        &self,
        lock: &LockName,
        new: &NewClaim,
        (claim, place): (&Claim, Option<Place>),
        (more, read_over): (Vec<Op>, Option<u64>),
        in_order: &mut InOrder,
    ) -> Result<Option<String>, Failure> {
        let create = Op::Create {
            path: self.child(lock, &Child::waiter_prefix(new, place)),
            data: claim.encode(),
            kind: NodeKind::EphemeralSequential,
        };
        let mut ops = vec![create];
        ops.extend(more);
        let step = self.step_of(lock, new, ops)?;
        let class = if place.is_none() { Class::Append } else { Class::Alone };
        let patient = in_order.is_some() && self.table.has_waiters(lock);
        let step = Step {
            class,
            patient,
            read_over,
            ..step
        };
        let _appending = self.table.begin_append(lock);
        let sent = if self.batcher.bounds.independent {
            // Where others wait, the next call may follow at once: the appends of a lock keep their order.
            let queued = || drop(in_order.take_if(|_| patient));
            self.batcher.send_and(step, queued).await
        } else {
            if in_order.is_some() {
                self.table.note_append(lock);
            }
            self.batcher.send(step).await
        };
        let Some(done) = changed(sent)? else {
            return Ok(None);
        };
        let waiter = name_in(created(&done, 0)?.0).to_owned();
        let callers = claim.holds.first().map_or_else(Callers::default, |hold| hold.callers);
        self.table
            .join(lock, (new.call, new.id), callers, &waiter, done.connection.session);
        tracing::trace!(lock = %lock, claim = %new.id, "waits");
        Ok(Some(waiter))
    }

    /// A new waiter: it holds if it may, leaves again if it is a try, and otherwise waits.
    async fn promote_new(&self, lock: &LockName, new: &NewClaim, waiter: &str) -> Result<Attempt, Failure> {
        let connection = self.connections.ready().await?;
        if let Some(outcome) = self.wait_unlisted(lock, new, &connection, waiter) {
            return Ok(outcome.into());
        }
        let view = self.table.list(lock, &connection).await?;
        // Another replica may have enqueued one of another kind at the same moment.
        if let Some(existing) = view.mismatch_ahead(waiter, new.mode)
            && self.withdraw(lock, new, waiter).await?
        {
            return Ok(AcquireOutcome::Refused(Refusal::LimitMismatch { existing }).into());
        }
        // Calls that came together saw room, each for itself.
        let limit = new.limits.queue;
        if view.ahead(waiter) >= limit as usize && self.withdraw(lock, new, waiter).await? {
            return Ok(AcquireOutcome::Refused(Refusal::Full { limit }).into());
        }
        let outcome = self.promote_from_view(lock, new, connection, view).await?;
        if new.wait_policy == WaitPolicy::Wait {
            return Ok(outcome.into());
        }
        if matches!(outcome, AcquireOutcome::Waiting(_)) {
            // It has another name if it was moved to a new session.
            let own = self.table.own(lock, new.call).map(|own| own.name);
            if !self.withdraw(lock, new, own.as_deref().unwrap_or(waiter)).await? {
                return Ok(Attempt::Changed);
            }
            let connection = self.connections.ready().await?;
            let view = self.table.list(lock, &connection).await?;
            return Ok(AcquireOutcome::Busy(self.first_holder(&connection, lock, &view).await?).into());
        }
        Ok(of_try(outcome))
    }

    /// The outcome of an exclusive call whose new waiter is known to be behind others.
    fn wait_unlisted(
        &self,
        lock: &LockName,
        new: &NewClaim,
        connection: &FencedConnection,
        waiter: &str,
    ) -> Option<AcquireOutcome> {
        let missing = self.table.missing_from_view(lock);
        let is_far = |view: &View| view.len() + missing < new.limits.queue as usize / 2;
        // The view does not show who has joined since, who may be of a kind that cannot share the lock.
        if new.wait_policy == WaitPolicy::NoWait
            || new.mode != Mode::Exclusive
            || self.calls.is_cancelled(new.call)
            || self.table.ask(lock, connection, is_far) != Some(true)
        {
            return None;
        }
        let position = Child::parse(waiter)?.place()?.position();
        let holders = self.table.holders_ahead(lock, connection, new.call)?;
        let known = |holder: &String| self.leases.get(lock, holder, connection.generation);
        let leases = holders.iter().filter_map(known);
        let frees_in = leases.map(|lease| self.leases.remaining(&lease)).min();
        self.table.allow_notification(lock, new.call);
        Some(AcquireOutcome::Waiting(QueuePosition { position, frees_in }))
    }

    /// Removes a waiter of a call's request: its own, or that of an earlier call. Whether it was there.
    pub async fn withdraw(&self, lock: &LockName, new: &NewClaim, waiter: &str) -> Result<bool, Failure> {
        let request = new.retryable.then_some(new.id);
        let send = async |ops| self.batcher.send(self.step_of(lock, new, ops)?).await;
        let gone = self.delete_waiter((lock, waiter, request), send).await?;
        if gone {
            self.table.remove_own_waiter(lock, new.call);
        }
        Ok(gone)
    }

    /// The first holder of a view, as it is shown.
    pub async fn first_holder(
        &self,
        connection: &FencedConnection,
        lock: &LockName,
        view: &View,
    ) -> Result<Option<Box<Holder>>, Failure> {
        let Some(first) = view.holders().first() else {
            return Ok(None);
        };
        let lease = self.shown_holder(connection, lock, first).await?;
        Ok(lease.map(|lease| Box::new(self.leases.show(&lease))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_whose_waiter_ended_with_its_session_is_decided_anew() {
        assert!(matches!(of_try(AcquireOutcome::Gone), Attempt::Changed));
        let superseded = of_try(AcquireOutcome::Superseded);
        assert!(matches!(superseded, Attempt::Done(AcquireOutcome::Superseded)));
    }
}
