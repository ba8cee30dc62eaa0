//! The request for several locks at once.

use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::acquire::{MARGIN, MAX_SENDS, fresh_id};
use super::calls::{BACKOFF, duration, incomplete, wire};
use super::error::{Error, Failed, Retryable};
use super::guard::LockGuard;
use super::keep_alive::KeepAlive;
use super::lease_term::LeaseTerm;
use crate::api::proto::lock_service_client::LockServiceClient;
use crate::api::proto::{AcquireAllRequest, AcquireAllResponse, LockToAcquire};
use crate::clock;

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
    /// When dropped while it waits, all are given back. Grants that the server has already sent remain until their TTL
    /// expires.
    ///
    /// # Errors
    /// [`Error::LockHeld`], [`Error::WaitTimeout`], [`Error::Unreachable`] and others. No lock is held then.
    pub async fn guards(mut self) -> Result<Vec<LockGuard>, Error> {
        self.request.request_id = fresh_id()?;
        let end = clock::since_boot() + self.wait;
        let (mut sends, mut backoff) = (MAX_SENDS, BACKOFF);
        loop {
            let sent = clock::since_boot();
            let failed = match self.once(end.saturating_sub(sent)).await {
                Ok(response) => return Ok(self.guards_of(response, sent)),
                Err(failed) => failed,
            };
            sends = sends.saturating_sub(1);
            let pause = backoff.pause();
            let may_resend = sends > 0 && self.wait.is_zero() && failed.retry == Retryable::Elsewhere;
            let may_wait = failed.retry != Retryable::Never && clock::since_boot() + pause < end;
            if may_resend || may_wait {
                tokio::time::sleep(pause).await;
            }
            // With no wait left the call would be a try, whose error is not that of a wait.
            if !may_resend && (!may_wait || clock::since_boot() >= end) {
                return Err(self.keep_alive.calls().error(failed));
            }
        }
    }

    async fn once(&self, wait: Duration) -> Result<AcquireAllResponse, Failed> {
        let request = AcquireAllRequest {
            wait: (!wait.is_zero()).then(|| wire(wait)),
            ..self.request.clone()
        };
        let response = self
            .keep_alive
            .calls()
            .once(wait + MARGIN, request, acquire_all)
            .await?;
        if response.leases.len() == self.request.locks.len() {
            Ok(response)
        } else {
            Err(incomplete())
        }
    }

    fn guards_of(&self, response: AcquireAllResponse, sent: Duration) -> Vec<LockGuard> {
        let guard = |lease: crate::api::proto::Lease| {
            let term = LeaseTerm::granted(sent + duration(lease.waited), duration(lease.ttl));
            LockGuard::new(Arc::clone(&self.keep_alive), lease, term)
        };
        response.leases.into_iter().map(guard).collect()
    }
}

async fn acquire_all(
    channel: Channel,
    request: Request<AcquireAllRequest>,
) -> Result<Response<AcquireAllResponse>, Status> {
    LockServiceClient::new(channel).acquire_all(request).await
}
