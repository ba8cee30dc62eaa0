//! What a step needs from the store around its lock.

use std::time::{Duration, SystemTime};

use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, Secret};
use crate::queue::{Change, Claim, Expiry, NewClaim, Refusal, ReplicaId};

/// What differs between the stores that run a lock's queue: time, tokens, memory, and who is told of what.
///
/// The last methods are effects. A store that only commits whole states may ignore those of them that say which claim
/// changed; together they say whether a step changed anything.
pub trait StepContext {
    /// The time on the lock's clock. It is the same in all steps of a batch.
    fn now(&self) -> Duration;
    /// The time of day, which is only displayed.
    fn wall(&self) -> SystemTime;
    /// The replica whose call the step is.
    fn replica(&self) -> ReplicaId;

    /// The token of a grant, above all earlier ones of this lock, or its placeholder. Absent when tokens have run out.
    fn next_token(&mut self) -> Option<FencingToken>;
    /// The end of a lease that is given this TTL now.
    fn expiry(&self, ttl: Duration) -> Expiry;
    /// The TTL in the grant of a lease with this end. It is called once for each [`crate::queue::Grant`].
    fn answer_ttl(&mut self, ends: Expiry) -> Duration {
        ends.remaining(self.now())
    }

    /// The limit of the store, if it is reached. It refuses new claims and re-entries, and that of
    /// a lock's bytes also longer metadata.
    fn store_limit_reached(&self) -> Option<Refusal>;
    /// Whether the call has a cancel mark.
    fn is_cancelled(&self, call: &CallId) -> bool;
    /// Writes a cancel mark for the call.
    fn cancel(&mut self, call: CallId);
    /// How a hold of this lock ended, while that is remembered.
    fn ended(&mut self, key: EndedKey<'_>) -> Option<Cause>;
    /// Remembers how a hold ended.
    fn remember(&mut self, ended: EndedHold);

    /// This waiting claim, of this replica, may be eligible or was adopted.
    fn notify(&mut self, replica: ReplicaId, claim: ClaimId);
    /// Whether anybody watches the lock. Otherwise no changes are computed.
    fn is_watched(&self) -> bool;
    /// The lock's queue changed.
    fn changed(&mut self, change: Change);
    /// The claim at this position is new, or what is stored of it changed, its end excepted.
    fn saved(&mut self, position: u64, claim: &Claim);
    /// The lease of the claim at this position ends then. `before`, it ended at another time; absent for a grant.
    fn expiry_moved(&mut self, position: u64, before: Option<Expiry>, after: Expiry);
    /// The claim was at this position.
    fn removed(&mut self, position: u64, claim: &Claim);
}

/// By what a step looks for an ended hold.
#[derive(Debug, Clone, Copy)]
pub enum EndedKey<'a> {
    /// By the id of this claim, which may be that of an earlier call of the same request ([`NewClaim::retryable`]).
    Request(&'a NewClaim),
    /// By the secret of this claim, which waited and is not in the queue any more.
    Waiter(&'a NewClaim),
    /// By the secret and the token of this lease.
    Lease(&'a LeaseKey),
    /// By the token. Rare: a forced release.
    Token(FencingToken),
}

/// A hold that ended and whose caller had received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedHold {
    /// Its secret.
    pub secret: Secret,
    /// Its token.
    pub token: FencingToken,
    /// [`Cause::Released`], [`Cause::Expired`] or [`Cause::Forced`].
    pub cause: Cause,
    /// Its id, if a retry may look for it.
    pub id: Option<ClaimId>,
    /// How many ended holds the store remembers at most; the oldest go first.
    pub limit: u32,
}
