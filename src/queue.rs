//! The queue of one lock, and the vocabulary of the steps on it.
//!
//! Pure values: one lock, no clock, no task, no store.

pub mod claim_terms;
#[cfg(feature = "embedded")]
pub(crate) mod lock_state;
mod step;

pub use self::step::{
    AcquireOutcome, Change, ChangeKind, ClaimLimits, Grant, InspectLimit, NewClaim, OwnedReleaseTarget, QueuePosition,
    Refusal, ReleaseOutcome, ReleaseTarget, Released, RenewOutcome, UpdateOutcome, WaitPolicy,
};
