//! The queue of one lock as a pure state machine, and the vocabulary of the steps on it.
//!
//! A [`LockState`] has the claims of one lock in queue order. The verbs of [`crate::backend::Backend`] are its methods;
//! each takes a [`StepContext`], which says what differs between stores. No clock, no task, no I/O, and nothing of other
//! locks: a store runs the verbs in place, or on a copy that it commits.
//!
//! # Time
//! All times are of one clock, which only rises: the lock's clock. The context says what it shows. A store ends the
//! leases that have expired ([`LockState::end`] with [`crate::claim::Cause::Expired`]) before it runs a verb, because a
//! verb takes every claim that holds for a holder.
//!
//! # Values that only the commit determines
//! A store that commits by compare-and-set on its own clock knows the token and the end of a new lease only when the
//! commit was stamped. Such a store makes placeholders:
//! - [`StepContext::next_token`] returns [`FencingToken::placeholder`]s with ordinals that rise within the batch, and
//!   [`StepContext::expiry`] returns [`Expiry::from_stamp`]: so long after the stamp. A renewal keeps the later of
//!   the known end and the new one, whichever that turns out to be.
//! - The verbs compare tokens for equality only, and a lease that ends after the stamp has not expired. So later verbs
//!   of the batch work on placeholders as on values. No verb is given a placeholder by its caller, because nobody was
//!   answered yet.
//! - After the commit, [`LockState::resolve`] replaces both in the state. The store replaces the tokens in the outcomes,
//!   the changes and the remembered ends of the batch itself. The TTL of each grant goes through
//!   [`StepContext::answer_ttl`], so that the store can note the end and compute the TTL from the stamp.
//!
//! A store that decides at once, as the embedded one does, never sees a placeholder.
//!
//! # Several replicas
//! A waiting claim belongs to the replica of its latest call. [`StepContext::notify`] names the replica to notify: a
//! store sends a message to another one, and promotes a claim of its own in the same batch, or notifies its caller.
//!
//! [`FencingToken::placeholder`]: crate::name::FencingToken::placeholder

mod callers;
mod claim;
pub mod claim_terms;
mod context;
mod ends;
mod expiry;
mod lock_state;
mod metadata;
mod retries;
mod step;
#[cfg(test)]
mod tests;
mod verbs;

pub use self::callers::{Callers, StreamNumber};
pub use self::claim::{Claim, Hold, Holding, Kept, ReplicaId, Stage, Waiting};
pub use self::context::{EndedHold, EndedKey, StepContext};
pub use self::expiry::Expiry;
pub use self::lock_state::LockState;
pub use self::step::{
    AcquireOutcome, Change, ChangeKind, ClaimLimits, Grant, IncomingClaim, InspectLimit, NewClaim, OwnedReleaseTarget,
    QueuePosition, Refusal, ReleaseOutcome, ReleaseTarget, Released, RenewOutcome, UpdateOutcome, WaitPolicy,
};
