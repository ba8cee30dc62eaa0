//! The queue of one lock: claims in queue order, and their prefix of eligible claims, maintained
//! incrementally.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::claim::{Holder, Prefix, Queue, Waiter};
use crate::name::{CallId, ClaimId, FencingToken, Kind, LeaseKey, Mode, Secret};
use crate::queue::claim_terms::{ClaimTerms, id};
use crate::queue::{ClaimLimits, Grant, InspectLimit, NewClaim, QueuePosition};

mod claims;

use self::claims::Claims;

/// One claim in a queue.
#[derive(Debug, Clone)]
pub struct Claim {
    pub id: ClaimId,
    pub terms: ClaimTerms,
    pub limits: ClaimLimits,
    pub stage: Stage,
}

/// The two stages of a claim's life.
#[derive(Debug, Clone)]
pub enum Stage {
    /// With the hold that it becomes.
    Waiting(Hold),
    Holding(Holding),
}

/// A claim that holds the lock.
#[derive(Debug, Clone)]
pub struct Holding {
    pub token: FencingToken,
    /// When the lease expires, on the store's clock.
    pub ends: Duration,
    /// The lease time after a restart: never less than the time that any client still relies on.
    pub span: Duration,
    /// Whether it waited in the queue before it held.
    pub waited: bool,
    pub holds: Vec<Hold>,
}

/// The part of one Acquire call in a claim. The file has the fields in this order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hold {
    #[serde(with = "id")]
    pub id: ClaimId,
    #[serde(with = "id")]
    pub call: CallId,
    #[serde(with = "id")]
    pub secret: Secret,
    pub retryable: bool,
    /// The TTL that it was last given.
    pub ttl: Duration,
    /// Whether a retry has found it; then its call no longer undoes it.
    pub adopted: bool,
}

impl Hold {
    pub fn of(claim: &NewClaim) -> Self {
        Self {
            id: claim.id,
            call: claim.call,
            secret: claim.secret,
            retryable: claim.retryable,
            ttl: claim.ttl.get(),
            adopted: false,
        }
    }
}

impl Claim {
    pub fn waiting(new: &NewClaim, since: SystemTime) -> Self {
        Self {
            id: new.id,
            terms: ClaimTerms::of(new, since),
            limits: new.limits,
            stage: Stage::Waiting(Hold::of(new)),
        }
    }

    pub fn holding(&self) -> Option<&Holding> {
        match &self.stage {
            Stage::Holding(holding) => Some(holding),
            Stage::Waiting(_) => None,
        }
    }

    pub fn holding_mut(&mut self) -> Option<&mut Holding> {
        match &mut self.stage {
            Stage::Holding(holding) => Some(holding),
            Stage::Waiting(_) => None,
        }
    }

    /// The hold that it becomes, if it waits.
    pub fn waiting_for(&self) -> Option<&Hold> {
        match &self.stage {
            Stage::Waiting(hold) => Some(hold),
            Stage::Holding(_) => None,
        }
    }

    /// The ids by which calls may look for this claim.
    pub fn hold_ids(&self) -> impl Iterator<Item = ClaimId> + '_ {
        let (one, many) = match &self.stage {
            Stage::Waiting(hold) => (Some(hold.id), [].as_slice()),
            Stage::Holding(holding) => (None, holding.holds.as_slice()),
        };
        one.into_iter().chain(many.iter().map(|hold| hold.id))
    }

    /// The lease of one of its holds.
    pub fn grant(&self, secret: Secret, now: Duration, waited: Duration) -> Option<Grant> {
        let holding = self.holding()?;
        let times = (holding.ends.saturating_sub(now), waited);
        let holds = holding.holds.len();
        Some(self.terms.grant((self.id, secret), holding.token, times, holds))
    }

    pub fn holder(&self, now: Duration) -> Option<Holder> {
        let holding = self.holding()?;
        let remaining = holding.ends.saturating_sub(now);
        Some(
            self.terms
                .holder(self.id, holding.token, remaining, holding.holds.len()),
        )
    }

    fn waiter(&self) -> Option<Waiter> {
        self.waiting_for().map(|_| self.terms.waiter(self.id))
    }
}

/// The queue of one lock.
///
/// Claims are numbered in the order of their arrival. All claims below `edge` are within the
/// prefix, and all waiters below `notified` have been notified of that.
#[derive(Debug, Default)]
pub struct LockState {
    claims: Claims,
    prefix: Prefix,
    edge: u64,
    notified: u64,
    next: u64,
    holders: usize,
    /// The number of shared claims, and of semaphore claims; only one of them is not 0.
    shared: usize,
    semaphores: usize,
}

impl LockState {
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    pub fn len(&self) -> usize {
        self.claims.len()
    }

    pub fn holders(&self) -> usize {
        self.holders
    }

    pub fn waiters(&self) -> usize {
        self.claims.len() - self.holders
    }

    pub fn get(&self, position: u64) -> Option<&Claim> {
        self.claims.get(position)
    }

    /// A claim to change. Only [`Self::hold`] may turn a waiter into a holder.
    pub fn get_mut(&mut self, position: u64) -> Option<&mut Claim> {
        self.claims.get_mut(position)
    }

    /// All claims with their positions, in queue order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Claim)> {
        self.claims.iter()
    }

    /// The mode of a claim that cannot share the lock with `mode`.
    pub fn mismatch(&self, mode: Mode) -> Option<Mode> {
        let others = match mode {
            Mode::Exclusive => 0,
            Mode::Shared => self.semaphores,
            Mode::Semaphore { .. } => self.shared,
        };
        if others == 0 {
            return None;
        }
        self.claims
            .iter()
            .map(|(_, claim)| claim.terms.mode)
            .find(|there| !there.mixes(mode))
    }

    /// Whether a new claim of this mode would hold at once.
    pub fn admits(&self, mode: Mode) -> bool {
        self.prefix.len() == self.claims.len() && self.prefix.admits(mode)
    }

    /// The position of the next new claim.
    pub fn tail(&self) -> u64 {
        self.next
    }

    /// Appends a claim.
    pub fn push(&mut self, claim: Claim) -> u64 {
        let position = self.next;
        self.insert(position, claim);
        position
    }

    /// Inserts a claim at its earlier position, when a queue is rebuilt.
    pub fn insert(&mut self, position: u64, claim: Claim) {
        self.count(&claim, 1);
        self.next = self.next.max(position + 1);
        self.claims.insert(position, claim);
    }

    /// Removes a claim.
    pub fn remove(&mut self, position: u64) -> Option<Claim> {
        let claim = self.claims.remove(position)?;
        self.count(&claim, -1);
        if position < self.edge {
            self.prefix.remove(claim.terms.mode);
        }
        Some(claim)
    }

    fn count(&mut self, claim: &Claim, by: isize) {
        let add = |n: &mut usize| *n = n.wrapping_add_signed(by);
        match claim.terms.mode {
            Mode::Exclusive => {}
            Mode::Shared => add(&mut self.shared),
            Mode::Semaphore { .. } => add(&mut self.semaphores),
        }
        if claim.holding().is_some() {
            add(&mut self.holders);
        }
    }

    /// Extends the prefix over the claims that fit now.
    pub fn settle(&mut self) {
        while let Some((position, claim)) = self.claims.range(self.edge..u64::MAX).next() {
            if !self.prefix.admits(claim.terms.mode) {
                return;
            }
            self.prefix.push(claim.terms.mode);
            self.edge = position + 1;
        }
    }

    /// Whether the claim at this position is within the prefix.
    pub fn eligible(&self, position: u64) -> bool {
        position < self.edge
    }

    /// The eligible waiters that have not been notified yet. Marks them as notified.
    pub fn take_newly_eligible(&mut self) -> Vec<ClaimId> {
        let from = std::mem::replace(&mut self.notified, self.edge);
        if from >= self.edge {
            return Vec::new();
        }
        let newly_eligible = self.claims.range(from..self.edge);
        newly_eligible
            .filter(|(_, claim)| claim.waiting_for().is_some())
            .map(|(_, claim)| claim.id)
            .collect()
    }

    /// Makes a waiting claim a holder.
    pub fn hold(&mut self, position: u64, token: FencingToken, ends: Duration, since: SystemTime, waited: bool) {
        let Some(claim) = self.claims.get_mut(position) else {
            return;
        };
        let Stage::Waiting(hold) = &claim.stage else { return };
        claim.terms.since = since;
        claim.stage = Stage::Holding(Holding {
            token,
            ends,
            span: hold.ttl,
            waited,
            holds: vec![hold.clone()],
        });
        self.holders += 1;
    }

    /// The holder that a reentrant call may join: it is reentrant and has the same owner and
    /// identity.
    pub fn reentry_target(&self, new: &NewClaim) -> Option<u64> {
        if !new.reentrant || self.holders == 0 {
            return None;
        }
        self.claims
            .range(0..self.edge)
            .find(|(_, claim)| claim.terms.is_joined_by(new) && claim.holding().is_some())
            .map(|(position, _)| position)
    }

    /// The position of the waiter, and when the holder ahead of it expires.
    pub fn ahead(&self, position: u64, now: Duration) -> QueuePosition {
        let first_end = self
            .claims
            .iter()
            .next()
            .and_then(|(_, claim)| claim.holding())
            .map(|holding| holding.ends);
        QueuePosition {
            position,
            frees_in: first_end.map(|ends| ends.saturating_sub(now)),
        }
    }

    /// The first holder, if there is one.
    pub fn first_holder(&self, now: Duration) -> Option<Holder> {
        self.claims.range(0..self.edge).find_map(|(_, claim)| claim.holder(now))
    }

    /// The index of the hold that the lease names, in the claim at this position.
    pub fn hold_of(&self, position: u64, lease: &LeaseKey) -> Option<usize> {
        let claim = self.get(position)?;
        let holding = claim.holding()?;
        if claim.id != lease.claim || Kind::from(claim.terms.mode) != lease.kind || holding.token != lease.token {
            return None;
        }
        holding.holds.iter().position(|hold| hold.secret == lease.secret)
    }

    /// The queue with at most as many entries as `limit` allows.
    pub fn view(&self, now: Duration, limit: InspectLimit) -> Queue {
        let prefix = self.claims.range(0..self.edge).map(|(_, claim)| claim);
        let all = self.claims.iter().map(|(_, claim)| claim);
        Queue {
            holders: prefix
                .filter_map(|claim| claim.holder(now))
                .take(limit.holders)
                .collect(),
            waiters: all.filter_map(|claim| claim.waiter()).take(limit.waiters).collect(),
            holder_count: self.holders(),
            waiter_count: self.waiters(),
        }
    }
}
