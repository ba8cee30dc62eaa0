//! Ends a hold, undoes a call, or forces a holder.
//!
//! A grant does not name its successors, for the reasons that `backend::etcd` of the crate `fencepost` gives. Appends that
//! wait for the hand-over and share its commit were tried: they halve the commits of a hand-off and make it no faster,
//! and a call whose append is refused loses its place.

use std::time::Duration;

use super::end::Ending;
use super::{Replica, TRIES, changed};
use crate::backend::tree::data::child::Child;
use crate::backend::tree::data::view::View;
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::backend::tree::group_commit::StepDone;
use crate::backend::tree::store::{ANY, Failure, Op};
use crate::backend::{NewClaim, ReleaseOutcome, ReleaseTarget, Released, StreamNumber};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName};

impl Replica {
    /// See [`crate::backend::Backend::release`].
    pub async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, Failure> {
        if let ReleaseTarget::Call(_, call) = target {
            self.calls.cancel(call);
            self.calls.settled(call).await;
        }
        let next = next.filter(|_| !self.connections.is_refused());
        for _ in 0..TRIES {
            let outcome = match target {
                ReleaseTarget::Hold(lease) => self.release_hold(lease, None, next).await?,
                ReleaseTarget::Keeping(lease, time) => self.release_hold(lease, Some(time), next).await?,
                ReleaseTarget::Call(claim, call) => self.undo(lock, *claim, call, next).await?,
                ReleaseTarget::Request(claim, stream) => self.cancel_request(lock, (*claim, stream), next).await?,
                ReleaseTarget::Forced(token) => self.force(lock, token, next).await?,
            };
            if let Some(outcome) = outcome {
                if let ReleaseTarget::Call(_, call) = target {
                    self.table.remove_own_waiter(lock, call);
                    self.calls.note_settled(call);
                }
                return Ok(outcome);
            }
        }
        Err(Failure::Contended)
    }

    async fn release_hold(
        &self,
        lease: &LeaseKey,
        keep_for: Option<Duration>,
        next: Option<&NewClaim>,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let Some(held) = self.holder_of(lease).await? else {
            return self.released_before(lease).await.map(Some);
        };
        if keep_for.is_some() && self.leases.remaining(&held).is_zero() {
            // It is about to be ended, unless another replica has renewed it.
            self.expire(&held).await?;
            return Ok(None);
        }
        let ending = Ending {
            lease: &held,
            hold: Some(lease.secret),
            cause: Cause::Released,
            keep_for,
        };
        self.end(ending, next).await
    }

    /// How a hold that is gone ended, and how long its claim stays if it was released.
    async fn released_before(&self, lease: &LeaseKey) -> Result<ReleaseOutcome, Failure> {
        let released = Released::before(self.cause_of(lease).await?);
        let mut kept = None;
        if released == Released::EndedBefore(Cause::Released) {
            let connection = self.connections.ready().await?;
            let claim = self
                .holder_with_token(&connection, &lease.lock.name, lease.token)
                .await?;
            kept = claim
                .map(|claim| self.leases.kept(&claim))
                .filter(|kept| !kept.is_zero());
        }
        Ok(ReleaseOutcome {
            kept,
            ..released.into()
        })
    }

    async fn force(
        &self,
        lock: &LockName,
        token: FencingToken,
        next: Option<&NewClaim>,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let connection = self.connections.ready().await?;
        if let Some(held) = self.holder_with_token(&connection, lock, token).await? {
            let ending = Ending {
                lease: &held,
                hold: None,
                cause: Cause::Forced,
                keep_for: None,
            };
            return self.end(ending, next).await;
        }
        let before = self.history.of_token(connection.generation, lock, token).await?;
        Ok(Some(Released::before(before).into()))
    }

    async fn undo(
        &self,
        lock: &LockName,
        claim: ClaimId,
        call: CallId,
        next: Option<&NewClaim>,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        self.table.suppress_notification(lock, call);
        // Its steps were answered, or are kept out by the fence of this connection.
        let connection = self.connections.ready().await?;
        // Its waiter is deleted without a list, so that of many waits that end at once none reads the queue.
        let own = self.table.own(lock, call).and_then(|own| Child::parse(&own.name));
        if let Some(waiter) = own
            && self.remove_waiter(lock, &waiter).await?
        {
            return Ok(Some(Released::Ended(Cause::Cancelled).into()));
        }
        let view = self.table.list(lock, &connection).await?;
        let holder = match view.of_call(call) {
            Some(waiter) if !waiter.holds() => {
                let gone = self.remove_waiter(lock, waiter).await?;
                return Ok(gone.then(|| Released::Ended(Cause::Cancelled).into()));
            }
            Some(holder) => Some(holder),
            None => self.joined(lock, (&connection, &view), claim, call).await?,
        };
        match holder {
            Some(holder) => self.undo_hold(lock, &connection, holder, call, next).await,
            None if view.of_claim(&claim).is_some() => Ok(Some(Released::Adopted.into())),
            None => Ok(Some(Released::Nothing.into())),
        }
    }

    /// Takes out what a request has, unless another session, or a later stream of this one, asked for it last.
    async fn cancel_request(
        &self,
        lock: &LockName,
        (claim, stream): (ClaimId, StreamNumber),
        next: Option<&NewClaim>,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let connection = self.connections.ready().await?;
        let view = self.list_now(&connection, lock).await?;
        if let Some(waiter) = view.waiters().iter().find(|waiter| waiter.claim == claim) {
            let known = self.read_waiter(&connection, lock, waiter).await?;
            let Some(hold) = known.as_ref().and_then(|known| known.holds.first()) else {
                return Ok(None);
            };
            if !hold.callers.are_of(stream) {
                return Ok(Some(Released::Adopted.into()));
            }
            // The waiter of its call stays in the table: the call finds that its place was taken out.
            let waiter = (lock, waiter.name.as_str(), Some(claim));
            let gone = self.delete_waiter(waiter, |ops| self.step(lock, ops, None)).await?;
            return Ok(gone.then(|| Released::Ended(Cause::Cancelled).into()));
        }
        let may_have_it = |holder: &&Child| holder.claim == claim || holder.reentrant;
        for holder in view.holders().iter().filter(may_have_it) {
            let Some(held) = self.read_holder(&connection, lock, holder).await? else {
                return Ok(None);
            };
            let Some(hold) = held.claim.hold(&claim) else { continue };
            if !hold.callers.are_of(stream) {
                return Ok(Some(Released::Adopted.into()));
            }
            let cancelled = Some(hold.secret);
            let ending = Ending {
                lease: &held,
                hold: Some(hold.secret),
                cause: Cause::Undone,
                keep_for: None,
            };
            let outcome = self.end(ending, next).await?;
            return Ok(outcome.map(|outcome| ReleaseOutcome { cancelled, ..outcome }));
        }
        Ok(Some(Released::Nothing.into()))
    }

    /// See [`crate::backend::Backend::owns`].
    pub async fn owns(&self, lock: &LockName, claim: &ClaimId, call: CallId) -> Result<bool, Failure> {
        let connection = self.connections.ready().await?;
        let view = self.list_now(&connection, lock).await?;
        let holder = match view.of_call(call) {
            Some(waiter) if !waiter.holds() => return Ok(true),
            Some(holder) => Some(holder),
            None => self.joined(lock, (&connection, &view), *claim, call).await?,
        };
        let Some(holder) = holder else { return Ok(false) };
        let lease = self.read_holder(&connection, lock, holder).await?;
        let hold = lease.as_ref().and_then(|lease| lease.claim.hold_of_call(call));
        Ok(hold.is_some_and(|hold| !hold.callers.adopted))
    }

    /// Removes a waiter and forgets its request. Whether it was there.
    async fn remove_waiter(&self, lock: &LockName, waiter: &Child) -> Result<bool, Failure> {
        let request = waiter.retryable.then_some(waiter.claim);
        let gone = self
            .delete_waiter((lock, &waiter.name, request), |ops| self.step(lock, ops, None))
            .await?;
        if gone {
            self.table.remove_own_waiter(lock, waiter.call);
        }
        Ok(gone)
    }

    /// Deletes a waiter and forgets its request, in a step that `send` sends. Whether it was there.
    pub async fn delete_waiter<S>(
        &self,
        (lock, waiter, request): (&LockName, &str, Option<ClaimId>),
        send: impl Fn(Vec<Op>) -> S,
    ) -> Result<bool, Failure>
    where
        S: Future<Output = Result<StepDone, Failure>>,
    {
        let delete = Op::delete(self.child(lock, waiter), ANY);
        let mut ops = vec![delete.clone()];
        ops.extend(request.map(|id| self.history.forget(lock, id)));
        let gone = match send(ops).await {
            // The record of its request was deleted by hand.
            Err(Failure::Refused { index: 1, .. }) => changed(send(vec![delete]).await)?,
            sent => changed(sent)?,
        };
        if gone.is_some() {
            if let Some(id) = request {
                self.history.forgot(lock, id);
            }
            self.table.waiter_removed(lock, waiter);
        }
        Ok(gone.is_some())
    }

    /// The holder that has the hold of this call although another has created it, or of this id beside its first one.
    async fn joined<'a>(
        &self,
        lock: &LockName,
        (connection, view): (&FencedConnection, &'a View),
        id: ClaimId,
        call: CallId,
    ) -> Result<Option<&'a Child>, Failure> {
        let may_have_it = |holder: &&Child| holder.claim == id || holder.reentrant;
        for holder in view.holders().iter().filter(may_have_it) {
            let lease = self.read_holder(connection, lock, holder).await?;
            let is_it = |lease: &super::Lease| {
                lease.claim.hold_of_call(call).is_some() || (lease.claim.id != id && lease.claim.hold(&id).is_some())
            };
            if lease.is_some_and(|lease| is_it(&lease)) {
                return Ok(Some(holder));
            }
        }
        Ok(None)
    }

    /// Ends the hold of a call, unless another call has found it.
    async fn undo_hold(
        &self,
        lock: &LockName,
        connection: &FencedConnection,
        holder: &Child,
        call: CallId,
        next: Option<&NewClaim>,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let Some(held) = self.read_holder(connection, lock, holder).await? else {
            return Ok(None);
        };
        match held.claim.hold_of_call(call) {
            Some(hold) if !hold.callers.adopted => {
                let ending = Ending {
                    lease: &held,
                    hold: Some(hold.secret),
                    cause: Cause::Undone,
                    keep_for: None,
                };
                self.end(ending, next).await
            }
            _ => Ok(Some(Released::Adopted.into())),
        }
    }
}
