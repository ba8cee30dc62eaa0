//! Promotes a waiting claim to a holder, on request of the replica that serves its call.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};

use super::Replica;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::snapshot::Snapshot;
use crate::backend::etcd::lease::Spare;
use crate::backend::etcd::ops::grant::grant_of;
use crate::backend::etcd::ops::history;
use crate::backend::{AcquireOutcome, NewClaim};
use crate::name::{CallId, LockName, Mode};

impl Replica {
    /// See [`crate::backend::Backend::promote`].
    pub async fn promote(&self, name: &LockName, new: &NewClaim) -> Result<AcquireOutcome, Failure> {
        if !matches!(new.mode, Mode::Semaphore { .. }) {
            return self.promote_now(name, new).await;
        }
        // One promotion per lock at a time, because each grant changes what the next is judged by. The lease is made
        // before, because that is slow.
        let spare = self.spare(new).await?;
        let admission = self.promotions.acquire(name, false).await?;
        drop(spare);
        self.execute_admitted(&admission, self.promote_now(name, new)).await
    }

    /// Reserves a lease for the grant of this claim. Dropping it puts the lease into the pool.
    pub async fn spare(&self, new: &NewClaim) -> Result<Option<Spare>, Failure> {
        match self.leases.set_aside(new.ttl.get(), history::is_remembered(new)).await {
            // The grant reports that.
            Err(Failure::Full(_)) => Ok(None),
            spare => spare.map(Some),
        }
    }

    async fn promote_now(&self, name: &LockName, new: &NewClaim) -> Result<AcquireOutcome, Failure> {
        let ticket = self.session.ticket().await?;
        let mut known = None;
        if let Some((entry, revision)) = self.lock_watches.next(name, &new.id)
            && entry.claim.hold(&new.id).is_some_and(|hold| hold.call == new.call)
        {
            match self.grant_waiting(ticket, name, new, (&entry, revision)).await? {
                Ok(grant) => return Ok(AcquireOutcome::Held(grant)),
                Err(snapshot) => known = Some(snapshot),
            }
        }
        let snapshot = match known {
            Some(snapshot) => snapshot,
            None => self.read_snapshot(ticket, name, new).await?,
        };
        let ticket = match self.holds_good(ticket, &snapshot) {
            true => ticket,
            false => self.session.ticket().await?,
        };
        let outcome = match self.outcome_of(name, new, &snapshot).await? {
            Some(outcome) => outcome,
            None => self.stand(ticket, name, new, snapshot.view).await?,
        };
        match outcome {
            AcquireOutcome::Waiting(_) => return Ok(outcome),
            // Its earlier steps of unknown outcome have granted it, or found no waiter any more.
            AcquireOutcome::Held(_) => drop(self.calls.over(new.call)),
            AcquireOutcome::Cancelled if self.calls.is_settled(new.call) => {
                self.calls.release(new.call);
                self.unmark(new.call);
            }
            // Its earlier steps of unknown outcome find no waiter any more, or another one.
            AcquireOutcome::Superseded | AcquireOutcome::Gone | AcquireOutcome::Finished(_) => {
                drop(self.calls.over(new.call))
            }
            AcquireOutcome::Cancelled | AcquireOutcome::Busy(_) | AcquireOutcome::Refused(_) => {}
        }
        self.lock_watches.part(name, &new.id, new.call);
        Ok(outcome)
    }

    /// Deletes a cancel mark that is no longer needed, because all steps of its call were answered.
    fn unmark(&self, call: CallId) {
        let (link, mark) = (Arc::clone(&self.link), self.keys.mark(call));
        tokio::spawn(async move {
            if let Err(failure) = link.txn(Txn::new().and_then([TxnOp::delete(mark, None)])).await {
                tracing::debug!(%failure, "a cancel mark stays until its session ends");
            }
        });
    }

    /// The outcome of a claim that does not wait for this call; None if it waits for this call.
    pub async fn outcome_of(
        &self,
        name: &LockName,
        new: &NewClaim,
        snapshot: &Snapshot,
    ) -> Result<Option<AcquireOutcome>, Failure> {
        if snapshot.marked {
            return Ok(Some(AcquireOutcome::Cancelled));
        }
        let id = snapshot.view.name_of(&new.id, new.call);
        if let Some(entry) = snapshot.view.waiters.get(&id) {
            let ours = entry.claim.hold(&id).is_some_and(|hold| hold.call == new.call);
            return Ok((!ours).then_some(AcquireOutcome::Superseded));
        }
        if let Some(entry) = snapshot.view.holder_with(&id) {
            let Some(hold) = entry.claim.hold(&id).filter(|hold| hold.call == new.call) else {
                return Ok(Some(AcquireOutcome::Superseded));
            };
            let left = self.remaining(entry).await?;
            let left = left.ok_or_else(|| Failure::Unavailable("etcd: a lease is about to end".into()))?;
            self.history.granted(name, entry);
            return Ok(Some(AcquireOutcome::Held(grant_of(
                entry,
                hold.secret,
                left,
                Duration::ZERO,
            )?)));
        }
        Ok(Some(
            snapshot.ended.map_or(AcquireOutcome::Gone, AcquireOutcome::Finished),
        ))
    }
}
