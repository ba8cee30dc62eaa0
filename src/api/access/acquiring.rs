//! A namespace in which a caller may acquire.

use std::sync::Arc;

use futures::TryFutureExt;
use futures::future::{BoxFuture, OptionFuture};
use tokio_util::sync::CancellationToken;

use super::GuardedNamespaces;
use crate::api::authenticate::Caller;
use crate::api::counted_grant::CountedGrant;
use crate::auth::Verb;
use crate::error::Error;
use crate::limits::Limits;
use crate::locks::{Acquire, Locks, SessionStream, UndeliveredGrant, WaitControl};
use crate::name::LockName;
use crate::quota::{AcquireQuota, Entry};

/// A namespace in which a caller may acquire.
#[derive(Debug, Clone)]
pub(in crate::api) struct NamespaceToAcquire {
    pub(super) locks: Locks,
    pub(super) guarded: GuardedNamespaces,
    pub(super) caller: Caller,
    pub(super) control: Option<Box<WaitControl>>,
    pub(super) stream: Option<Arc<SessionStream>>,
}

impl NamespaceToAcquire {
    /// The same, with a control of a call that waits.
    pub(in crate::api) fn controlled(self, control: WaitControl) -> Self {
        let control = Some(Box::new(control));
        Self { control, ..self }
    }

    /// The same, for calls on this stream of a session, if it can be resumed.
    pub(in crate::api) fn on(self, stream: Option<Arc<SessionStream>>) -> Self {
        Self { stream, ..self }
    }

    /// Whether what a call has when it ends with this error is kept for a resumed session, which asks for it again. A caller
    /// whose credentials have expired may come back with others.
    pub(in crate::api) fn is_kept_after(&self, error: &Error) -> bool {
        match (&self.stream, error) {
            (Some(_), Error::Draining) => true,
            (Some(stream), Error::Unauthenticated { .. }) => {
                // The stream ends for the same reason, but later.
                stream.broke_off();
                true
            }
            (stream, Error::OfLock { error, .. }) => stream.is_some() && self.is_kept_after(error),
            _ => false,
        }
    }

    /// The limits of the namespace.
    pub(in crate::api) fn limits(&self) -> Arc<Limits> {
        self.locks.limits()
    }

    /// The caller.
    pub(in crate::api) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Counts more calls against the call rates. They are not refused, but later calls are.
    pub(in crate::api) fn count_more_calls(&self, calls: usize) {
        let quotas = &self.guarded.quotas;
        quotas.more_calls(&self.caller.identity, self.locks.namespace().as_str(), calls);
    }

    /// Whether the caller still has its identity and its permission for these locks.
    pub(in crate::api) fn still_allowed(
        &self,
        names: &[LockName],
    ) -> impl Future<Output = Result<Caller, Error>> + Send {
        let namespace = self.locks.namespace();
        self.guarded
            .still_allowed(&self.caller, Verb::Acquire, namespace, names)
    }

    /// Ready when the caller may not have one of these locks any more.
    pub(in crate::api) fn until_denied(&self, names: &[LockName]) -> impl Future<Output = Error> + Send {
        let namespace = self.locks.namespace();
        self.guarded.until_denied(&self.caller, Verb::Acquire, namespace, names)
    }

    /// Tries to acquire the lock, without waiting.
    ///
    /// # Cancellation safety
    /// As [`Locks::acquire`].
    ///
    /// # Errors
    /// As [`Locks::acquire`], before the store is called.
    pub(in crate::api) fn try_acquire(
        self,
        request: Acquire,
    ) -> Result<impl Future<Output = Result<CountedGrant, Error>> + Send, Error> {
        let quota = self.quota(&request)?;
        let applicant = self.caller.applicant(&request);
        let granted = self.locks.try_acquire(request, self.stream)?;
        let locks = self.locks;
        Ok(granted.map_ok(|granted| {
            if let Some(applicant) = applicant {
                locks.log_grant(&granted, applicant);
            }
            CountedGrant::new(granted, quota, locks)
        }))
    }

    /// Acquires the lock, or waits for it. The permission of a waiting caller is checked at intervals, and before
    /// its grant is returned. If it was revoked, the claim is removed from the queue or the grant is undone.
    ///
    /// Most of the state is in boxes that only some calls need, because thousands may wait.
    ///
    /// # Cancellation safety
    /// As [`Locks::acquire`].
    ///
    /// # Errors
    /// As [`Locks::acquire`], before the store is called.
    pub(in crate::api) fn wait_for(
        mut self,
        request: Acquire,
    ) -> Result<impl Future<Output = Result<CountedGrant, Error>> + Send, Error> {
        let quota = self.quota(&request)?;
        let name = request.lock.clone();
        let applicant = self.caller.applicant(&request);
        let draining = self.caller.draining().cloned();
        let control = (self.control.take(), draining);
        let acquired = self.locks.wait_for(request, control, self.stream.clone())?;
        Ok(async move {
            let granted = if self.caller.policy.is_some() || self.caller.ending().is_some() {
                Box::pin(self.while_allowed(acquired, &name)).await
            } else {
                acquired.await
            };
            match (&granted, applicant) {
                (Ok(granted), Some(applicant)) => self.locks.log_grant(granted, applicant),
                (Err(Error::WaitTimeout { waited }), Some(applicant)) => {
                    self.locks.log_wait_timeout(&applicant, *waited);
                }
                _ => {}
            }
            Ok(CountedGrant::new(granted?, quota, self.locks))
        })
    }

    /// What the caller's call uses of its limits.
    fn quota(&self, request: &Acquire) -> Result<AcquireQuota, Error> {
        let entry = Entry {
            waits: !request.wait.is_zero(),
            claim: request.claim(),
        };
        let namespace = self.locks.namespace();
        let (quotas, ledger) = (&self.guarded.quotas, self.locks.ledger());
        let quota = quotas.acquire(&request.identity, namespace.as_str(), entry, ledger);
        Ok(quota.map_err(|over| self.guarded.counted(namespace, over))?)
    }

    async fn while_allowed(
        &self,
        mut acquired: BoxFuture<'static, Result<UndeliveredGrant, Error>>,
        name: &LockName,
    ) -> Result<UndeliveredGrant, Error> {
        let names = std::slice::from_ref(name);
        let granted = tokio::select! {
            biased;
            // It is dropped after the stream is noted to have broken off, which removes the claim from its queue or keeps it.
            granted = &mut acquired => granted?,
            error = self.until_denied(names) => {
                self.is_kept_after(&error);
                return Err(error);
            }
            Some(()) = OptionFuture::from(self.caller.ending().map(CancellationToken::cancelled)) => return Err(Error::Draining),
        };
        match self.still_allowed(names).await {
            Ok(_) => Ok(granted),
            Err(error) => {
                self.is_kept_after(&error);
                Err(error)
            }
        }
    }
}
