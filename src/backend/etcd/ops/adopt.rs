//! Calls that find an existing claim: the one of their own request, or one that they join.

use std::time::Duration;

use etcd_client::{Compare, PutOptions, TxnOp};

use super::Replica;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::record::{Claim, Hold};
use crate::backend::etcd::data::snapshot::Snapshot;
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::{seconds, span};
use crate::backend::etcd::ops::acquire::{EnqueueRequest, EnqueueStep};
use crate::backend::etcd::ops::grant::grant_of;
use crate::backend::etcd::ops::history;
use crate::backend::etcd::txn::conditions::{absent, unchanged};
use crate::backend::etcd::txn::packing::BatchClass;
use crate::backend::{AcquireOutcome, Refusal, WaitPolicy};

impl Replica {
    /// Adopts a waiting claim of the same request.
    pub async fn adopt_waiter(
        &self,
        request: &EnqueueRequest<'_>,
        view: &View,
        entry: &Entry,
    ) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = request;
        if let Some(field) = entry.claim.differs(new) {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Refused(Refusal::OtherParameters {
                field,
            })));
        }
        if view.is_next(&new.id) {
            return Ok(
                match self.grant_waiting(*ticket, name, new, (entry, view.revision)).await? {
                    Ok(grant) => EnqueueStep::Placed(AcquireOutcome::Held(grant)),
                    Err(snapshot) => EnqueueStep::Again(Some(snapshot)),
                },
            );
        }
        let mut when = self.fence(*ticket, new);
        when.push(unchanged(lock.waiter(new.id), entry));
        if new.wait_policy == WaitPolicy::Try {
            return self.remove_own_waiter(request, view, entry, when).await;
        }
        let adopted = Claim {
            since: entry.claim.since,
            place: entry.claim.place,
            ..Claim::of(new)
        };
        self.put_waiter(request, when, &adopted).await
    }

    /// Removes the waiting claim of a try's own request, because it cannot be granted now, and leaves a cancel mark for
    /// the older call.
    async fn remove_own_waiter(
        &self,
        request: &EnqueueRequest<'_>,
        view: &View,
        entry: &Entry,
        when: Vec<Compare>,
    ) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = request;
        let mut then = vec![TxnOp::delete(lock.waiter(new.id), None)];
        if let Some(older) = entry.claim.holds.first().filter(|older| older.call != new.call) {
            let on_session = PutOptions::new().with_lease(ticket.session);
            then.push(TxnOp::put(self.keys.mark(older.call), "1", Some(on_session)));
        }
        let otherwise = Snapshot::ops(&self.keys, name, lock, new, *ticket);
        let answer = self
            .step_of(new.call, lock, BatchClass::Alone, when, (then, otherwise))
            .await?;
        if answer.succeeded {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Busy(
                self.first_holder(view).await?,
            )));
        }
        let snapshot = self.snapshot_of((*ticket, lock, name, new), &answer).await?;
        Ok(EnqueueStep::Again(Some(snapshot)))
    }

    /// Adopts a hold of the same request: its record notes that two calls know it.
    pub async fn adopt_hold(&self, request: &EnqueueRequest<'_>, entry: &Entry) -> Result<EnqueueStep, Failure> {
        let new = request.new;
        if let Some(field) = entry.claim.differs(new) {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Refused(Refusal::OtherParameters {
                field,
            })));
        }
        let mut entry = entry.clone();
        let Some(hold) = entry.claim.holds.iter_mut().find(|hold| hold.id == new.id) else {
            return Ok(EnqueueStep::Again(None));
        };
        let secret = hold.secret;
        // The same step sent twice is not a second call.
        if hold.call != new.call && !hold.adopted {
            hold.adopted = true;
            entry.claim.not_poolable = true;
            // The rewrite compares the key, so the hold has not ended since.
            if let Err(snapshot) = self.rewrite(request, &mut entry, Vec::new()).await? {
                return Ok(EnqueueStep::Again(Some(snapshot)));
            }
        }
        let Some(left) = self.remaining(&entry).await? else {
            return Ok(EnqueueStep::Again(None));
        };
        Ok(EnqueueStep::Placed(AcquireOutcome::Held(grant_of(
            &entry,
            secret,
            left,
            Duration::ZERO,
        )?)))
    }

    /// Adds a hold to a claim of the same owner.
    pub async fn reenter(&self, request: &EnqueueRequest<'_>, entry: &Entry) -> Result<EnqueueStep, Failure> {
        let new = request.new;
        let refused = |refusal| Ok(EnqueueStep::Placed(AcquireOutcome::Refused(refusal)));
        if let Some(field) = entry.claim.differs(new) {
            return refused(Refusal::OtherParameters { field });
        }
        if entry.claim.holds.len() >= new.limits.holds as usize {
            return refused(Refusal::Full {
                limit: new.limits.holds,
            });
        }
        let mut entry = entry.clone();
        entry.claim.holds.push(Hold::of(new));
        entry.claim.not_poolable = true;
        if entry.claim.memory == 0 && history::is_remembered(new) {
            entry.claim.memory = self.leases.memory(entry.claim.span_s).await?;
        }
        let longer = seconds(new.ttl.get()) > entry.claim.span_s;
        if !longer {
            entry.claim.ttl = new.ttl.get();
        }
        let on = entry.lease;
        let first = match new.retryable {
            true => vec![absent(self.keys.request(new.id))],
            false => Vec::new(),
        };
        let memory = entry.claim.memory();
        let (written, alive, ()) = tokio::join!(
            self.rewrite(request, &mut entry, first),
            self.leases.keep_alive(on),
            self.leases.keep_memory(memory)
        );
        if let Err(snapshot) = written? {
            return Ok(EnqueueStep::Again(Some(snapshot)));
        }
        if !alive? {
            return Err(Failure::Unavailable("etcd: a lease ended with a re-entry".into()));
        }
        let mut ttl = span(entry.claim.span_s);
        if longer {
            let Some((moved, span)) = self.move_lease(request.name, &entry, new.ttl.get()).await? else {
                return Err(Failure::Unavailable(
                    "etcd: a holder changed while its lease did".into(),
                ));
            };
            (entry, ttl) = (moved, span);
        }
        Ok(EnqueueStep::Placed(AcquireOutcome::Held(grant_of(
            &entry,
            new.secret,
            ttl,
            Duration::ZERO,
        )?)))
    }

    /// Rewrites a holder's record on its lease, if it is unchanged since it was read, the call may still take effect
    /// and the conditions `and` are met.
    async fn rewrite(
        &self,
        request: &EnqueueRequest<'_>,
        entry: &mut Entry,
        and: Vec<Compare>,
    ) -> Result<Result<(), Snapshot>, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = request;
        let key = entry.holder_key(&lock);
        let mut when = self.fence(*ticket, new);
        when.push(unchanged(key.clone(), entry));
        when.extend(and);
        let put = TxnOp::put(
            key,
            entry.claim.encode(),
            Some(PutOptions::new().with_lease(entry.lease)),
        );
        let mut then = vec![put];
        then.extend(self.history.hold(&entry.claim, new.id));
        let otherwise = Snapshot::ops(&self.keys, name, lock, new, *ticket);
        let answer = self
            .step_of(new.call, lock, BatchClass::Alone, when, (then, otherwise))
            .await?;
        if !answer.succeeded {
            return Ok(Err(self.snapshot_of((*ticket, lock, name, new), &answer).await?));
        }
        entry.modified = answer.revision;
        self.history.granted(name, entry);
        Ok(Ok(()))
    }
}
