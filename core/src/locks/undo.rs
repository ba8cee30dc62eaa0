//! Undoes the claim of a call that ended before its response was delivered.
//!
//! Only an outcome that is unknown ([`BackendError::Unavailable`](crate::backend::BackendError)) is undone, again and
//! again until the store answers. A step that was not sent, or was refused, has no effect and no undo: clients that
//! retry through an outage would otherwise leave one task each.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::in_use::InUse;
use super::local_waiters::KeptEntry;
use super::outage::sleep_until_some;
use super::waiting_bytes::WaitingBytes;
use super::{NamespaceState, SessionStream};
use crate::backend::{BackendError, Health, NewClaim, ReleaseOutcome, ReleaseTarget, Released};
use crate::backoff::Backoff;
use crate::claim::Cause;
use crate::error::Error;
use crate::name::{CallId, ClaimId, Identity, LockName};

/// The pauses between attempts on a failed store whose health does not change.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// How many undos of a namespace may have failed before Acquires are refused. More than the calls that a server has
/// open by default, so that an outage alone does not reach it.
pub(super) const MAX_FAILED_UNDOS: usize = if cfg!(test) { 100 } else { 100_000 };

/// How long the place of a wait is kept that the server ended.
const PLACE_KEPT: Duration = Duration::from_secs(5);

/// How long before the end of its lease a kept grant is undone at the latest.
const BEFORE_EXPIRY: Duration = Duration::from_millis(500);

/// How many calls of broken streams keep what they have. Beyond it, and beyond the share of one identity, a call is undone at
/// once.
pub(super) const MAX_KEPT: usize = if cfg!(test) { 100 } else { 20_000 };

/// The places that are kept.
#[derive(Debug, Default)]
pub(super) struct KeptPlaces {
    /// When the last of them is over, unless a retry has gone on in it before.
    pub last: Option<Instant>,
    /// Those of broken streams.
    of_streams: InUse,
}

/// A kept place.
struct KeptPlace {
    state: Arc<NamespaceState>,
    until: Instant,
    entry: KeptEntry,
    /// Present if it is one of a broken stream, which it counts for until it is dropped.
    stream: Option<(Arc<SessionStream>, WaitingBytes)>,
}

impl KeptPlaces {
    /// Counts one more place of a broken stream, if that is within the limit and this share of it, in percent.
    fn has_room(&mut self, identity: &Identity, share: u32) -> bool {
        let (all, own) = self.of_streams.add(identity, 1);
        let share = match identity.as_str() {
            "" => MAX_KEPT,
            _ => MAX_KEPT * share as usize / 100,
        };
        let has_room = all <= MAX_KEPT && own <= share;
        if !has_room {
            self.of_streams.remove(identity, 1);
        }
        has_room
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        if let Some((stream, _)) = &self.stream {
            self.state.places.lock().of_streams.remove(&stream.identity, 1);
        }
    }
}

/// Counts an undo that has failed at least once, until it is dropped.
struct FailedUndo<'a>(&'a AtomicUsize);

impl<'a> FailedUndo<'a> {
    fn count(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for FailedUndo<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Undoes a call when dropped: removes its claim from the queue or releases its grant, unless a retry has adopted it.
/// The undo runs in a task of its own, so that it outlives the call.
#[derive(Debug)]
pub struct Undo {
    state: Arc<NamespaceState>,
    call: CallToUndo,
    armed: bool,
    place: Option<Box<Place>>,
}

/// What a call with a `request_id` has: if the server ends its wait, or its stream breaks off, a retry of the request may go on
/// with it.
#[derive(Debug)]
pub struct Place {
    /// Whether the call waits: it is not granted.
    pub waits: bool,
    /// When the wait ends, or the lease does; absent for a call that has begun without a wait.
    pub ends: Option<Instant>,
    /// Ends the waits of the call's connection.
    pub ending: Option<CancellationToken>,
    /// The stream on which the call came.
    pub stream: Option<Arc<SessionStream>>,
    /// The bytes of its owner and metadata.
    pub bytes: usize,
}

impl Place {
    /// The same once the call does not wait any more, of a lease that ends then, if it has one.
    pub fn of_grant(self, ends: Option<Instant>) -> Option<Self> {
        let waits = false;
        self.stream.is_some().then_some(Self { waits, ends, ..self })
    }
}

/// The ids that identify the call to undo.
#[derive(Debug, Clone)]
struct CallToUndo {
    lock: LockName,
    claim: ClaimId,
    call: CallId,
}

impl Undo {
    /// Creates an undo that runs when it is dropped.
    pub fn armed(state: &Arc<NamespaceState>, lock: &LockName, claim: &NewClaim) -> Self {
        Self {
            state: Arc::clone(state),
            call: CallToUndo {
                lock: lock.clone(),
                claim: claim.id,
                call: claim.call,
            },
            armed: true,
            place: None,
        }
    }

    /// The same undo, which keeps this place for a while if the server ends the wait or the stream breaks off.
    pub fn keeping(mut self, place: Option<Place>) -> Self {
        self.place = place.map(Box::new);
        self
    }

    /// The same undo, of a call that does not wait any more, and whose lease ends then.
    pub fn of_grant(mut self, ends: Instant) -> Self {
        let place = self.place.take().and_then(|place| place.of_grant(Some(ends)));
        self.keeping(place)
    }

    /// The lease of the call ends then, because it was renewed.
    pub fn ends(&mut self, ends: Instant) {
        if let Some(place) = &mut self.place {
            place.ends = Some(ends);
        }
    }

    /// The id of the call.
    pub fn call_id(&self) -> CallId {
        self.call.call
    }

    /// Cancels the undo, because the call has no claim left or its response was delivered.
    pub fn disarm(mut self) {
        self.armed = false;
    }

    /// Undoes the call now and returns the outcome. The undo stays armed until it has succeeded.
    ///
    /// # Errors
    /// When the store failed. It is then unknown whether the claim still exists.
    pub async fn run(&mut self) -> Result<ReleaseOutcome, Error> {
        let outcome = release(&self.state, &self.call).await?;
        self.armed = false;
        Ok(outcome)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (state, call) = (Arc::clone(&self.state), self.call.clone());
        // Registered before the call's waiter is gone: the store may tell of an adoption at any time.
        let kept = self.place.take().and_then(|place| state.keep(*place, &call));
        let undo = async move {
            if let Some(kept) = kept {
                let until_over = kept.until_over(&call);
                let _ = state.closed.clone().run_until_cancelled_owned(until_over).await;
            }
            retry_undo(state, call).await;
        };
        self.state.undos.spawn_on(undo, &self.state.runtime);
    }
}

impl KeptPlace {
    /// Ready when the place is not kept any more, because another call goes on in it or its time is over. No step is sent for
    /// it before: it is not granted.
    async fn until_over(self, call: &CallToUndo) {
        let backend = &self.state.backend;
        let adopted = async {
            loop {
                self.entry.notified().await;
                if let Ok(false) = backend.owns(&call.lock, &call.claim, call.call).await {
                    return;
                }
            }
        };
        tokio::select! {
            () = sleep_until(self.until) => {}
            () = self.state.drained() => {}
            () = adopted => {}
        }
    }
}

impl NamespaceState {
    /// Keeps the place of a call that ends now, if the server ends it or its stream broke off.
    fn keep(self: &Arc<Self>, place: Place, call: &CallToUndo) -> Option<KeptPlace> {
        let Place {
            waits,
            ends,
            ending,
            stream,
            bytes,
        } = place;
        let now = Instant::now();
        let drains = self.draining.is_cancelled() || self.drain_end.borrow().is_some();
        // A store of this server alone is closed with it.
        if drains && !self.capabilities.shared {
            return None;
        }
        let grace = stream.as_ref().map_or(Duration::ZERO, |stream| stream.grace);
        let kept_for = match waits {
            true => PLACE_KEPT.max(grace),
            false => grace,
        };
        let of_server = drains || ending.is_some_and(|ending| ending.is_cancelled());
        let of_server = of_server.then_some(now + kept_for);
        let of_stream = stream.as_ref().and_then(|stream| stream.kept_until());
        let until = of_server.max(of_stream)?;
        // A lease is undone before its end, so that its request is not answered as one that has expired.
        let margin = if waits { Duration::ZERO } else { BEFORE_EXPIRY };
        let until = ends.map_or(until, |ends| {
            ends.checked_sub(margin).map_or(now, |ends| until.min(ends))
        });
        if until <= now {
            return None;
        }
        let counted = match stream.filter(|_| of_server.is_none()) {
            Some(stream) => Some(self.count_place(stream, bytes)?),
            None => None,
        };
        let mut places = self.places.lock();
        places.last = places.last.max(Some(until));
        drop(places);
        Some(KeptPlace {
            entry: self.waiters.keep(&call.lock, call.claim),
            state: Arc::clone(self),
            until,
            stream: counted,
        })
    }

    /// Counts a place of a broken stream, whose owner and metadata have so many bytes, if that is within the limits.
    fn count_place(&self, stream: Arc<SessionStream>, bytes: usize) -> Option<(Arc<SessionStream>, WaitingBytes)> {
        let bytes = self.count_bytes(&stream.identity, bytes).ok()?;
        let share = self.limits.load().identity_share;
        let has_room = self.places.lock().has_room(&stream.identity, share);
        has_room.then_some((stream, bytes))
    }

    /// Ready when the drain keeps no place any more.
    async fn drained(&self) {
        if !self.capabilities.shared {
            return self.draining.cancelled().await;
        }
        let mut end = self.drain_end.subscribe();
        let end = end.wait_for(Option::is_some).await.map_or(None, |end| *end);
        sleep_until_some(end).await;
    }

    /// Refuses an Acquire while too many calls wait to be undone: a store that takes each call and answers none would
    /// otherwise collect undos without bound.
    pub(super) fn check_failed_undos(&self) -> Result<(), BackendError> {
        if self.failed_undos.load(Ordering::Relaxed) < MAX_FAILED_UNDOS {
            return Ok(());
        }
        Err(BackendError::NotSent {
            reason: format!("{MAX_FAILED_UNDOS} earlier calls could not be undone yet"),
        })
    }
}

async fn release(state: &Arc<NamespaceState>, call: &CallToUndo) -> Result<ReleaseOutcome, Error> {
    // Without `next`: a cancelled waiter seldom makes another one eligible, and notifications cover that case.
    let target = ReleaseTarget::Call(&call.claim, call.call);
    let outcome = state.backend.release(&call.lock, target, None).await?;
    // Only an answer of the store ends a claim: that there is none may be known to the server.
    if matches!(outcome.released, Released::Ended(_)) {
        state.waiters.note_removal(&call.lock);
    }
    if outcome.released == Released::Ended(Cause::Undone) {
        state.grant_log.undone(call.call);
    }
    Ok(outcome)
}

/// Undoes a call. Retries until it succeeds or the namespace is closed, because a store that recovers may still have
/// the claim. The number of these tasks is bounded: while [`MAX_FAILED_UNDOS`] have failed, Acquires are refused
/// without effect. When the runtime ends, the tasks end with it.
async fn retry_undo(state: Arc<NamespaceState>, call: CallToUndo) {
    let mut health = state.backend.health();
    let mut backoff = BACKOFF;
    let mut failed = None;
    while let Err(error) = release(&state, &call).await {
        failed.get_or_insert_with(|| FailedUndo::count(&state.failed_undos));
        tokio::select! {
            biased;
            () = state.closed.cancelled() => {
                tracing::warn!(lock = %call.lock, %error, "closed before a call was undone");
                return;
            }
            () = recovered(&mut health) => {}
            () = tokio::time::sleep(backoff.pause()) => {}
        }
    }
}

/// Returns when the health changes to anything but unavailable.
async fn recovered(health: &mut watch::Receiver<Health>) {
    while health.changed().await.is_ok() {
        if !matches!(*health.borrow_and_update(), Health::Unavailable { .. }) {
            return;
        }
    }
    pending().await
}
