//! The request for a lock.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tracing::field::{Empty, display};
use tracing::{Instrument, info_span};

use super::calls::{CALL, wire};
use super::error::{Error, Failed};
use super::guard::LockGuard;
use super::keep_alive::KeepAlive;
use super::requests::Rpc;
use super::undo::Undo;
use crate::proto::mode::{Exclusive, Kind, Semaphore, Shared};
use crate::proto::{AcquireRequest, AcquireResponse, Lease, Mode};

/// A request for a lock. Awaiting it returns a [`LockGuard`], which keeps the lease alive; [`Acquire::lease`] returns
/// only the lease.
///
/// A call without a response is repeated with the same request id, so that it finds its own claim: a lost response
/// neither acquires the lock twice nor loses the position in the queue. A call with a wait is repeated until the wait
/// is over, even if the server restarts or the queue is full.
///
/// # Cancellation safety
/// When dropped while it waits, its claim is removed from the queue, and a grant that the server has already sent is given
/// back in the background, unless the caller chose its request id.
#[derive(Debug, Clone)]
pub struct Acquire {
    keep_alive: Arc<KeepAlive>,
    request: AcquireRequest,
    wait: Duration,
}

impl Acquire {
    pub(super) fn new(keep_alive: Arc<KeepAlive>, namespace: &str, name: &str, owner: &str) -> Self {
        let request = AcquireRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            owner: owner.to_owned(),
            ..AcquireRequest::default()
        };
        Self {
            keep_alive,
            request,
            wait: Duration::ZERO,
        }
    }

    /// Waits up to `wait` in the lock's queue; without it, the lock is tried once.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// The TTL of the lease; without it, the namespace's default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request.ttl = Some(wire(ttl));
        self
    }

    /// Requests a shared claim.
    #[must_use]
    pub fn shared(self) -> Self {
        self.mode(Kind::Shared(Shared {}))
    }

    /// Requests an exclusive claim, which is the default.
    #[must_use]
    pub fn exclusive(self) -> Self {
        self.mode(Kind::Exclusive(Exclusive {}))
    }

    /// Requests `permits` permits of a semaphore with `limit` permits.
    #[must_use]
    pub fn semaphore(self, permits: u32, limit: u32) -> Self {
        self.mode(Kind::Semaphore(Semaphore { permits, limit }))
    }

    fn mode(mut self, kind: Kind) -> Self {
        self.request.mode = Some(Mode { kind: Some(kind) });
        self
    }

    /// Adds a hold to a lease of the same owner that was acquired as reentrant too.
    #[must_use]
    pub fn reentrant(mut self) -> Self {
        self.request.reentrant = true;
        self
    }

    /// Adds a metadata entry for operators.
    #[must_use]
    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.request.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The id by which a later call finds the claim of this call; without it, each call has its own id.
    #[must_use]
    pub fn request_id(mut self, request_id: &str) -> Self {
        self.request.request_id = request_id.to_owned();
        self
    }

    /// Acquires the lock without keeping its lease alive. Only [`Client::release`](super::Client::release) with its id
    /// releases it before its TTL expires.
    ///
    /// # Errors
    /// [`Error::LockHeld`], [`Error::WaitTimeout`], [`Error::Unreachable`] and others.
    pub async fn lease(self) -> Result<Lease, Error> {
        self.granted().await.map(|(lease, _)| lease)
    }

    async fn guard(self) -> Result<LockGuard, Error> {
        let keep_alive = Arc::clone(&self.keep_alive);
        let (lease, sent) = self.granted().await?;
        Ok(LockGuard::new(keep_alive, lease, sent))
    }

    /// Acquires the lease. Also returns when the request was sent.
    async fn granted(mut self) -> Result<(Lease, Duration), Error> {
        // A retry of the caller's with its own id finds the claim.
        let is_own = self.request.request_id.is_empty();
        if is_own {
            self.request.request_id = fresh_id()?;
        }
        let request = |wait| AcquireRequest {
            wait,
            ..self.request.clone()
        };
        let leases = |answer: AcquireResponse| Vec::from_iter(answer.lease);
        let complete = |mut leases: Vec<Lease>| leases.pop();
        let granted = granted(&self.keep_alive, self.wait, is_own, request, leases, complete);
        in_span(&self.request.namespace, &self.request.name, self.wait, granted).await
    }
}

impl IntoFuture for Acquire {
    type Output = Result<LockGuard, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.guard().boxed()
    }
}

/// The span of a request for these locks, which shows its error.
pub(super) async fn in_span<T>(
    namespace: &str,
    locks: &str,
    wait: Duration,
    granted: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let wait_s = wait.as_secs_f64();
    let span = info_span!("fencepost.acquire", namespace, locks, wait_s, error = Empty);
    let granted = granted.instrument(span.clone()).await;
    if let Err(error) = &granted {
        span.record("error", display(error));
    }
    granted
}

/// Acquires what `request` asks for within this wait, if the `leases` of the answer are `complete`. Also returns when it was
/// sent. Where `undoes` is set, a grant is given back in the background if its caller has gone or it is not complete.
pub(super) async fn granted<R, T>(
    keep_alive: &Arc<KeepAlive>,
    wait: Duration,
    undoes: bool,
    request: impl Fn(Option<prost_types::Duration>) -> R,
    leases: impl Fn(R::Answer) -> Vec<Lease> + Copy + Send + 'static,
    complete: impl Fn(Vec<Lease>) -> Option<T>,
) -> Result<(T, Duration), Error>
where
    R: Rpc + Send + Sync + 'static,
    R::Answer: Send,
{
    let calls = keep_alive.open_calls()?;
    let give_back = || {
        let (keep_alive, request) = (Arc::clone(keep_alive), request(None));
        async move {
            let calls = keep_alive.calls();
            for lease in calls.call(request).await.map(leases).unwrap_or_default() {
                // If it fails, the lease expires.
                let _ = calls.release(&lease.lease_id, CALL).await;
            }
        }
        .boxed()
    };
    let undo = undoes.then(|| Undo::armed(give_back));
    let mut closing = keep_alive.closing();
    let granted = tokio::select! {
        biased;
        () = closing.closed() => Err(Error::Closed),
        granted = calls.acquire(wait, &request, |answer| complete(leases(answer))) => granted,
    };
    if let Some(undo) = undo
        && !granted.as_ref().is_err_and(Error::may_hold)
    {
        undo.disarm();
    }
    granted
}

/// A unique id: 128 random bits.
pub(super) fn fresh_id() -> Result<String, Error> {
    let mut bits = [0_u8; 16];
    getrandom::fill(&mut bits).map_err(|error| Failed::refused("NO_RANDOM", &error.to_string()).error)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bits)))
}

#[cfg(test)]
mod tests;
