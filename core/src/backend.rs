//! The trait [`Backend`], which every store implements, and its contract.
//!
//! Each verb is one atomic step of the store, and each sentence here is a case of the conformance
//! suite (`tests/conformance`). The outcome of a step describes the *lock* ([`AcquireOutcome`],
//! [`ReleaseOutcome`], [`RenewOutcome`]); a [`BackendError`] describes only the *store*.
//!
//! # The life of a claim
//! An Acquire call makes a [`NewClaim`] and *acquires* with it. The claim is held at once if it
//! fits; otherwise it waits at the tail of the queue. A waiting claim lives as long as the replica
//! that enqueued it; a holder lives for its own TTL, and any replica can renew or release it. The
//! store does not grant a lock to a waiter by itself: it notifies the waiter that it is next
//! ([`Notification::Next`]) and the waiter's replica *promotes* the claim. The only exception is
//! the `next` of [`Backend::release`].
//!
//! # Which call can undo a claim
//! A call is not a claim: with a request id, several calls work on one claim. Each call has a
//! [`CallId`]. The call that acquired last owns a waiting claim (it *adopted*
//! it). A hold that a second call has found is *adopted* for good,
//! unless that call came on a later stream of the same session: then it is that call's own. The undo of a call,
//! `release(ReleaseTarget::Call)`, removes a waiting claim only while the claim carries that call's
//! id, and a hold only if it was never adopted.
//!
//! # Unknown outcomes are settled
//! After `release(ReleaseTarget::Call)` has returned, no `acquire` or `promote` of that call takes
//! effect, however late it reaches the store. A release that did not itself remove the call's own
//! record writes a *cancel mark*, which is kept for at least [`MARKS_KEPT`], and a step that finds
//! the mark of its call returns [`AcquireOutcome::Cancelled`]. An `acquire` is therefore sent once
//! per call id; a caller that must retry releases first and acquires under a fresh call id.
//! `promote`, `release`, `renew` and `update_metadata` may be sent again.
//!
//! Without call ids and adoption, a dropped call could release the lease that its own retry was given, because the
//! network may deliver the older call last.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use humantime::format_duration;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Metadata, Ttl};

pub mod cancel_marks;
pub mod clock;
pub mod failure;
pub mod health_news;
pub mod local_clock;
pub mod notifications;
pub mod unreadable;
mod view;

pub use self::view::{Forced, LockPage, LockSummary, Notification, PageRequest, WatchEvent};
pub use crate::queue::{
    AcquireOutcome, Change, ChangeKind, ClaimLimits, Grant, InspectLimit, NewClaim, OwnedReleaseTarget, QueuePosition,
    Refusal, ReleaseOutcome, ReleaseTarget, Released, RenewOutcome, StreamNumber, UpdateOutcome, WaitPolicy,
};

#[cfg(feature = "embedded")]
pub mod embedded;
pub mod record;
pub mod tree;

/// The answer to [`Backend::admit`] of a node where there are none.
pub const NO_NODES: &str = "this backend has no nodes to admit one by one";

/// How long finished calls are remembered, within the namespace's limit on their number.
pub const FINISHED_KEPT: Duration = Duration::from_secs(60);
/// The minimum time for which cancel marks are kept.
pub const MARKS_KEPT: Duration = Duration::from_secs(60);

/// A store, as one namespace uses it. It refuses every step that its [`Capabilities`] exclude with
/// [`BackendError::Unsupported`].
///
/// # Cancellation safety
/// Dropping a verb's future leaves the step's effect unknown: a caller that drops an `acquire` or a
/// `promote` must send `release(ReleaseTarget::Call)` after it.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// Appends a claim to the lock's queue, or finds the claim with the same id and adopts it.
    ///
    /// - A new claim that fits is held at once. Otherwise, [`WaitPolicy::Wait`] queues it, and
    ///   [`WaitPolicy::NoWait`] returns [`AcquireOutcome::Busy`] and leaves no entry in the queue.
    /// - A waiting claim of the same id is adopted: it takes the new call's id, TTL and metadata
    ///   and keeps its position; the older call is notified and then gets
    ///   [`AcquireOutcome::Superseded`] or [`AcquireOutcome::Cancelled`]. The claim is held at once
    ///   if it fits. If it does not fit and the new call has `WaitPolicy::NoWait`, the claim is
    ///   removed in the same step, and a cancel mark is written for the older call.
    /// - A hold of the same id is adopted: the outcome is its grant with the remaining TTL and its
    ///   secret. For a finished claim the outcome is its cause, while that is remembered.
    /// - A claim for which a later stream of the session of the new call has asked ([`NewClaim::stream`]) stays as it is:
    ///   [`AcquireOutcome::Superseded`].
    /// - With `reentrant`, a reentrant holder of the same owner, identity and mode gets one more
    ///   hold, with the same token and the later of both expiries.
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError>;

    /// Whether a release that begins now takes effect after each acquire of this lock that was polled at this replica,
    /// although the store has not answered it. A backend that does not know says no.
    fn orders_acquires(&self, lock: &LockName) -> bool {
        let _ = lock;
        false
    }

    /// Makes an eligible waiting claim a holder: makes its token and starts its TTL.
    ///
    /// Returns [`AcquireOutcome::Waiting`] for a claim that is not eligible yet, the same grant
    /// again for a claim that this call already holds, [`AcquireOutcome::Superseded`] for a claim
    /// that another call adopted, and [`AcquireOutcome::Gone`] for a claim that the store does not
    /// know.
    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError>;

    /// Removes a hold, a call's claim or the holder with a token, and returns what it found. If
    /// `next`, a waiting claim of this replica, fits after that, the same step promotes it.
    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError>;

    /// Whether this call may still undo something: a waiting claim that it owns, or a hold that no other call has found. It
    /// changes nothing. A backend that does not know says yes.
    async fn owns(&self, lock: &LockName, claim: &ClaimId, call: CallId) -> Result<bool, BackendError> {
        let _ = (lock, claim, call);
        Ok(true)
    }

    /// Extends a held lease to `ttl` (absent: the TTL that it was last given) counted from the
    /// step. It never shortens a lease and never revives one. The TTL in the outcome is the whole
    /// remaining time.
    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError>;

    /// Replaces the metadata of the claim that this lease holds, as durably as a grant, and leaves its TTL as it is. Sent
    /// again, it has the same effect. Watchers get [`ChangeKind::Updated`]. A later stream of the session of `stream` that has
    /// asked for the hold or updated it makes the outcome [`UpdateOutcome::Superseded`], and nothing changes.
    async fn update_metadata(
        &self,
        lease: &LeaseKey,
        metadata: &Metadata,
        stream: Option<StreamNumber>,
    ) -> Result<UpdateOutcome, BackendError> {
        let _ = (lease, metadata, stream);
        Err(BackendError::Unsupported {
            what: "this backend cannot change the metadata of a lease",
        })
    }

    /// The current queue. Its counts are complete, whatever `limit` is.
    async fn inspect(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, BackendError>;

    /// The holder with this token, if it holds now. A backend that can find the holder without
    /// reading all holders does so.
    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        let queue = self.inspect(lock, InspectLimit::ALL_HOLDERS).await?;
        Ok(queue.holders.into_iter().find(|holder| holder.token == token))
    }

    /// The locks in use whose names begin with `prefix`, sorted by name, in pages; not a snapshot.
    /// If `page.after` sorts before `prefix`, the page begins with `prefix`.
    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError>;

    /// The notifications for this replica's waiting claims: one stream for the whole namespace. The
    /// caller opens it once; it ends when the backend is closed.
    fn notifications(&self) -> BoxStream<'static, Notification>;

    /// The queue, then each change. After a gap the full queue follows again. The stream ends after an error; the caller
    /// opens another one.
    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>>;

    /// The claims that any replica forcibly releases from now on; absent if the store does not tell. Some may be missing
    /// after an interruption of the connection: a renewal finds each end. The stream may end, and is then opened again.
    fn forced(&self) -> Option<BoxStream<'static, Forced>> {
        None
    }

    /// Ends the quarantine of one node, or of the whole store, on an operator's request; where the wall clock of this
    /// server is in question, says that it is right.
    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        let _ = node;
        Err(BackendError::Unsupported {
            what: "this backend has no quarantine",
        })
    }

    /// The features of the store.
    fn capabilities(&self) -> Capabilities;

    /// The store's current health.
    fn health(&self) -> watch::Receiver<Health>;

    /// What operators should know of the store although it serves.
    fn warning(&self) -> Option<String> {
        None
    }

    /// The health of each node, keyed by the name that [`Backend::admit`] takes. Empty unless the
    /// backend decides by a majority of its nodes.
    fn nodes(&self) -> Vec<(String, Health)> {
        Vec::new()
    }

    /// Finishes the steps in flight and disconnects from the store. Later verbs return
    /// [`BackendError::NotSent`].
    async fn close(&self);
}

/// The default limit on the claims that an in-process store holds for a namespace.
pub const CLAIM_LIMIT: u32 = 200_000;

/// What a store guarantees after data loss or a network partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guarantee {
    /// Available: exclusion may be lost when the store loses its data.
    Ap,
    /// Consistent: exclusion holds, or calls fail.
    Cp,
}

impl Guarantee {
    /// `AP` or `CP`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ap => "AP",
            Self::Cp => "CP",
        }
    }
}

/// The features of a backend. The service refuses others with UNSUPPORTED before it calls the
/// backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The backend's kind, such as `embedded`.
    pub kind: &'static str,
    /// What it guarantees.
    pub guarantee: Guarantee,
    /// Whether it supports shared claims and semaphores in addition to exclusive claims.
    pub sharing: bool,
    /// Whether it supports re-entry.
    pub reentry: bool,
    /// Whether a retry with the same request id finds its claim.
    pub remembers_requests: bool,
    /// Whether [`Backend::update_metadata`] is supported.
    pub updates_metadata: bool,
    /// Whether other replicas serve the same locks, so that a claim may go on at one of them.
    pub shared: bool,
    /// Whether the queue is ordered across all replicas, and not only among one replica's waiters.
    pub global_order: bool,
    /// How long a lost notification may stay unnoticed before a waiter polls; absent if none is
    /// ever lost, or if the backend detects losses itself.
    pub recheck: Option<Duration>,
}

/// The health of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It serves.
    Serving,
    /// It lost its data, or may have lost it, and grants nothing yet.
    Quarantined {
        /// When the quarantine ends.
        until: Instant,
        /// What happened.
        reason: String,
    },
    /// It cannot be reached or used.
    Unavailable {
        /// What is wrong.
        reason: String,
    },
}

impl Health {
    /// It cannot be used for this reason.
    pub fn unavailable(reason: impl ToString) -> Self {
        Self::Unavailable {
            reason: reason.to_string(),
        }
    }

    /// Replaces the health that receivers see, and notifies them if it differs. Returns whether it does.
    pub fn report(to: &watch::Sender<Self>, health: Self) -> bool {
        to.send_if_modified(|known| {
            let differs = *known != health;
            *known = health;
            differs
        })
    }
}

/// A time for people to read: in whole seconds, rounded up.
pub fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

/// Why a store could not run a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The store is unreachable or did not reply; the outcome of the step is unknown.
    #[error("backend unavailable: {reason}")]
    Unavailable {
        /// What went wrong.
        reason: String,
    },
    /// The store is unreachable and the step was not sent: it had no effect.
    #[error("backend unavailable: {reason}")]
    NotSent {
        /// What is wrong.
        reason: String,
    },
    /// Too few of the store's nodes replied.
    #[error("no quorum: {reason}")]
    NoQuorum {
        /// Which nodes did not reply.
        reason: String,
        /// Whether the step was sent to any node.
        sent: bool,
    },
    /// The store is in quarantine and grants nothing yet.
    #[error("backend quarantined for another {}: {reason}", format_duration(whole_seconds(*left)))]
    Quarantined {
        /// The remaining time of the quarantine.
        left: Duration,
        /// What happened.
        reason: String,
    },
    /// The store does not support this feature.
    #[error("unsupported: {what}")]
    Unsupported {
        /// What is not supported, and why.
        what: &'static str,
    },
    /// The store returned an invalid result: a bug of this crate, or a damaged store.
    #[error("backend broken: {reason}")]
    Broken {
        /// What was found.
        reason: String,
    },
}

impl BackendError {
    /// Whether the same step may succeed soon; a waiter retries after such an error.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. } | Self::NotSent { .. } | Self::NoQuorum { .. } | Self::Quarantined { .. }
        )
    }

    /// Whether the step certainly had no effect, so that there is nothing to undo.
    pub fn is_without_effect(&self) -> bool {
        matches!(
            self,
            Self::NotSent { .. }
                | Self::Quarantined { .. }
                | Self::NoQuorum { sent: false, .. }
                | Self::Unsupported { .. }
        )
    }
}
