//! How a claim is put at the tail of a lock's queue.

use etcd_client::{Compare, PutOptions, TxnOp};

use super::Replica;
use super::acquire::{EnqueueRequest, EnqueueStep};
use super::batch_packing::BatchClass;
use super::batches::Answer;
use super::cluster_client::Failure;
use super::grant::{absent, none_made_after, present, some_under};
use super::keys::LockKeys;
use super::lock_watch;
use super::record::Claim;
use super::snapshot::Snapshot;
use super::view::View;
use crate::backend::{AcquireOutcome, NewClaim, QueuePosition};
use crate::name::Mode;

impl Replica {
    /// Puts a claim at the tail.
    pub async fn queue(&self, coming: &EnqueueRequest<'_>, view: &View) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest { lock, new, .. } = coming;
        let mut when = self.newcomer(coming);
        if new.reentrant {
            // It might be a holder by now that this one could join, or has joined.
            when.push(none_made_after(&lock.holders(), view.revision));
        }
        self.put_waiter(coming, when, &self.waiting(new)).await
    }

    /// Puts a claim at the tail of a lock whose view is kept up, if somebody keeps it out still: nothing
    /// is read, for its events will tell when it is next.
    pub async fn queue_behind(&self, coming: &EnqueueRequest<'_>) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest { name, new, .. } = coming;
        let mut when = self.newcomer(coming);
        let (company, blocked) = match self.last_far(name) {
            // Somebody who is known to wait is looked up by name, and not in the history of the lock.
            Some(last) if !new.retryable => (BatchClass::FarTail, present(coming.lock.waiter(last))),
            _ => (tail(new), some_under(&blockers(&coming.lock, new.mode))),
        };
        when.push(blocked);
        let claim = self.waiting(new);
        let write = self.write_waiter(coming, company, (when, &claim, Vec::new()));
        let answer = match write.await? {
            Ok(answer) => answer,
            Err(tried) => return Ok(tried),
        };
        self.scenes.join_behind(name, new, answer.revision);
        let ahead = self.scenes.ask(name, |view| {
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

    /// A newcomer as it begins to wait.
    fn waiting(&self, new: &NewClaim) -> Claim {
        Claim {
            place: self.arrivals.place(new.arrived),
            ..Claim::of(new)
        }
    }

    /// What must be so for a claim to be put at the tail.
    fn newcomer(&self, coming: &EnqueueRequest<'_>) -> Vec<Compare> {
        let EnqueueRequest { lock, new, ticket, .. } = coming;
        let mut when = self.fence(*ticket, new);
        when.push(absent(lock.waiter(new.id)));
        // One of a random id is entered by this call alone, and once.
        if new.retryable {
            when.push(absent(lock.holder(new.mode.into(), new.id)));
            when.push(absent(self.keys.request(new.id)));
        }
        when
    }

    /// Writes a waiting claim, and says where it stands.
    pub async fn put_waiter(
        &self,
        coming: &EnqueueRequest<'_>,
        when: Vec<Compare>,
        claim: &Claim,
    ) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = coming;
        let write = self.write_waiter(coming, tail(new), (when, claim, vec![Snapshot::glimpse(lock)]));
        let answer = match write.await? {
            Ok(answer) => answer,
            Err(tried) => return Ok(tried),
        };
        let Some(read) = answer.reads.first() else {
            return Err(Failure::Refused("etcd: a transaction lacks an answer".into()));
        };
        let view = match read.more() {
            true => lock_watch::read(&self.link, lock).await?,
            false => {
                View::read(lock, answer.read_at, read.kvs()).map_err(|error| Failure::Refused(error.to_string()))?
            }
        };
        self.stand(*ticket, name, new, view).await.map(EnqueueStep::Placed)
    }

    /// Writes a waiting claim, and reads something with it; otherwise how to try again.
    async fn write_waiter(
        &self,
        coming: &EnqueueRequest<'_>,
        company: BatchClass,
        (when, claim, reads): (Vec<Compare>, &Claim, Vec<TxnOp>),
    ) -> Result<Result<Answer, EnqueueStep>, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = coming;
        let on_session = PutOptions::new().with_lease(ticket.session);
        let mut then = vec![TxnOp::put(lock.waiter(new.id), claim.encode(), Some(on_session))];
        then.extend(reads);
        let otherwise = Snapshot::ops(&self.keys, name, lock, new, *ticket);
        match self.step_of(new.call, lock, company, when, (then, otherwise)).await {
            Err(Failure::LeaseGone) => {
                self.session.is_over(*ticket);
                Ok(Err(EnqueueStep::Again(None)))
            }
            Err(failure) => Err(failure),
            Ok(answer) if answer.succeeded => Ok(Ok(answer)),
            Ok(answer) => {
                let survey = self.surveyed((*ticket, lock, name, new), &answer).await?;
                Ok(Err(EnqueueStep::Again(Some(survey))))
            }
        }
    }
}

/// Whom a claim at its way to the tail goes with: one of a random id is known to no other step.
fn tail(new: &NewClaim) -> BatchClass {
    match new.retryable {
        true => BatchClass::Alone,
        false => BatchClass::Tail,
    }
}

/// The holders of which each one keeps out whoever comes with this mode.
fn blockers(lock: &LockKeys, mode: Mode) -> String {
    match mode {
        Mode::Exclusive => lock.holders(),
        Mode::Shared | Mode::Semaphore { .. } => lock.exclusive_holders(),
    }
}
