//! What a store must do for the service: the trait [`Backend`] and its contract in words.
//!
//! Each verb is one atomic step of the store, and each sentence here is a case of the conformance
//! suite (`tests/conformance`). What a step answers is about the *lock* ([`Place`], [`Departure`],
//! [`Renewal`]); a [`BackendError`] is only about the *store*.
//!
//! # The life of a claim
//! An Acquire call makes a [`NewClaim`] and *enters* it. It is held at once when it fits, or waits
//! at the tail of the queue. A waiting claim lives as long as the replica that entered it; a holder
//! lives on its own TTL, and any replica renews or releases it. Nobody is pushed into a lock:
//! the store tells a waiter that it is next ([`Wake::Next`]) and the waiter's replica *takes up*
//! the claim. The one short cut is the `next` of [`Backend::leave`].
//!
//! # Whose undo
//! A call is not a claim: with a request id, several calls work on one claim. Each call has a
//! [`CallId`]; the one that entered last owns a waiting claim (it *adopted* it), and a hold that a
//! second call has found is *adopted* for good. The undo of a call, `leave(Leaving::Call)`, removes
//! a waiting claim only while it carries that call's id, and a hold only if it was never adopted.
//!
//! # What is unknown is settled
//! After `leave(Leaving::Call)` has answered, no `enter` or `take_up` of that call takes effect,
//! however late it reaches the store: a leave that did not itself remove the call's own record
//! leaves a *cancel mark*, kept for at least [`MARKS_KEPT`], and a step that meets its mark answers
//! [`Place::Left`]. So an `enter` is sent once per call id; who must try again leaves first and
//! enters under a fresh one. `take_up`, `leave` and `renew` may be sent again.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::claim::{Cause, Holder, Queue};
use crate::name::{
    CallId, ClaimId, FencingToken, Identity, Kind, LeaseKey, LockKey, LockName, Metadata, Mode, Owner, Secret, Ttl,
};

#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redis_server;

/// How long finished calls are remembered, within the namespace's limit on their number.
pub const FINISHED_KEPT: Duration = Duration::from_secs(60);
/// How long cancel marks are kept at the least.
pub const MARKS_KEPT: Duration = Duration::from_secs(60);

/// A store, as one namespace sees it.
///
/// # Cancellation safety
/// Dropping a verb's future does not say whether the step took effect: who drops an `enter` or a
/// `take_up` must send `leave(Leaving::Call)` after it.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// Puts a claim at the tail of the lock's queue, or finds the one with its id and adopts it.
    ///
    /// - A new claim that fits is held at once. One that does not is queued with
    ///   [`Patience::Wait`] and answered [`Place::Busy`] with [`Patience::Try`], which never leaves
    ///   an entry behind.
    /// - A waiting claim of the same id is adopted: it takes over the call id, TTL and metadata and
    ///   keeps its place; the older call is woken and meets [`Place::Superseded`] or
    ///   [`Place::Left`]. It is held at once if it fits. With `Patience::Try` it is otherwise
    ///   taken out in the same step, and the older call's id is marked.
    /// - A hold of the same id is adopted: the answer is its grant with the TTL that remains, and
    ///   its secret. A finished one is answered with its cause while it is remembered.
    /// - With `reentrant`, a reentrant holder of the same owner, identity and mode gets one more
    ///   hold: same token, and the later of both expiries.
    async fn enter(&self, lock: &LockName, claim: &NewClaim) -> Result<Place, BackendError>;

    /// Makes an eligible waiting claim a holder: mints its token and starts its TTL.
    ///
    /// Answers [`Place::Waiting`] for one that is not eligible yet, the same grant again for one
    /// that this call already holds, [`Place::Superseded`] for one that another call adopted, and
    /// [`Place::Gone`] for one that the store does not know.
    async fn take_up(&self, lock: &LockName, claim: &NewClaim) -> Result<Place, BackendError>;

    /// Takes a hold, a call's claim or a token's holder out and says what it found. If that makes
    /// room for `next`, a waiting claim of this replica, `next` is taken up in the same step.
    async fn leave(
        &self,
        lock: &LockName,
        who: Leaving<'_>,
        next: Option<&NewClaim>,
    ) -> Result<Departure, BackendError>;

    /// Lets a held lease live for `ttl` (absent: the TTL it was last given) from now on. Never
    /// shortens, never revives. The answer's TTL is all that remains.
    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<Renewal, BackendError>;

    /// The queue as it is now, with at most `most` holders and `most` waiters.
    async fn look(&self, lock: &LockName, most: usize) -> Result<Queue, BackendError>;

    /// The locks in use whose names begin with `prefix`, by name, page by page; not a snapshot.
    async fn list(&self, prefix: &str, page: Page) -> Result<Listing, BackendError>;

    /// What this replica's waiting claims should know, one stream for all of the namespace. It is
    /// asked for once and ends when the backend is closed.
    fn wakes(&self) -> BoxStream<'static, Wake>;

    /// The queue, then each change. After a gap the full queue follows again.
    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<Seen, BackendError>>;

    /// Ends a quarantine by hand, of one node or of the whole store.
    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        let _ = node;
        Err(BackendError::Unsupported {
            what: "this backend has no quarantine",
        })
    }

    /// What the store can do.
    fn offers(&self) -> Offers;

    /// How the store is.
    fn health(&self) -> watch::Receiver<Health>;

    /// Finishes what is under way and lets go of the store. Later verbs answer
    /// [`BackendError::Away`].
    async fn close(&self);
}

/// Whether a claim that does not fit waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// No: tell who is in the way.
    Try,
    /// Yes, in the queue.
    Wait,
}

/// The limits that a step needs of its namespace; they travel with the claim, so that a backend
/// never holds a stale copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimLimits {
    /// How many claims the queue takes, holders and waiters together.
    pub queue: u32,
    /// How many finished calls are remembered.
    pub finished: u32,
    /// How many holds a claim takes.
    pub holds: u32,
}

/// A claim as one Acquire call brings it.
#[derive(Debug, Clone)]
pub struct NewClaim {
    /// The claim's id, or that of a further hold on it.
    pub id: ClaimId,
    /// The call that brings it; fresh for every `enter`.
    pub call: CallId,
    /// The secret of the hold that it is to be.
    pub secret: Secret,
    /// Whether the id came from a request id, so that a retry may look for it.
    pub retryable: bool,
    /// Who asks, by its own label.
    pub owner: Owner,
    /// Who asks, as proven.
    pub identity: Identity,
    /// How it shares the lock.
    pub mode: Mode,
    /// Whether it may join, and be joined by, reentrant claims of the same owner.
    pub reentrant: bool,
    /// How long the lease is to live.
    pub ttl: Ttl,
    /// What it says about itself.
    pub metadata: Metadata,
    /// Whether it waits.
    pub patience: Patience,
    /// The namespace's limits.
    pub limits: ClaimLimits,
    /// When the call came. Only ever compared with the sending of the granting step, for
    /// [`Grant::waited`].
    pub arrived: Instant,
}

/// Who leaves.
#[derive(Debug, Clone, Copy)]
pub enum Leaving<'a> {
    /// A hold, by its lease: a Release.
    Hold(&'a LeaseKey),
    /// A call that ended: what it entered is undone, unless another call has found it.
    Call(&'a ClaimId, CallId),
    /// Whoever holds this token, with all holds.
    Forced(FencingToken),
}

/// [`Leaving`], owned: for a step that is sent from elsewhere.
#[derive(Debug, Clone)]
pub enum Leaver {
    /// [`Leaving::Hold`].
    Hold(LeaseKey),
    /// [`Leaving::Call`].
    Call(ClaimId, CallId),
    /// [`Leaving::Forced`].
    Forced(FencingToken),
}

impl From<Leaving<'_>> for Leaver {
    fn from(who: Leaving<'_>) -> Self {
        match who {
            Leaving::Hold(lease) => Self::Hold(lease.clone()),
            Leaving::Call(claim, call) => Self::Call(*claim, call),
            Leaving::Forced(token) => Self::Forced(token),
        }
    }
}

impl Leaver {
    /// The same, borrowed.
    pub fn leaving(&self) -> Leaving<'_> {
        match self {
            Self::Hold(lease) => Leaving::Hold(lease),
            Self::Call(claim, call) => Leaving::Call(claim, *call),
            Self::Forced(token) => Leaving::Forced(*token),
        }
    }
}

/// Where a claim stands after a step.
#[derive(Debug, Clone)]
pub enum Place {
    /// It holds the lock.
    Held(Grant),
    /// It waits in the queue.
    Waiting(Ahead),
    /// It was only a try and did not fit; the first holder, where one holds.
    Busy(Option<Box<Holder>>),
    /// It was not let in.
    Refused(Refusal),
    /// Its request was granted before and has ended since.
    Finished(Cause),
    /// Its call has left, or lost its claim to a try.
    Left,
    /// Another call has adopted it.
    Superseded,
    /// The store does not know it (any more).
    Gone,
}

/// A lease as the store grants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The claim that holds.
    pub claim: ClaimId,
    /// What kind of claim it is.
    pub kind: Kind,
    /// The secret of the hold.
    pub secret: Secret,
    /// The claim's token.
    pub token: FencingToken,
    /// Who holds.
    pub owner: Owner,
    /// What is really granted from the sending of the step on.
    pub ttl: Duration,
    /// From [`NewClaim::arrived`] to the sending of the granting step; zero for a renewal, a
    /// re-entry and a hold found by a retry.
    pub waited: Duration,
    /// How many holds the claim has.
    pub holds: u32,
}

impl Grant {
    /// The key of the lease.
    pub fn lease(&self, lock: LockKey) -> LeaseKey {
        LeaseKey {
            lock,
            kind: self.kind,
            claim: self.claim,
            token: self.token,
            secret: self.secret,
        }
    }
}

/// What a waiting claim knows of those ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// Orders the waiting claims of one lock as the queue does (ties by claim id).
    pub turn: u64,
    /// When the next holder's TTL runs out, if nobody renews it.
    pub frees_in: Option<Duration>,
}

/// Why a claim was not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The queue, or the holds of the claim, are at the limit.
    Full {
        /// The limit that was reached.
        limit: u32,
    },
    /// It cannot share the lock with a claim in the queue.
    LimitMismatch {
        /// The mode of that claim.
        there: Mode,
    },
    /// A claim with its id, or the holder that it would re-enter, has other parameters.
    OtherParameters {
        /// The first field that differs.
        field: &'static str,
    },
}

/// What a leave did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// What became of the one that leaves.
    pub found: Found,
    /// The grant of the `next` that was named, if it was taken up.
    pub next: Option<Grant>,
}

/// What a leave found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// This step ended it.
    Ended(Cause),
    /// It had ended before.
    EndedBefore(Cause),
    /// The call's claim belongs to another call now, and stays.
    Adopted,
    /// Nothing is known of it.
    Nothing,
}

/// What a renewal found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lives on.
    Renewed(Grant),
    /// It is gone, with its cause while that is remembered.
    Gone(Option<Cause>),
}

/// Which part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Where the page before ended, in the backend's own words.
    pub after: Option<String>,
    /// How many locks at most, at least 1.
    pub size: usize,
}

/// A page of locks in use.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The locks, by name.
    pub locks: Vec<Summary>,
    /// Where the next page begins; nothing at the end.
    pub next: Option<String>,
}

/// A lock in use, in short.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Its name.
    pub lock: LockName,
    /// How many claims hold it.
    pub holders: usize,
    /// How many claims wait.
    pub waiters: usize,
    /// The first holder, where one holds.
    pub first: Option<Holder>,
}

/// What a waiting claim of this replica should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// This claim should ask again ([`Backend::take_up`]): it may be eligible, or was adopted.
    Next(LockName, ClaimId),
    /// Something changed on this lock: its first waiter here should ask again.
    Changed(LockName),
    /// The store lost this waiting claim.
    Gone(LockName, ClaimId),
    /// Wakes may have been lost: every waiter should ask again.
    Gap,
}

/// What somebody who watches a lock sees.
#[derive(Debug, Clone)]
pub enum Seen {
    /// The full state: first, and after a gap.
    State(Queue),
    /// One change.
    Change(Change),
}

/// One change of a lock's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// To whose claim.
    pub owner: Owner,
    /// Its token, unless it never held.
    pub token: Option<FencingToken>,
    /// How many hold after it.
    pub holders: usize,
    /// How many wait after it.
    pub waiters: usize,
}

/// What can happen to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It began to wait.
    Queued,
    /// It was granted.
    Granted,
    /// It ended so.
    Ended(Cause),
}

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
pub struct Offers {
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
    /// is ever lost.
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
    Away {
        /// What is wrong.
        reason: String,
    },
}

/// What is wrong with a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// It cannot be reached, or did not answer; whether the step took effect is unknown.
    #[error("backend unavailable: {reason}")]
    Away {
        /// What went wrong.
        reason: String,
    },
    /// Too few of its nodes answered.
    #[error("no quorum: {reason}")]
    NoQuorum {
        /// Which ones did not.
        reason: String,
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
            Self::Away { .. } | Self::NoQuorum { .. } | Self::Quarantined { .. }
        )
    }
}
