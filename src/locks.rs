//! The life of a claim, written once for every backend: acquire, wait, renew, release, watch.
//!
//! [`Locks`] is one namespace's locks over its [`Backend`]; which one it is, nothing here knows. The
//! course of an Acquire is in [`acquire`], what undoes a dropped call in [`undo`], and who of this
//! replica waits for what in [`lines`].

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::acquire::AcquireCall;
use self::local_waiters::{LocalWaiters, WaiterMessage};
use self::undo::Undo;
use crate::backend::{
    Backend, BackendError, ClaimLimits, ReleaseOutcome, Released, Grant, Guarantee, Health, OwnedReleaseTarget, ReleaseTarget, LockPage, InspectLimit,
    NewClaim, Capabilities, PageRequest, WaitPolicy, RenewOutcome, WatchEvent,
};
use crate::claim::{Cause, Holder, Queue};
use crate::error::Error;
use crate::limits::Limits;
use crate::name::{
    CallId, ClaimId, FencingToken, Identity, LeaseKey, LockKey, LockName, Metadata, Mode, Namespace, Owner, RequestId,
    Secret,
};
use crate::telemetry::traces::carried;

mod acquire;
mod ids;
mod local_waiters;
#[cfg(all(test, feature = "embedded"))]
mod tests;
mod undo;
mod waiting_bytes;

/// How long closing waits for undos under way: leases of calls that just ended would otherwise stay.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// How long the end of the process waits for undos and the store: on a disk that hangs it would never end.
const END_WITHIN: Duration = Duration::from_secs(7);

/// The locks of one namespace. Clones share everything.
#[derive(Debug, Clone)]
pub struct Locks {
    state: Arc<NamespaceState>,
}

/// What all calls of a namespace share.
#[derive(Debug)]
struct NamespaceState {
    namespace: Namespace,
    limits: ArcSwap<Limits>,
    capabilities: Capabilities,
    backend: Arc<dyn Backend>,
    lines: Arc<LocalWaiters>,
    draining: CancellationToken,
    undos: TaskTracker,
    /// Ends the undos that are left.
    closed: CancellationToken,
    /// Where undos run, wherever their calls are dropped.
    runtime: Handle,
}

/// What an Acquire asks for.
#[derive(Debug, Clone)]
pub struct Acquire {
    /// Which lock.
    pub lock: LockName,
    /// Who asks, by its own label.
    pub owner: Owner,
    /// Who asks, as proven.
    pub identity: Identity,
    /// How to share the lock.
    pub mode: Mode,
    /// How long to live; absent: the namespace's default.
    pub ttl: Option<Duration>,
    /// How long to wait; zero tries once.
    pub wait: Duration,
    /// What a retry is recognised by.
    pub request_id: Option<RequestId>,
    /// Whether to join, and be joined by, reentrant claims of the same owner.
    pub reentrant: bool,
    /// Shown to operators.
    pub metadata: Metadata,
}

impl Acquire {
    /// The claim that its request id names, where it has one.
    pub fn claim(&self) -> Option<ClaimId> {
        let request = self.request_id.as_ref()?;
        Some(ids::of_request(self, request))
    }
}

/// A lease as its client gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What its lease id says.
    pub key: LeaseKey,
    /// What is really granted, or what remains.
    pub ttl: Duration,
    /// From the call's arrival to the sending of the granting step.
    pub waited: Duration,
    /// Who holds.
    pub owner: Owner,
    /// What the namespace's store promises.
    pub guarantee: Guarantee,
    /// How many holds the claim has.
    pub holds: u32,
}

/// A granted lease whose answer is still to be handed to the client.
///
/// Dropped before [`Granted::delivered`], the grant is taken back (unless a retry has found it).
#[derive(Debug)]
pub struct Granted {
    /// The lease.
    pub lease: Lease,
    undo: Undo,
}

impl Granted {
    /// Keeps the grant: its answer was handed over.
    pub fn delivered(self) -> Lease {
        self.undo.disarm();
        self.lease
    }
}

impl Locks {
    /// The locks of `namespace` over `backend`. Must be called within a tokio runtime: a task
    /// delivers the backend's wakes until the backend is closed.
    pub fn new(namespace: Namespace, limits: Limits, backend: Arc<dyn Backend>) -> Self {
        let state = Arc::new(NamespaceState {
            namespace,
            limits: ArcSwap::from_pointee(limits),
            capabilities: backend.capabilities(),
            lines: Arc::default(),
            draining: CancellationToken::new(),
            undos: TaskTracker::new(),
            closed: CancellationToken::new(),
            runtime: Handle::current(),
            backend,
        });
        let (lines, mut notifications) = (Arc::clone(&state.lines), state.backend.notifications());
        tokio::spawn(async move {
            while let Some(wake) = notifications.next().await {
                lines.deliver(&wake);
            }
        });
        Self { state }
    }

    /// Takes a lock, at once or after waiting in its queue.
    ///
    /// # Cancellation safety
    /// Dropped at any moment, the call leaves the queue and a grant that it got is taken back.
    ///
    /// # Errors
    /// [`Error`]: whatever kept the call from the lock, or the store's own failure.
    pub async fn acquire(&self, ask: Acquire) -> Result<Granted, Error> {
        let arrived = Instant::now();
        let claim = self.state.claim(&ask, arrived)?;
        let wait = self.state.limits.load().wait(ask.wait)?;
        let _bytes = self.state.waiting_bytes(&ask)?;
        if self.state.draining.is_cancelled() {
            return Err(Error::Draining);
        }
        let course = AcquireCall {
            state: Arc::clone(&self.state),
            lock: ask.lock,
            deadline: arrived + wait,
            arrived,
        };
        course.run(claim).await
    }

    /// Gives a held lease more time: `ttl` from now, or what it was last given.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it is gone; [`Error::InvalidField`] for a TTL outside the bounds.
    pub async fn renew(&self, lease: &LeaseKey, ttl: Option<Duration>) -> Result<Lease, Error> {
        let ttl = ttl.map(|ttl| self.state.limits.load().ttl(Some(ttl))).transpose()?;
        match self.state.backend.renew(lease, ttl).await? {
            RenewOutcome::Renewed(grant) => Ok(self.state.lease(&lease.lock.name, grant)),
            RenewOutcome::Gone(cause) => Err(Error::LeaseLost { cause }),
        }
    }

    /// Gives a lease back and lets the next one have the lock. Repeating it succeeds.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it ended otherwise.
    pub async fn release(&self, lease: &LeaseKey) -> Result<(), Error> {
        let departure = self.state.release(&lease.lock.name, ReleaseTarget::Hold(lease)).await?;
        match departure.found {
            Released::Ended(_) | Released::EndedBefore(Cause::Released) => Ok(()),
            Released::EndedBefore(cause) => Err(Error::LeaseLost { cause: Some(cause) }),
            Released::Nothing | Released::Adopted => Err(Error::LeaseLost { cause: None }),
        }
    }

    /// The queue of a lock as it is now, with at most `most` holders and `most` waiters.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn inspect(&self, lock: &LockName, most: usize) -> Result<Queue, Error> {
        self.state.limits.load().name(lock)?;
        Ok(self.state.backend.inspect(lock, InspectLimit::of_each(most)).await?)
    }

    /// The holder of a token, if it is held at this moment.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn check(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, Error> {
        self.state.limits.load().name(lock)?;
        Ok(self.state.backend.holder(lock, token).await?)
    }

    /// The locks in use whose names begin with `prefix`.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, Error> {
        Ok(self.state.backend.list(prefix, page).await?)
    }

    /// The queue of a lock, then each change. Ends with [`Error::Draining`] when the server shuts
    /// down, and after any other error.
    pub fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, Error>> {
        if let Err(error) = self.state.limits.load().name(lock) {
            return stream::once(async { Err(error.into()) }).boxed();
        }
        let draining = self.state.draining.clone().cancelled_owned();
        let seen = self.state.backend.watch(lock).map(|seen| seen.map_err(Error::from));
        let end = self.state.draining.clone();
        seen.take_until(draining)
            .chain(stream::iter(
                std::iter::from_fn(move || end.is_cancelled().then_some(Err(Error::Draining))).take(1),
            ))
            .boxed()
    }

    /// Takes a lock away from the claim that a token names.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the token is not held.
    pub async fn force_release(&self, lock: &LockName, token: FencingToken) -> Result<(), Error> {
        self.state.limits.load().name(lock)?;
        match self.state.release(lock, ReleaseTarget::Forced(token)).await?.found {
            Released::Ended(_) => Ok(()),
            Released::EndedBefore(cause) => Err(Error::LeaseLost { cause: Some(cause) }),
            Released::Nothing | Released::Adopted => Err(Error::LeaseLost { cause: None }),
        }
    }

    /// Ends a quarantine by hand.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where there is none.
    pub async fn admit(&self, node: Option<&str>) -> Result<(), Error> {
        Ok(self.state.backend.admit(node).await?)
    }

    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.state.namespace
    }

    /// Its limits.
    pub fn limits(&self) -> Arc<Limits> {
        self.state.limits.load_full()
    }

    /// Gives it other limits, for the calls that come from now on.
    pub fn set_limits(&self, limits: Limits) {
        self.state.limits.store(Arc::new(limits));
    }

    /// How many calls wait here.
    pub fn waiting(&self) -> usize {
        self.state.lines.waiting()
    }

    /// Whether these are the last ones of their kind: no call is under way, and nothing is undone.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.state) == 1
    }

    /// What its backend can do.
    pub fn capabilities(&self) -> Capabilities {
        self.state.capabilities
    }

    /// How its store is.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.state.backend.health()
    }

    /// How each of its store's nodes is, where a majority of them decides.
    pub fn nodes(&self) -> Vec<(String, Health)> {
        self.state.backend.nodes()
    }

    /// Ends every waiting acquire and every watch with [`Error::Draining`], and refuses new
    /// acquires with it; other calls go on.
    pub fn drain(&self) {
        self.state.draining.cancel();
    }

    /// Waits for undos under way, for a bounded time, then closes the backend.
    pub async fn close(&self) {
        self.drain();
        self.state.undos.close();
        if timeout(CLOSE_WITHIN, self.state.undos.wait()).await.is_err() {
            tracing::warn!(namespace = %self.state.namespace, left = self.state.undos.len(), "closed before all calls were undone");
        }
        self.state.closed.cancel();
        self.state.backend.close().await;
    }

    /// Closes at the end of the process, which is not held up by a store that hangs.
    pub async fn end(&self) {
        if timeout(END_WITHIN, self.close()).await.is_err() {
            tracing::warn!(namespace = %self.state.namespace, "ended before its store was closed");
        }
    }
}

impl NamespaceState {
    /// The claim that a call brings, checked against what the namespace takes and its backend
    /// offers.
    fn claim(&self, ask: &Acquire, arrived: Instant) -> Result<NewClaim, Error> {
        let limits = self.limits.load();
        limits.name(&ask.lock)?;
        let ttl = limits.ttl(ask.ttl)?;
        self.check_offers(ask)?;
        let [random_id, call, secret] = ids::random()?;
        let named = ask.claim();
        Ok(NewClaim {
            id: named.unwrap_or(ClaimId::from_bytes(random_id)),
            call: CallId::from_bytes(call),
            secret: Secret::from_bytes(secret),
            retryable: named.is_some(),
            owner: ask.owner.clone(),
            identity: ask.identity.clone(),
            mode: ask.mode,
            reentrant: ask.reentrant,
            ttl,
            metadata: ask.metadata.clone(),
            wait_policy: if ask.wait.is_zero() {
                WaitPolicy::Try
            } else {
                WaitPolicy::Wait
            },
            limits: ClaimLimits {
                queue: limits.queue,
                finished: limits.finished,
                holds: limits.holds,
            },
            arrived,
        })
    }

    fn check_offers(&self, ask: &Acquire) -> Result<(), Error> {
        let unsupported = |what: &str| {
            Err(Error::Unsupported {
                what: format!("{what} on a namespace of kind {}", self.capabilities.kind),
            })
        };
        if ask.mode != Mode::Exclusive && !self.capabilities.sharing {
            return unsupported(&format!("mode {}", ask.mode.word()));
        }
        if ask.reentrant && !self.capabilities.reentry {
            return unsupported("re-entry");
        }
        Ok(())
    }

    /// The same claim as a new call brings it.
    fn afresh(&self, claim: NewClaim) -> Result<NewClaim, Error> {
        let [random_id, call, secret] = ids::random()?;
        Ok(NewClaim {
            id: if claim.retryable {
                claim.id
            } else {
                ClaimId::from_bytes(random_id)
            },
            call: CallId::from_bytes(call),
            secret: Secret::from_bytes(secret),
            ..claim
        })
    }

    /// Lets somebody leave and names the next waiter of this replica.
    async fn release(self: &Arc<Self>, lock: &LockName, who: ReleaseTarget<'_>) -> Result<ReleaseOutcome, Error> {
        let Some(next) = self.lines.first(lock) else {
            return Ok(self.backend.release(lock, who, None).await?);
        };
        // The step may make `next` a holder, who must hear of it even if this call is dropped.
        let (state, lock, who) = (Arc::clone(self), lock.clone(), OwnedReleaseTarget::from(who));
        let step = async move {
            let left = state.backend.release(&lock, who.leaving(), Some(&next.claim)).await;
            match &left {
                Ok(ReleaseOutcome { next: Some(grant), .. }) => next.post(WaiterMessage::Granted(grant.clone())),
                Ok(_) => {}
                Err(_) => next.post(WaiterMessage::Ask),
            }
            left
        };
        let step = tokio::spawn(carried(step));
        let left = step.await.map_err(|error| BackendError::Broken {
            reason: error.to_string(),
        });
        Ok(left??)
    }

    fn granted(&self, lock: &LockName, grant: Grant, undo: Undo) -> Granted {
        Granted {
            lease: self.lease(lock, grant),
            undo,
        }
    }

    fn lease(&self, lock: &LockName, grant: Grant) -> Lease {
        let lock = LockKey {
            namespace: self.namespace.clone(),
            name: lock.clone(),
        };
        Lease {
            key: grant.lease(lock),
            ttl: grant.ttl,
            waited: grant.waited,
            owner: grant.owner,
            guarantee: self.capabilities.guarantee,
            holds: grant.holds,
        }
    }
}
