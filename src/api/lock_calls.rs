//! The calls about one lock, as `LockService` and sessions make them: each asks `access`, calls
//! [`crate::locks::Locks`] once, and converts the outcome.

use std::time::Duration;

use tonic::metadata::MetadataMap;

use super::access::{GuardedNamespaces, NamespaceToAcquire};
use super::authenticate::Caller;
use super::convert::{self, Bounds};
use super::{deadline, proto};
use crate::error::Error;
use crate::locks::Acquire;
use crate::name::{LeaseKey, LockName};

/// The calls about the locks of all namespaces.
#[derive(Debug, Clone)]
pub(super) struct LockCalls {
    guarded: GuardedNamespaces,
    bounds: Bounds,
}

impl LockCalls {
    /// Calls to these namespaces, with answers within the bounds.
    pub(super) fn new(guarded: GuardedNamespaces, bounds: Bounds) -> Self {
        Self { guarded, bounds }
    }

    /// The namespace and the parameters of an Acquire; the deadline in the headers of its call shortens the wait.
    pub(super) fn to_acquire(
        &self,
        caller: Caller,
        headers: Option<&MetadataMap>,
        message: proto::AcquireRequest,
    ) -> Result<(NamespaceToAcquire, Acquire), Error> {
        let identity = caller.identity.clone();
        let namespace = self.guarded.to_acquire(caller, &message.namespace, &message.name)?;
        let mut acquire = convert::acquire(message, identity)?;
        // Checked before the deadline shortens it: the limit does not depend on the deadline.
        namespace.limits().wait(acquire.wait)?;
        if let Some(headers) = headers {
            acquire.wait = deadline::shortened(acquire.wait, headers);
        }
        Ok((namespace, acquire))
    }

    /// Renews a lease.
    ///
    /// # Cancellation safety
    /// If dropped, the lease may have been renewed.
    pub(super) async fn renew(
        &self,
        caller: &Caller,
        key: LeaseKey,
        ttl: Option<prost_types::Duration>,
    ) -> Result<proto::RenewResponse, Error> {
        let locks = self.guarded.lease(caller, &key)?;
        let ttl: Option<Duration> = convert::ttl(ttl)?;
        let lease = locks.renew(&key, ttl).await?;
        Ok(proto::RenewResponse {
            lease: Some(convert::lease(&lease)),
        })
    }

    /// Releases a lease.
    ///
    /// # Cancellation safety
    /// If dropped, the lease may have been released.
    pub(super) async fn release(&self, caller: &Caller, key: LeaseKey) -> Result<proto::ReleaseResponse, Error> {
        let locks = self.guarded.lease(caller, &key)?;
        locks.release(&key).await?;
        Ok(proto::ReleaseResponse {})
    }

    /// Shows a lock.
    ///
    /// # Cancellation safety
    /// Safe: it changes nothing.
    pub(super) async fn get_lock(
        &self,
        caller: &Caller,
        message: proto::GetLockRequest,
    ) -> Result<proto::GetLockResponse, Error> {
        let locks = self.guarded.to_read(caller, &message.namespace, &message.name)?;
        let name = LockName::new(&message.name)?;
        let queue = locks.inspect(&name, self.bounds.claims).await?;
        let lock = convert::lock_state(locks.namespace(), &name, &queue, self.bounds);
        Ok(proto::GetLockResponse { lock: Some(lock) })
    }

    /// Checks a token.
    ///
    /// # Cancellation safety
    /// Safe: it changes nothing.
    pub(super) async fn check_token(
        &self,
        caller: &Caller,
        message: proto::CheckTokenRequest,
    ) -> Result<proto::CheckTokenResponse, Error> {
        let locks = self.guarded.to_read(caller, &message.namespace, &message.name)?;
        let (name, token) = convert::lock_and_token(&message.name, message.fencing_token)?;
        let holder = locks.check(&name, token).await?;
        Ok(convert::checked(holder.as_ref()))
    }
}
