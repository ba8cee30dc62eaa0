//! Promotes a waiting claim to a holder, on request of the replica that serves its call.
//!
//! The claim is judged by a view that watch events keep current. The transaction checks that the waiter's key is
//! still there and that no holder excludes it.
//!
//! Each replica promotes one semaphore claim of a lock at a time, under the condition that none was granted after its
//! view. A replica that has the answer to its last grant knows all of them: 400 waiters that one release frees take
//! 400 transactions and no read.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};

use super::acquire::TRIES;
use super::grant::{Retry, grant_of};
use super::{Replica, history};
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::snapshot::{Call, Snapshot};
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::SpareLease;
use crate::backend::etcd::lock_state::call_queue::CallKind;
use crate::backend::{AcquireOutcome, NewClaim, QueuePosition};
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
        let position = self.locks.join_queue(name, CallKind::Promote, false).await?;
        drop(spare);
        self.execute_in_order(&position, self.promote_now(name, new)).await
    }

    /// Reserves a lease for the grant of this claim. Dropping it puts the lease into the pool.
    pub async fn spare(&self, new: &NewClaim) -> Result<Option<SpareLease>, Failure> {
        match self.leases.set_aside(new.ttl.get(), history::is_remembered(new)).await {
            // The grant reports that.
            Err(Failure::Full(_)) => Ok(None),
            spare => spare.map(Some),
        }
    }

    async fn promote_now(&self, name: &LockName, new: &NewClaim) -> Result<AcquireOutcome, Failure> {
        let mut call = Call::new(&self.keys, name, new, self.session.epoch().await?);
        let outcome = match self.promote_known(&call).await {
            Ok(outcome) => outcome,
            Err(Retry::Failed(failure)) => return Err(failure),
            Err(retry) => {
                let snapshot = match retry {
                    Retry::Changed(snapshot) => *snapshot,
                    _ => self.snapshot(&call).await?,
                };
                self.promote_from_snapshot(&mut call, snapshot).await?
            }
        };
        match outcome {
            AcquireOutcome::Waiting(_) => return Ok(outcome),
            AcquireOutcome::Cancelled if self.calls.is_settled(new.call) => {
                self.calls.cancel(new.call);
                self.unmark(new.call);
            }
            // Its earlier steps of unknown outcome have granted it, or find no waiter any more, or another one.
            AcquireOutcome::Held(_)
            | AcquireOutcome::Superseded
            | AcquireOutcome::Gone
            | AcquireOutcome::Finished(_) => drop(self.calls.over(new.call)),
            AcquireOutcome::Cancelled | AcquireOutcome::Busy(_) | AcquireOutcome::Refused(_) => {}
        }
        self.locks.remove_waiter(name, &new.id, new.call);
        self.suffixes.end(new.call);
        Ok(outcome)
    }

    /// Promotes a claim that is next in the watched view.
    async fn promote_known(&self, call: &Call<'_>) -> Result<AcquireOutcome, Retry> {
        let (entry, revision) = self.locks.next(call.name, call.new).ok_or(Retry::Read)?;
        Ok(AcquireOutcome::Held(self.grant_waiting(call, &entry, revision).await?))
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

    /// The outcome of a claim by a snapshot, in which it may wait.
    async fn promote_from_snapshot(&self, call: &mut Call<'_>, snapshot: Snapshot) -> Result<AcquireOutcome, Failure> {
        match self.outcome_of(call, &snapshot).await? {
            SnapshotOutcome::Waits(suffix) => self.promote_from_view(call, suffix, snapshot.view).await,
            SnapshotOutcome::Final(outcome) => Ok(outcome),
        }
    }

    /// Promotes a waiting claim that is next in the view, with retries while the lock changes concurrently. A claim
    /// that is not next is registered as a local waiter.
    pub async fn promote_from_view(
        &self,
        call: &mut Call<'_>,
        mut suffix: KeySuffix,
        mut view: View,
    ) -> Result<AcquireOutcome, Failure> {
        for _ in 0..TRIES {
            let waiter = view.waiters.get(suffix).filter(|entry| entry.waits_for(call.new));
            let snapshot = match waiter {
                // The view is newer than the step that wrote the claim, so the claim was changed since.
                None => self.snapshot(call).await?,
                Some(entry) if !view.is_next(suffix) => return Ok(self.wait(call, entry, &view).await),
                Some(entry) => match self.grant_waiting(call, entry, view.revision).await {
                    Ok(grant) => return Ok(AcquireOutcome::Held(grant)),
                    Err(Retry::Changed(snapshot)) => *snapshot,
                    Err(Retry::Read) => self.snapshot(call).await?,
                    Err(Retry::Failed(failure)) => return Err(failure),
                },
            };
            match self.outcome_of(call, &snapshot).await? {
                SnapshotOutcome::Waits(there) => (suffix, view) = (there, snapshot.view),
                SnapshotOutcome::Final(outcome) => return Ok(outcome),
            }
        }
        Err(Failure::contended())
    }

    async fn wait(&self, call: &Call<'_>, entry: &Entry, view: &View) -> AcquireOutcome {
        let frees_in = match view.first_holder() {
            Some(holder) => self.frees_in(holder, view.is_first(entry.suffix)).await,
            None => None,
        };
        self.locks.join(call.name, call.new, entry, view.clone());
        tracing::trace!(lock = %call.name, claim = %call.new.id, "waits");
        AcquireOutcome::Waiting(QueuePosition {
            position: entry.created.unsigned_abs(),
            frees_in,
        })
    }

    /// Whether a claim waits for this call. Its next step is sent under the current session.
    async fn outcome_of(&self, call: &mut Call<'_>, snapshot: &Snapshot) -> Result<SnapshotOutcome, Failure> {
        if !self.holds_good(call, snapshot) {
            call.epoch = self.session.epoch().await?;
        }
        let done = |outcome| Ok(SnapshotOutcome::Final(outcome));
        if snapshot.marked {
            return done(AcquireOutcome::Cancelled);
        }
        let (new, view) = (call.new, &snapshot.view);
        if let Some(entry) = view.waiter_with(&new.id) {
            return match entry.waits_for(new) {
                true => Ok(SnapshotOutcome::Waits(entry.suffix)),
                false => done(AcquireOutcome::Superseded),
            };
        }
        let Some(entry) = view.holder_with(&new.id) else {
            let ended = snapshot.ended.map(AcquireOutcome::Finished);
            return done(ended.unwrap_or(AcquireOutcome::Gone));
        };
        let Some(hold) = entry.claim.hold(&new.id).filter(|hold| hold.call == new.call) else {
            return done(AcquireOutcome::Superseded);
        };
        let left = self.remaining(entry).await?;
        let left = left.ok_or_else(|| Failure::Unavailable("etcd: a lease is about to end".into()))?;
        self.history.note(call.name, entry, None);
        done(AcquireOutcome::Held(grant_of(
            entry,
            hold.secret,
            left,
            Duration::ZERO,
        )?))
    }
}

/// Whether a claim waits for a call.
enum SnapshotOutcome {
    /// Under this key suffix.
    Waits(KeySuffix),
    Final(AcquireOutcome),
}
