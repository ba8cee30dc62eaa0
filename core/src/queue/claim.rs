//! A claim in a queue: it waits, then it holds.
//!
//! Each hold has its own TTL, and a renewal without a TTL uses the one that its hold was last given. With one TTL for
//! the claim, a short re-entry would shorten the lease of the other holds. The claim expires with the longest of
//! them.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::claim::{Holder, Waiter};
use crate::name::{CallId, ClaimId, FencingToken, Secret};
use crate::queue::callers::Callers;
use crate::queue::claim_terms::{ClaimTerms, id};
use crate::queue::expiry::Expiry;
use crate::queue::step::{ClaimLimits, Grant, NewClaim};

/// One claim in a queue.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Its id, also that of its first hold.
    pub id: ClaimId,
    /// What it keeps of the call that made it.
    pub terms: ClaimTerms,
    /// The limits of its namespace at that call.
    pub limits: ClaimLimits,
    /// Whether it waits or holds.
    pub stage: Stage,
}

/// The two stages of a claim's life.
#[derive(Debug, Clone)]
pub enum Stage {
    /// It waits.
    Waiting(Waiting),
    /// It holds.
    Holding(Holding),
}

/// A claim that waits.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The hold that it becomes.
    pub hold: Hold,
    /// The replica of the call that waits.
    pub replica: ReplicaId,
}

/// One of the replicas that share a store, as the store numbers them. A store in one process has one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

/// A claim that holds the lock.
#[derive(Debug, Clone)]
pub struct Holding {
    /// Its fencing token, or the placeholder of it.
    pub token: FencingToken,
    /// When the lease expires.
    pub ends: Expiry,
    /// The lease time after a restart: never less than the time that any client still relies on. For stores whose clock
    /// begins anew with them.
    pub span: Duration,
    /// Whether it waited in the queue before it held.
    pub waited: bool,
    /// Its holds; none once the last was released and the claim is kept.
    pub holds: Vec<Hold>,
    /// How long it stays although its holds have ended; absent unless a release said so.
    pub kept: Option<Kept>,
}

/// Until when a claim stays although its holds have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Its end: not after that of the claim.
    pub ends: Expiry,
    /// The time after a restart, as [`Holding::span`].
    pub span: Duration,
}

/// The part of one Acquire call in a claim. The file has the fields in this order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hold {
    /// Its id: of the claim, or of the call that re-entered it.
    #[serde(with = "id")]
    pub id: ClaimId,
    /// The call that it belongs to.
    #[serde(with = "id")]
    pub call: CallId,
    /// Proves that a caller owns it.
    #[serde(with = "id")]
    pub secret: Secret,
    /// Whether a retry may look for it.
    pub retryable: bool,
    /// The TTL that it was last given.
    pub ttl: Duration,
    /// The calls that have asked for it.
    pub callers: Callers,
}

impl Hold {
    /// The hold that this claim becomes.
    pub fn of(claim: &NewClaim) -> Self {
        Self {
            id: claim.id,
            call: claim.call,
            secret: claim.secret,
            retryable: claim.retryable,
            ttl: claim.ttl.get(),
            callers: Callers::first(claim.stream),
        }
    }
}

impl Claim {
    /// A claim that waits for its hold.
    pub fn waiting(new: &NewClaim, replica: ReplicaId, since: SystemTime) -> Self {
        Self {
            id: new.id,
            terms: ClaimTerms::of(new, since),
            limits: new.limits,
            stage: Stage::Waiting(Waiting {
                hold: Hold::of(new),
                replica,
            }),
        }
    }

    /// What it has while it holds.
    pub fn holding(&self) -> Option<&Holding> {
        match &self.stage {
            Stage::Holding(holding) => Some(holding),
            Stage::Waiting(_) => None,
        }
    }

    /// The same, to change.
    pub fn holding_mut(&mut self) -> Option<&mut Holding> {
        match &mut self.stage {
            Stage::Holding(holding) => Some(holding),
            Stage::Waiting(_) => None,
        }
    }

    /// Whether it holds, and the stamp of the commit that it is in decides its token or its end.
    pub fn is_open(&self) -> bool {
        let is_open = |ends: Expiry| ends.after_stamp().is_some();
        let kept = |holding: &Holding| holding.kept.map(|kept| kept.ends);
        self.holding().is_some_and(|holding| {
            holding.token.ordinal().is_some() || is_open(holding.ends) || kept(holding).is_some_and(is_open)
        })
    }

    /// The hold that it becomes, if it waits.
    pub fn waiting_for(&self) -> Option<&Hold> {
        match &self.stage {
            Stage::Waiting(waiting) => Some(&waiting.hold),
            Stage::Holding(_) => None,
        }
    }

    /// The hold of this id, which it has or becomes.
    pub fn hold(&self, id: &ClaimId) -> Option<&Hold> {
        let holds = self.holding().map_or([].as_slice(), |holding| &holding.holds);
        self.waiting_for().into_iter().chain(holds).find(|hold| hold.id == *id)
    }

    /// How many places it takes in the limits of its store: one for each hold, and one without any.
    pub fn places(&self) -> usize {
        self.holding().map_or(1, |holding| holding.holds.len().max(1))
    }

    /// The ids by which calls may look for this claim.
    pub fn hold_ids(&self) -> impl Iterator<Item = ClaimId> + '_ {
        let (one, many) = match &self.stage {
            Stage::Waiting(waiting) => (Some(waiting.hold.id), [].as_slice()),
            Stage::Holding(holding) => (None, holding.holds.as_slice()),
        };
        one.into_iter().chain(many.iter().map(|hold| hold.id))
    }

    pub(super) fn hold_mut(&mut self, id: &ClaimId) -> Option<&mut Hold> {
        self.holding_mut()?.holds.iter_mut().find(|hold| hold.id == *id)
    }

    /// The lease of the hold with this secret.
    pub(super) fn grant(&self, holding: &Holding, secret: Secret, times: (Duration, Duration)) -> Grant {
        let holds = holding.holds.len();
        self.terms.grant((self.id, secret), holding.token, times, holds)
    }

    /// The claim as inspections show it while it holds; `now` is a time on the lock's clock.
    pub fn holder(&self, now: Duration) -> Option<Holder> {
        let holding = self.holding()?;
        let (remaining, holds) = (holding.ends.remaining(now), holding.holds.len());
        Some(self.terms.holder(self.id, holding.token, remaining, holds))
    }

    pub(super) fn waiter(&self) -> Option<Waiter> {
        self.waiting_for().map(|_| self.terms.waiter(self.id))
    }
}
