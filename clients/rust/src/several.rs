//! The request for several locks at once.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{fresh_id, granted, in_span};
use super::calls::wire;
use super::error::Error;
use super::guard::LockGuard;
use super::keep_alive::KeepAlive;
use crate::proto::{AcquireAllRequest, AcquireAllResponse, LockToAcquire};

/// A request for several exclusive locks, all or none. [`AcquireAll::guards`] sends it.
///
/// A call without a response is repeated with the same request id, so that it finds what its first call was given.
#[derive(Debug, Clone)]
pub struct AcquireAll {
    keep_alive: Arc<KeepAlive>,
    request: AcquireAllRequest,
    wait: Duration,
}

impl AcquireAll {
    pub(super) fn new(keep_alive: Arc<KeepAlive>, namespace: &str, names: &[&str], owner: &str) -> Self {
        let lock = |name: &&str| LockToAcquire {
            name: (*name).to_owned(),
            mode: None,
        };
        let request = AcquireAllRequest {
            namespace: namespace.to_owned(),
            locks: names.iter().map(lock).collect(),
            owner: owner.to_owned(),
            ..AcquireAllRequest::default()
        };
        Self {
            keep_alive,
            request,
            wait: Duration::ZERO,
        }
    }

    /// Waits up to `wait` for all of them together; without it, each is tried once.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// The TTL of the leases; without it, the namespace's default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request.ttl = Some(wire(ttl));
        self
    }

    /// Adds metadata for operators.
    #[must_use]
    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.request.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Acquires all locks. Each guard keeps its lease; they are in the order in which the locks were named.
    ///
    /// # Cancellation safety
    /// When dropped while it waits, all are given back; grants that the server has already sent, in the background.
    ///
    /// # Errors
    /// [`Error::LockHeld`], [`Error::WaitTimeout`], [`Error::Unreachable`] and others. No lock is held then.
    pub async fn guards(mut self) -> Result<Vec<LockGuard>, Error> {
        self.request.request_id = fresh_id()?;
        let request = |wait| AcquireAllRequest {
            wait,
            ..self.request.clone()
        };
        let count = self.request.locks.len();
        let leases = |answer: AcquireAllResponse| answer.leases;
        let complete = |leases: Vec<_>| (leases.len() == count).then_some(leases);
        let granted = granted(&self.keep_alive, self.wait, true, request, leases, complete);
        let names: Vec<&str> = self.request.locks.iter().map(|lock| lock.name.as_str()).collect();
        let (leases, sent) = in_span(&self.request.namespace, &names.join(","), self.wait, granted).await?;
        let guard = |lease| LockGuard::new(Arc::clone(&self.keep_alive), lease, sent);
        Ok(leases.into_iter().map(guard).collect())
    }
}
