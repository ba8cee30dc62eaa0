//! The parameters and outcomes of the steps on a lock, and the changes that they make.

use std::time::Duration;

use tokio::time::Instant;

use crate::claim::{Cause, ClaimLabels, Holder};
use crate::name::{
    CallId, ClaimId, FencingToken, Identity, Kind, LeaseKey, LockKey, Metadata, Mode, Owner, Secret, Ttl,
};
use crate::queue::StreamNumber;

/// Whether a claim that does not fit waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
    /// No: the outcome names the first holder.
    NoWait,
    /// Yes, in the queue.
    Wait,
}

/// The namespace's limits that a step applies. They are part of the claim, so that a backend never
/// holds a stale copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimLimits {
    /// The limit on claims in the queue, holders and waiters together.
    pub queue: u32,
    /// The limit on finished calls that are remembered.
    pub finished: u32,
    /// The limit on holds of one claim.
    pub holds: u32,
}

/// A claim as one Acquire call presents it.
#[derive(Debug, Clone)]
pub struct NewClaim {
    /// The claim's id, or that of a further hold on it.
    pub id: ClaimId,
    /// The id of the call that presents it; fresh for every `acquire`.
    pub call: CallId,
    /// The secret of the hold that it becomes.
    pub secret: Secret,
    /// Whether the id was derived from a request id, so that a retry may look for it.
    pub retryable: bool,
    /// The stream on which the call came, if that is one of a session that can be resumed.
    pub stream: Option<StreamNumber>,
    /// The owner, as the caller names itself.
    pub owner: Owner,
    /// The caller's authenticated identity.
    pub identity: Identity,
    /// The mode in which it shares the lock.
    pub mode: Mode,
    /// Whether it may join, and be joined by, reentrant claims of the same owner.
    pub reentrant: bool,
    /// The requested TTL of the lease.
    pub ttl: Ttl,
    /// The caller's metadata.
    pub metadata: Metadata,
    /// Whether it waits.
    pub wait_policy: WaitPolicy,
    /// The namespace's limits.
    pub limits: ClaimLimits,
    /// When the call arrived. It is compared only with the time at which the granting step is sent,
    /// for [`Grant::waited`].
    pub arrived: Instant,
}

/// A claim, with the time that its call had waited when it sent the step.
#[derive(Debug, Clone, Copy)]
pub struct IncomingClaim<'a> {
    /// The claim.
    pub claim: &'a NewClaim,
    /// From [`NewClaim::arrived`] to the sending of the step.
    pub waited: Duration,
}

#[cfg(test)]
impl NewClaim {
    /// An exclusive claim with [`WaitPolicy::Wait`] for tests; every byte of its ids is this
    /// number.
    pub fn numbered(number: u8) -> Self {
        let good = "a good value";
        Self {
            id: ClaimId::from_bytes([number; 16]),
            call: CallId::from_bytes([number; 16]),
            secret: Secret::from_bytes([number; 16]),
            retryable: false,
            stream: None,
            owner: Owner::new("tester").expect(good),
            identity: Identity::anonymous(),
            mode: Mode::Exclusive,
            reentrant: false,
            ttl: Ttl::new(Duration::from_secs(60)).expect(good),
            metadata: Metadata::default(),
            wait_policy: WaitPolicy::Wait,
            limits: ClaimLimits {
                queue: 100,
                finished: 100,
                holds: 10,
            },
            arrived: Instant::now(),
        }
    }
}

/// What a release ends.
#[derive(Debug, Clone, Copy)]
pub enum ReleaseTarget<'a> {
    /// A hold, named by its lease: a Release call.
    Hold(&'a LeaseKey),
    /// A hold, of whose claim the lock stays taken for so long: a Release call with `keep_for`.
    Keeping(&'a LeaseKey, Duration),
    /// A call that ended: the release undoes its claim, unless another call has found that claim.
    Call(&'a ClaimId, CallId),
    /// What a request has, whether it waits or holds, if its session asked for it last, and on no later stream than this.
    Request(&'a ClaimId, StreamNumber),
    /// The holder with this token, with all its holds.
    Forced(FencingToken),
}

/// [`ReleaseTarget`], owned, for a step that another task sends.
#[derive(Debug, Clone)]
pub enum OwnedReleaseTarget {
    /// [`ReleaseTarget::Hold`].
    Hold(LeaseKey),
    /// [`ReleaseTarget::Keeping`].
    Keeping(LeaseKey, Duration),
    /// [`ReleaseTarget::Call`].
    Call(ClaimId, CallId),
    /// [`ReleaseTarget::Request`].
    Request(ClaimId, StreamNumber),
    /// [`ReleaseTarget::Forced`].
    Forced(FencingToken),
}

impl From<ReleaseTarget<'_>> for OwnedReleaseTarget {
    fn from(target: ReleaseTarget<'_>) -> Self {
        match target {
            ReleaseTarget::Hold(lease) => Self::Hold(lease.clone()),
            ReleaseTarget::Keeping(lease, time) => Self::Keeping(lease.clone(), time),
            ReleaseTarget::Call(claim, call) => Self::Call(*claim, call),
            ReleaseTarget::Request(claim, stream) => Self::Request(*claim, stream),
            ReleaseTarget::Forced(token) => Self::Forced(token),
        }
    }
}

impl OwnedReleaseTarget {
    /// The borrowed form.
    pub fn as_target(&self) -> ReleaseTarget<'_> {
        match self {
            Self::Hold(lease) => ReleaseTarget::Hold(lease),
            Self::Keeping(lease, time) => ReleaseTarget::Keeping(lease, *time),
            Self::Call(claim, call) => ReleaseTarget::Call(claim, *call),
            Self::Request(claim, stream) => ReleaseTarget::Request(claim, *stream),
            Self::Forced(token) => ReleaseTarget::Forced(*token),
        }
    }
}

/// The state of a claim after a step.
#[derive(Debug, Clone)]
pub enum AcquireOutcome {
    /// It holds the lock.
    Held(Grant),
    /// It waits in the queue.
    Waiting(QueuePosition),
    /// It was a try and did not fit; contains the first holder, if there is one.
    Busy(Option<Box<Holder>>),
    /// The store refused it.
    Refused(Refusal),
    /// Its request was granted before and has ended since.
    Finished(Cause),
    /// Its call was cancelled, or lost its claim to a try of another call.
    Cancelled,
    /// Another call has adopted it.
    Superseded,
    /// The store does not know it, or no longer knows it.
    Gone,
}

/// A lease as the store grants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The claim that holds.
    pub claim: ClaimId,
    /// The kind of that claim.
    pub kind: Kind,
    /// The secret of the hold.
    pub secret: Secret,
    /// The claim's token.
    pub token: FencingToken,
    /// The owner of the claim.
    pub owner: Owner,
    /// The granted time, counted from the sending of the step.
    pub ttl: Duration,
    /// The time from [`NewClaim::arrived`] to the sending of the granting step; zero for a renewal,
    /// a re-entry and a hold that a retry found.
    pub waited: Duration,
    /// The number of holds of the claim.
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

/// The position of a waiting claim and what the store knows about the holders ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    /// Sorts the waiting claims of one lock in queue order; equal positions sort by arrival.
    pub position: u64,
    /// When the next holder's TTL runs out, if it is not renewed.
    pub frees_in: Option<Duration>,
}

/// Why the store refused a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The queue, or the holds of the claim, are at the limit.
    Full {
        /// The limit that was reached.
        limit: u32,
    },
    /// The store holds as many claims of this namespace as it may.
    StoreFull {
        /// The limit that was reached.
        limit: u32,
    },
    /// The claims of this lock take as many bytes as they may.
    LockFull {
        /// The limit that was reached, in bytes.
        limit: usize,
    },
    /// It cannot share the lock with a claim in the queue.
    LimitMismatch {
        /// The mode of that claim.
        existing: Mode,
    },
    /// A claim with its id, or the holder that it would re-enter, has other parameters.
    OtherParameters {
        /// The first field that differs.
        field: &'static str,
    },
}

/// The outcome of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseOutcome {
    /// What became of the target.
    pub released: Released,
    /// The grant of `next`, if it was promoted.
    pub next: Option<Grant>,
    /// How long the lock stays taken although the hold was released, because this release or an earlier one of the hold
    /// says so.
    pub kept: Option<Duration>,
    /// The secret of the hold that a [`ReleaseTarget::Request`] ended.
    pub cancelled: Option<Secret>,
}

impl From<Released> for ReleaseOutcome {
    /// Without the grant of a `next`, of a claim that does not stay.
    fn from(released: Released) -> Self {
        Self {
            released,
            next: None,
            kept: None,
            cancelled: None,
        }
    }
}

impl Released {
    /// The end of a target that is not there any more, as far as it is remembered.
    pub fn before(cause: Option<Cause>) -> Self {
        cause.map_or(Self::Nothing, Self::EndedBefore)
    }
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// This step ended it.
    Ended(Cause),
    /// It had ended before.
    EndedBefore(Cause),
    /// The call's claim belongs to another call now, and stays.
    Adopted,
    /// The store knows nothing about it.
    Nothing,
}

/// The outcome of a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The lease is extended.
    Renewed(Grant),
    /// The lease is gone; contains its cause while that is remembered.
    Gone(Option<Cause>),
}

/// The outcome of a change of metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The claim shows the new metadata.
    Updated,
    /// The store refused the new metadata; the claim shows the old.
    Refused(Refusal),
    /// A later stream of the session has changed the lease or asked for it; nothing was changed.
    Superseded,
    /// The lease is gone; contains its cause while that is remembered.
    Gone(Option<Cause>),
}

/// How much of a queue is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InspectLimit {
    /// The maximum number of holders.
    pub holders: usize,
    /// The maximum number of waiters.
    pub waiters: usize,
}

impl InspectLimit {
    /// Every holder, and no waiter.
    pub const ALL_HOLDERS: Self = Self {
        holders: usize::MAX,
        waiters: 0,
    };

    /// The same limit for holders and waiters.
    pub fn of_each(limit: usize) -> Self {
        Self {
            holders: limit,
            waiters: limit,
        }
    }
}

/// One change of a lock's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The claim that changed.
    pub claim: ClaimLabels,
    /// Its token; absent if it never held the lock.
    pub token: Option<FencingToken>,
    /// The number of holders after the change.
    pub holders: usize,
    /// The number of waiters after the change.
    pub waiters: usize,
}

/// What can happen to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It began to wait.
    Queued,
    /// It was granted.
    Granted,
    /// Its metadata was changed while it held.
    Updated,
    /// It ended with this cause.
    Ended(Cause),
}
