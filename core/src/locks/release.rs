//! Releases leases, and promotes the next waiter in the same step.

use std::sync::Arc;
use std::time::Duration;

use super::local_waiters::WaiterMessage;
use super::{Locks, NamespaceState, SessionStream, ids};
use crate::backend::{BackendError, OwnedReleaseTarget, ReleaseOutcome, ReleaseTarget, Released};
use crate::claim::Cause;
use crate::error::Error;
use crate::name::{FencingToken, LeaseKey, LockName, Owner, RequestId};
use crate::traces::carried;

impl Locks {
    /// Releases a lease and promotes the next waiter. A repeated release succeeds.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the lease ended for another reason.
    pub async fn release(&self, lease: &LeaseKey) -> Result<(), Error> {
        self.release_keeping(lease, Duration::ZERO).await.map(drop)
    }

    /// [`Self::release`], after which the lock stays taken for `keep_for`. Returns how long it stays taken: the first release
    /// of a lease decides that.
    ///
    /// # Errors
    /// As [`Self::release`]; [`Error::InvalidField`] above the namespace's longest TTL, and [`Error::Unsupported`] where the
    /// store keeps no released lock.
    pub async fn release_keeping(&self, lease: &LeaseKey, keep_for: Duration) -> Result<Option<Duration>, Error> {
        let time = self.state.limits.load().keep_for(keep_for)?;
        let target = match time.is_zero() {
            true => ReleaseTarget::Hold(lease),
            false => ReleaseTarget::Keeping(lease, time),
        };
        let outcome = self.state.release(&lease.lock.name, target).await?;
        if let Released::Ended(_) = outcome.released {
            self.state.grant_log.released(lease, outcome.kept);
        }
        match outcome.released {
            Released::Ended(_) | Released::EndedBefore(Cause::Released) => Ok(outcome.kept),
            Released::EndedBefore(cause) => Err(Error::LeaseLost { cause: Some(cause) }),
            Released::Nothing | Released::Adopted => Err(Error::LeaseLost { cause: None }),
        }
    }

    /// Takes out what a request of a session has: its waiting claim, or its grant. What a later stream of the session asked for
    /// stays.
    ///
    /// # Errors
    /// [`Error::Superseded`] if that, or another session, asked for it last.
    pub async fn cancel_request(
        &self,
        stream: &SessionStream,
        (lock, owner): (&LockName, &Owner),
        request_id: &RequestId,
    ) -> Result<(), Error> {
        self.state.limits.load().name(lock)?;
        if !self.state.capabilities.remembers_requests {
            let what = "a cancel by request, because this store remembers none";
            return Err(BackendError::Unsupported { what }.into());
        }
        let claim = ids::of_request((lock, owner), &stream.identity, request_id);
        let target = ReleaseTarget::Request(&claim, stream.number);
        match self.state.release(lock, target).await?.released {
            Released::Adopted => Err(Error::Superseded),
            Released::Ended(_) | Released::EndedBefore(_) | Released::Nothing => Ok(()),
        }
    }

    /// Forcibly releases the claim that holds this token.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the release continues: a lease that the store ends must leave the ledger.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the token is not held.
    pub async fn force_release(&self, lock: &LockName, token: FencingToken) -> Result<(), Error> {
        self.state.limits.load().name(lock)?;
        let (state, lock) = (Arc::clone(&self.state), lock.clone());
        let step = async move {
            let outcome = state.release(&lock, ReleaseTarget::Forced(token)).await;
            if outcome
                .as_ref()
                .is_ok_and(|outcome| matches!(outcome.released, Released::Ended(_)))
            {
                state.grant_log.forced(&lock, token);
            }
            outcome
        };
        match in_own_task(step).await?.released {
            Released::Ended(_) => Ok(()),
            Released::EndedBefore(cause) => Err(Error::LeaseLost { cause: Some(cause) }),
            Released::Nothing | Released::Adopted => Err(Error::LeaseLost { cause: None }),
        }
    }
}

impl NamespaceState {
    /// Releases `target` and promotes the first waiter of this replica in the same step.
    pub(super) async fn release(
        self: &Arc<Self>,
        lock: &LockName,
        target: ReleaseTarget<'_>,
    ) -> Result<ReleaseOutcome, Error> {
        let Some(next) = self.waiters.first(lock) else {
            return Ok(self.backend.release(lock, target, None).await?);
        };
        // In a task of its own: the step may make `next` a holder, which must be notified even if this call is dropped.
        let (state, lock, target) = (Arc::clone(self), lock.clone(), OwnedReleaseTarget::from(target));
        let step = async move {
            let outcome = state
                .backend
                .release(&lock, target.as_target(), Some(&next.claim))
                .await;
            match &outcome {
                Ok(ReleaseOutcome { next: Some(grant), .. }) => next.post(WaiterMessage::Granted(grant.clone())),
                Ok(_) => {}
                Err(_) => next.post(WaiterMessage::Promote),
            }
            outcome
        };
        Ok(in_own_task(step).await?)
    }
}

/// Runs a step in a task of its own, so that it continues if its caller is dropped.
async fn in_own_task<T, E>(step: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<BackendError> + Send + 'static,
{
    tokio::spawn(carried(step)).await.unwrap_or_else(|error| {
        let reason = error.to_string();
        Err(BackendError::Broken { reason }.into())
    })
}
