//! What a store must do for the service: the trait [`Backend`] and its contract in words.
//!
//! Each verb is one atomic step of the store, and each sentence here is a case of the conformance
//! suite (`tests/conformance`). What a step answers is about the *lock* ([`AcquireOutcome`], [`ReleaseOutcome`],
//! [`RenewOutcome`]); a [`BackendError`] is only about the *store*.
//!
//! # The life of a claim
//! An Acquire call makes a [`NewClaim`] and *enters* it. It is held at once when it fits, or waits
//! at the tail of the queue. A waiting claim lives as long as the replica that entered it; a holder
//! lives on its own TTL, and any replica renews or releases it. Nobody is pushed into a lock:
//! the store tells a waiter that it is next ([`Notification::Next`]) and the waiter's replica *takes up*
//! the claim. The one short cut is the `next` of [`Backend::release`].
//!
//! # Whose undo
//! A call is not a claim: with a request id, several calls work on one claim. Each call has a
//! [`CallId`](crate::name::CallId); the one that entered last owns a waiting claim (it *adopted* it), and a hold that a
//! second call has found is *adopted* for good. The undo of a call, `release(ReleaseTarget::Call)`, removes
//! a waiting claim only while it carries that call's id, and a hold only if it was never adopted.
//!
//! # What is unknown is settled
//! After `release(ReleaseTarget::Call)` has answered, no `enter` or `promote` of that call takes effect,
//! however late it reaches the store: a leave that did not itself remove the call's own record
//! leaves a *cancel mark*, kept for at least [`MARKS_KEPT`], and a step that meets its mark answers
//! [`AcquireOutcome::Cancelled`]. So an `enter` is sent once per call id; who must try again leaves first and
//! enters under a fresh one. `promote`, `leave` and `renew` may be sent again.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::claim::{Holder, Queue};
use crate::name::{FencingToken, LeaseKey, LockName, Ttl};

mod step;
mod view;

pub use self::step::{
    QueuePosition, ClaimLimits, ReleaseOutcome, Released, Grant, OwnedReleaseTarget, ReleaseTarget, NewClaim, WaitPolicy, AcquireOutcome, Refusal, RenewOutcome,
};
pub use self::view::{Change, ChangeKind, LockPage, InspectLimit, PageRequest, WatchEvent, LockSummary, Notification};

#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "redis", feature = "redlock"))]
pub mod redis_server;
#[cfg(feature = "redlock")]
pub mod redlock;

/// How long finished calls are remembered, within the namespace's limit on their number.
pub const FINISHED_KEPT: Duration = Duration::from_secs(60);
/// How long cancel marks are kept at the least.
pub const MARKS_KEPT: Duration = Duration::from_secs(60);

/// A store, as one namespace sees it. What its [`Capabilities`] leave out it refuses with
/// [`BackendError::Unsupported`], whoever asks.
///
/// # Cancellation safety
/// Dropping a verb's future does not say whether the step took effect: who drops an `enter` or a
/// `promote` must send `release(ReleaseTarget::Call)` after it.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// Puts a claim at the tail of the lock's queue, or finds the one with its id and adopts it.
    ///
    /// - A new claim that fits is held at once. One that does not is queued with
    ///   [`WaitPolicy::Wait`] and answered [`AcquireOutcome::Busy`] with [`WaitPolicy::Try`], which never leaves
    ///   an entry behind.
    /// - A waiting claim of the same id is adopted: it takes over the call id, TTL and metadata and
    ///   keeps its place; the older call is woken and meets [`AcquireOutcome::Superseded`] or
    ///   [`AcquireOutcome::Cancelled`]. It is held at once if it fits. With `WaitPolicy::Try` it is otherwise
    ///   taken out in the same step, and the older call's id is marked.
    /// - A hold of the same id is adopted: the answer is its grant with the TTL that remains, and
    ///   its secret. A finished one is answered with its cause while it is remembered.
    /// - With `reentrant`, a reentrant holder of the same owner, identity and mode gets one more
    ///   hold: same token, and the later of both expiries.
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError>;

    /// Makes an eligible waiting claim a holder: mints its token and starts its TTL.
    ///
    /// Answers [`AcquireOutcome::Waiting`] for one that is not eligible yet, the same grant again for one
    /// that this call already holds, [`AcquireOutcome::Superseded`] for one that another call adopted, and
    /// [`AcquireOutcome::Gone`] for one that the store does not know.
    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError>;

    /// Takes a hold, a call's claim or a token's holder out and says what it found. If that makes
    /// room for `next`, a waiting claim of this replica, `next` is taken up in the same step.
    async fn release(
        &self,
        lock: &LockName,
        who: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError>;

    /// Lets a held lease live for `ttl` (absent: the TTL it was last given) from now on. Never
    /// shortens, never revives. The answer's TTL is all that remains.
    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError>;

    /// The queue as it is now; its counts are whole, whatever `most` shows.
    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError>;

    /// The holder with this token, if it is held now. A backend that can find it without looking at
    /// all holders does so.
    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        let queue = self.inspect(lock, InspectLimit::ALL_HOLDERS).await?;
        Ok(queue.holders.into_iter().find(|holder| holder.token == token))
    }

    /// The locks in use whose names begin with `prefix`, by name, page by page; not a snapshot. A page that
    /// is asked for behind a name before `prefix` begins with it.
    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError>;

    /// What this replica's waiting claims should know, one stream for all of the namespace. It is
    /// asked for once and ends when the backend is closed.
    fn notifications(&self) -> BoxStream<'static, Notification>;

    /// The queue, then each change. After a gap the full queue follows again.
    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>>;

    /// Ends a quarantine by hand, of one node or of the whole store.
    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        let _ = node;
        Err(BackendError::Unsupported {
            what: "this backend has no quarantine",
        })
    }

    /// What the store can do.
    fn capabilities(&self) -> Capabilities;

    /// How the store is.
    fn health(&self) -> watch::Receiver<Health>;

    /// How each of its nodes is, by the name that [`Backend::admit`] takes, where a majority of them
    /// decides.
    fn nodes(&self) -> Vec<(String, Health)> {
        Vec::new()
    }

    /// Finishes what is under way and lets go of the store. Later verbs answer
    /// [`BackendError::NotSent`].
    async fn close(&self);
}

/// How many claims a store in this process holds for a namespace, unless its config says otherwise.
pub const CLAIM_LIMIT: u32 = 200_000;

/// What a store promises when it breaks or is cut in two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guarantee {
    /// Available: exclusion may be lost with the store's memory.
    Ap,
    /// Consistent: exclusion holds, or calls fail.
    Cp,
}

impl Guarantee {
    /// `AP` or `CP`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ap => "AP",
            Self::Cp => "CP",
        }
    }
}

/// What a backend can do; what it cannot is refused with UNSUPPORTED before it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The backend's kind, such as `embedded`.
    pub kind: &'static str,
    /// What it promises.
    pub guarantee: Guarantee,
    /// Shared claims and semaphores, beside exclusive ones.
    pub sharing: bool,
    /// Re-entry.
    pub reentry: bool,
    /// A retry with the same request id finds its claim.
    pub remembers_requests: bool,
    /// The order is that of the queue for all replicas, not only among one replica's waiters.
    pub global_order: bool,
    /// How long a lost wake may stay unnoticed before a waiter asks by itself; nothing where none
    /// is ever lost, or where the backend finds out by itself.
    pub recheck: Option<Duration>,
}

/// How a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It serves.
    Serving,
    /// It lost its memory, or may have, and grants nothing yet.
    Quarantined {
        /// When it is trusted again.
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

/// What is wrong with a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// It cannot be reached, or did not answer; whether the step took effect is unknown.
    #[error("backend unavailable: {reason}")]
    Unavailable {
        /// What went wrong.
        reason: String,
    },
    /// It cannot be reached, and the step was not sent: nothing of it has taken effect.
    #[error("backend unavailable: {reason}")]
    NotSent {
        /// What is wrong.
        reason: String,
    },
    /// Too few of its nodes answered.
    #[error("no quorum: {reason}")]
    NoQuorum {
        /// Which ones did not.
        reason: String,
        /// Whether the step was sent to any.
        sent: bool,
    },
    /// It is not trusted with grants yet.
    #[error("backend quarantined for another {left:?}: {reason}")]
    Quarantined {
        /// For how long still.
        left: Duration,
        /// What happened.
        reason: String,
    },
    /// It does not offer this.
    #[error("unsupported: {what}")]
    Unsupported {
        /// What is not offered, and why.
        what: &'static str,
    },
    /// It answered what it never should: a bug here, or a damaged store.
    #[error("backend broken: {reason}")]
    Broken {
        /// What was found.
        reason: String,
    },
}

impl BackendError {
    /// Whether the same step may succeed soon: a waiter rides such an error out.
    pub fn is_passing(&self) -> bool {
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
