//! Appends a claim to the tail of a lock's queue.

use etcd_client::{Compare, PutOptions, TxnOp};

use super::Replica;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::keys::LockKeys;
use crate::backend::etcd::data::record::Claim;
use crate::backend::etcd::data::snapshot::Snapshot;
use crate::backend::etcd::data::view::View;
use crate::backend::etcd::ops::acquire::{EnqueueRequest, EnqueueStep};
use crate::backend::etcd::txn::Answer;
use crate::backend::etcd::txn::conditions::{absent, none_made_after, present, some_under};
use crate::backend::etcd::txn::packing::BatchClass;
use crate::backend::{AcquireOutcome, NewClaim, QueuePosition};
use crate::name::Mode;

impl Replica {
    /// Appends a claim to the queue of a lock that was read.
    pub async fn queue(&self, request: &EnqueueRequest<'_>, view: &View) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest { lock, new, .. } = request;
        let mut when = self.append_conditions(request);
        if new.reentrant {
            // A newer holder might be one that this call could join, or has joined.
            when.push(none_made_after(&lock.holders(), view.revision));
        }
        self.put_waiter(request, when, &self.waiting(new)).await
    }

    /// Appends a claim to the queue of a watched lock, if a holder or a waiter still blocks it. It reads nothing,
    /// because the watch will report when the claim is next.
    pub async fn queue_behind(&self, request: &EnqueueRequest<'_>) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest { name, new, .. } = request;
        let mut when = self.append_conditions(request);
        let (class, blocked) = match self.last_far(name) {
            // A known waiter is one key, where a range would cost a walk through the lock's whole history.
            Some(last) if !new.retryable => (BatchClass::FarTail, present(request.lock.waiter(last))),
            _ => (tail(new), some_under(&blockers(&request.lock, new.mode))),
        };
        when.push(blocked);
        let claim = self.waiting(new);
        let write = self.write_waiter(request, class, (when, &claim, Vec::new()));
        let answer = match write.await? {
            Ok(answer) => answer,
            Err(step) => return Ok(step),
        };
        self.lock_watches.join_behind(name, new, answer.revision);
        let ahead = self.lock_watches.ask(name, |view| {
            let is_first = view.waiters.len() == 0 || view.is_first(&new.id);
            Some((view.first_holder()?, is_first))
        });
        tracing::trace!(lock = %name, claim = %new.id, "waits");
        Ok(EnqueueStep::Placed(AcquireOutcome::Waiting(QueuePosition {
            position: answer.revision.unsigned_abs(),
            frees_in: match ahead.flatten() {
                Some((holder, is_first)) => self.frees_in(holder, is_first).await,
                None => None,
            },
        })))
    }

    /// The record of a claim that begins to wait.
    fn waiting(&self, new: &NewClaim) -> Claim {
        Claim {
            place: self.admission.place(new.arrived),
            ..Claim::of(new)
        }
    }

    /// The conditions under which a claim is appended.
    fn append_conditions(&self, request: &EnqueueRequest<'_>) -> Vec<Compare> {
        let EnqueueRequest { lock, new, ticket, .. } = request;
        let mut when = self.fence(*ticket, new);
        when.push(absent(lock.waiter(new.id)));
        // A claim with a random id is enqueued by this call alone, and once.
        if new.retryable {
            when.push(absent(lock.holder(new.mode.into(), new.id)));
            when.push(absent(self.keys.request(new.id)));
        }
        when
    }

    /// Writes a waiting claim, and returns its outcome.
    pub async fn put_waiter(
        &self,
        request: &EnqueueRequest<'_>,
        when: Vec<Compare>,
        claim: &Claim,
    ) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = request;
        let write = self.write_waiter(request, tail(new), (when, claim, vec![Snapshot::glimpse(lock)]));
        let answer = match write.await? {
            Ok(answer) => answer,
            Err(step) => return Ok(step),
        };
        let Some(read) = answer.reads.first() else {
            return Err(Failure::Refused("etcd: a transaction lacks an answer".into()));
        };
        let view = match read.more() {
            true => View::fetch(&self.link, lock).await?,
            false => View::read(lock, answer.read_at, read.kvs())?,
        };
        self.stand(*ticket, name, new, view).await.map(EnqueueStep::Placed)
    }

    /// Writes a waiting claim together with some reads. If a condition was not met, the inner error says how to try
    /// again.
    async fn write_waiter(
        &self,
        request: &EnqueueRequest<'_>,
        class: BatchClass,
        (when, claim, reads): (Vec<Compare>, &Claim, Vec<TxnOp>),
    ) -> Result<Result<Answer, EnqueueStep>, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = request;
        let on_session = PutOptions::new().with_lease(ticket.session);
        let mut then = vec![TxnOp::put(lock.waiter(new.id), claim.encode(), Some(on_session))];
        then.extend(reads);
        let otherwise = Snapshot::ops(&self.keys, name, lock, new, *ticket);
        match self.step_of(new.call, lock, class, when, (then, otherwise)).await {
            Err(Failure::LeaseGone) => {
                self.session.is_over(*ticket);
                Ok(Err(EnqueueStep::Again(None)))
            }
            Err(failure) => Err(failure),
            Ok(answer) if answer.succeeded => Ok(Ok(answer)),
            Ok(answer) => {
                let snapshot = self.snapshot_of((*ticket, lock, name, new), &answer).await?;
                Ok(Err(EnqueueStep::Again(Some(snapshot))))
            }
        }
    }
}

/// The batch class of an append. No other step names a claim with a random id.
fn tail(new: &NewClaim) -> BatchClass {
    match new.retryable {
        true => BatchClass::Alone,
        false => BatchClass::Tail,
    }
}

/// The prefix of the holders that each block a claim of this mode.
fn blockers(lock: &LockKeys, mode: Mode) -> String {
    match mode {
        Mode::Exclusive => lock.holders(),
        Mode::Shared | Mode::Semaphore { .. } => lock.exclusive_holders(),
    }
}
