//! Asking for a lock.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::calls::{CALL, Calls, FIRST_PAUSE, duration, incomplete, longer, wire};
use super::error::{Retryable, Error, Failed};
use super::guard::LockGuard;
use super::keep_alive::LeaseTerm;
use crate::api::proto::lock_service_client::LockServiceClient;
use crate::api::proto::mode::{Exclusive, Kind, Semaphore, Shared};
use crate::api::proto::{AcquireRequest, AcquireResponse, Lease, Mode};
use crate::clock;

/// How much longer than its wait a call may take.
const MARGIN: Duration = CALL;
/// How often a try is sent when nobody answers.
const TRIES: u32 = 3;

/// A lock to be asked for. Awaited, it becomes a [`LockGuard`], which keeps the lease; [`Acquire::lease`]
/// takes the lease alone.
///
/// A call that was not answered is repeated with the same request id, so that it finds its own claim:
/// a lost answer neither takes the lock twice nor loses the place in its queue. With a wait it is
/// repeated until that is over, through a restart of the server too.
///
/// # Cancellation safety
/// Dropped while it waits, it leaves the queue. A grant that was on its way then lives until its time
/// to live is over.
#[derive(Debug, Clone)]
pub struct Acquire {
    calls: Arc<Calls>,
    ask: AcquireRequest,
    wait: Duration,
}

impl Acquire {
    pub(super) fn new(calls: Arc<Calls>, namespace: &str, name: &str, owner: &str) -> Self {
        let ask = AcquireRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            owner: owner.to_owned(),
            ..AcquireRequest::default()
        };
        Self {
            calls,
            ask,
            wait: Duration::ZERO,
        }
    }

    /// How long to wait in the lock's queue; without it, the lock is tried once.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// How long the lease lives without a renewal; without it, the namespace's default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ask.ttl = Some(wire(ttl));
        self
    }

    /// Together with other shared claims.
    #[must_use]
    pub fn shared(self) -> Self {
        self.mode(Kind::Shared(Shared {}))
    }

    /// Alone, as without any mode.
    #[must_use]
    pub fn exclusive(self) -> Self {
        self.mode(Kind::Exclusive(Exclusive {}))
    }

    /// With others, up to a common limit of permits.
    #[must_use]
    pub fn semaphore(self, permits: u32, limit: u32) -> Self {
        self.mode(Kind::Semaphore(Semaphore { permits, limit }))
    }

    fn mode(mut self, kind: Kind) -> Self {
        self.ask.mode = Some(Mode { kind: Some(kind) });
        self
    }

    /// Adds a hold to a lease of the same owner that was taken with this too.
    #[must_use]
    pub fn reentrant(mut self) -> Self {
        self.ask.reentrant = true;
        self
    }

    /// A text that operators see; may be given several times with different keys.
    #[must_use]
    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.ask.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The id under which a later call finds this one's claim; without it, each call has one of its own.
    #[must_use]
    pub fn request_id(mut self, request_id: &str) -> Self {
        self.ask.request_id = request_id.to_owned();
        self
    }

    /// Takes the lock and nothing more: nobody renews the lease, and only its id gives it back.
    ///
    /// # Errors
    /// [`Error::LockHeld`], [`Error::WaitTimeout`], [`Error::Unreachable`] and the others.
    pub async fn lease(self) -> Result<Lease, Error> {
        self.granted().await.map(|(lease, _)| lease)
    }

    async fn guard(self) -> Result<LockGuard, Error> {
        let calls = Arc::clone(&self.calls);
        let kind = self.ask.mode.as_ref().and_then(|mode| mode.kind);
        let alone = matches!(kind, None | Some(Kind::Exclusive(_)));
        let (lease, term) = self.granted().await?;
        Ok(LockGuard::new(calls, lease, alone, term))
    }

    /// The lease, and until when its client may count on it.
    async fn granted(mut self) -> Result<(Lease, LeaseTerm), Error> {
        if self.ask.request_id.is_empty() {
            self.ask.request_id = fresh_id()?;
        }
        let end = clock::since_boot() + self.wait;
        let (mut sends, mut pause) = (TRIES, FIRST_PAUSE);
        loop {
            let sent = clock::since_boot();
            let failed = match self.once(end.saturating_sub(sent)).await {
                Ok(lease) => {
                    let term = LeaseTerm::granted(sent + duration(lease.waited), duration(lease.ttl));
                    return Ok((lease, term));
                }
                Err(failed) => failed,
            };
            sends = sends.saturating_sub(1);
            let tries = sends > 0 && self.wait.is_zero() && failed.again == Retryable::Elsewhere;
            let waits = failed.again != Retryable::Never && clock::since_boot() + pause < end;
            if tries || waits {
                tokio::time::sleep(pause).await;
            }
            // Without time left it would be a try, and its answer about another question.
            if !tries && (!waits || clock::since_boot() >= end) {
                return Err(self.calls.error(failed));
            }
            pause = longer(pause);
        }
    }

    async fn once(&self, wait: Duration) -> Result<Lease, Failed> {
        let ask = AcquireRequest {
            wait: (!wait.is_zero()).then(|| wire(wait)),
            ..self.ask.clone()
        };
        let answer = self.calls.once(wait + MARGIN, ask, acquire).await?;
        answer.lease.ok_or_else(incomplete)
    }
}

impl IntoFuture for Acquire {
    type Output = Result<LockGuard, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.guard().boxed()
    }
}

async fn acquire(channel: Channel, request: Request<AcquireRequest>) -> Result<Response<AcquireResponse>, Status> {
    LockServiceClient::new(channel).acquire(request).await
}

/// An id that no other call has: 128 random bits.
fn fresh_id() -> Result<String, Error> {
    let mut bits = [0_u8; 16];
    getrandom::fill(&mut bits).map_err(|error| Failed::refused("NO_RANDOM", &error.to_string()).error)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bits)))
}
