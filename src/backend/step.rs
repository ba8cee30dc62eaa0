//! What the steps of a backend take and answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::claim::{Cause, Holder};
use crate::name::{
    CallId, ClaimId, FencingToken, Identity, Kind, LeaseKey, LockKey, Metadata, Mode, Owner, Secret, Ttl,
};

/// Whether a claim that does not fit waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
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
    pub wait_policy: WaitPolicy,
    /// The namespace's limits.
    pub limits: ClaimLimits,
    /// When the call came. Only ever compared with the sending of the granting step, for
    /// [`Grant::waited`].
    pub arrived: Instant,
}

#[cfg(test)]
impl NewClaim {
    /// A patient exclusive claim for tests, whose ids are all made of this number.
    pub fn numbered(number: u8) -> Self {
        let good = "a good value";
        Self {
            id: ClaimId::from_bytes([number; 16]),
            call: CallId::from_bytes([number; 16]),
            secret: Secret::from_bytes([number; 16]),
            retryable: false,
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

/// Who leaves.
#[derive(Debug, Clone, Copy)]
pub enum ReleaseTarget<'a> {
    /// A hold, by its lease: a Release.
    Hold(&'a LeaseKey),
    /// A call that ended: what it entered is undone, unless another call has found it.
    Call(&'a ClaimId, CallId),
    /// Whoever holds this token, with all holds.
    Forced(FencingToken),
}

/// [`ReleaseTarget`], owned: for a step that is sent from elsewhere.
#[derive(Debug, Clone)]
pub enum OwnedReleaseTarget {
    /// [`ReleaseTarget::Hold`].
    Hold(LeaseKey),
    /// [`ReleaseTarget::Call`].
    Call(ClaimId, CallId),
    /// [`ReleaseTarget::Forced`].
    Forced(FencingToken),
}

impl From<ReleaseTarget<'_>> for OwnedReleaseTarget {
    fn from(who: ReleaseTarget<'_>) -> Self {
        match who {
            ReleaseTarget::Hold(lease) => Self::Hold(lease.clone()),
            ReleaseTarget::Call(claim, call) => Self::Call(*claim, call),
            ReleaseTarget::Forced(token) => Self::Forced(token),
        }
    }
}

impl OwnedReleaseTarget {
    /// The same, borrowed.
    pub fn leaving(&self) -> ReleaseTarget<'_> {
        match self {
            Self::Hold(lease) => ReleaseTarget::Hold(lease),
            Self::Call(claim, call) => ReleaseTarget::Call(claim, *call),
            Self::Forced(token) => ReleaseTarget::Forced(*token),
        }
    }
}

/// Where a claim stands after a step.
#[derive(Debug, Clone)]
pub enum AcquireOutcome {
    /// It holds the lock.
    Held(Grant),
    /// It waits in the queue.
    Waiting(QueuePosition),
    /// It was only a try and did not fit; the first holder, where one holds.
    Busy(Option<Box<Holder>>),
    /// It was not let in.
    Refused(Refusal),
    /// Its request was granted before and has ended since.
    Finished(Cause),
    /// Its call has left, or lost its claim to a try.
    Cancelled,
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
pub struct QueuePosition {
    /// Orders the waiting claims of one lock as the queue does (ties by arrival).
    pub position: u64,
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
    /// The store holds as many claims of this namespace as it may.
    StoreFull {
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
pub struct ReleaseOutcome {
    /// What became of the one that leaves.
    pub found: Released,
    /// The grant of the `next` that was named, if it was taken up.
    pub next: Option<Grant>,
}

/// What a leave found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
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
pub enum RenewOutcome {
    /// The lease lives on.
    Renewed(Grant),
    /// It is gone, with its cause while that is remembered.
    Gone(Option<Cause>),
}
