//! The queue of one lock: claims in queue order, and their prefix of eligible claims, maintained
//! incrementally.

use std::time::{Duration, SystemTime};

use crate::backend::{ClaimLimits, Grant, InspectLimit, NewClaim, QueuePosition};
use crate::claim::{ClaimLabels, Holder, Prefix, Queue, Waiter};
use crate::name::{CallId, ClaimId, FencingToken, Identity, Kind, LeaseKey, Metadata, Mode, Owner, Secret};

mod claims;

use self::claims::Claims;

/// One claim in a queue.
#[derive(Debug, Clone)]
pub struct Claim {
    pub id: ClaimId,
    pub owner: Owner,
    pub identity: Identity,
    pub mode: Mode,
    pub reentrant: bool,
    pub metadata: Metadata,
    pub limits: ClaimLimits,
    /// When it was granted; before that, when it arrived.
    pub since: SystemTime,
    pub stage: Stage,
}

/// The two stages of a claim's life.
#[derive(Debug, Clone)]
pub enum Stage {
    Waiting(Waiting),
    Holding(Holding),
}

/// A waiting claim, with the hold that it becomes.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub hold: Hold,
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

/// The part of one Acquire call in a claim.
#[derive(Debug, Clone)]
pub struct Hold {
    pub id: ClaimId,
    pub call: CallId,
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
    /// Who made it, and what it shows.
    pub fn labels(&self) -> ClaimLabels {
        ClaimLabels::of(&self.owner, &self.identity, &self.metadata)
    }

    pub fn waiting(new: &NewClaim, since: SystemTime) -> Self {
        Self {
            id: new.id,
            owner: new.owner.clone(),
            identity: new.identity.clone(),
            mode: new.mode,
            reentrant: new.reentrant,
            metadata: new.metadata.clone(),
            limits: new.limits,
            since,
            stage: Stage::Waiting(Waiting { hold: Hold::of(new) }),
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

    pub fn waiting_for(&self) -> Option<&Waiting> {
        match &self.stage {
            Stage::Waiting(waiting) => Some(waiting),
            Stage::Holding(_) => None,
        }
    }

    /// The ids by which calls may look for this claim.
    pub fn hold_ids(&self) -> impl Iterator<Item = ClaimId> + '_ {
        let (one, many) = match &self.stage {
            Stage::Waiting(waiting) => (Some(waiting.hold.id), [].as_slice()),
            Stage::Holding(holding) => (None, holding.holds.as_slice()),
        };
        one.into_iter().chain(many.iter().map(|hold| hold.id))
    }

    /// The first parameter that differs between this claim and a call with the same id.
    pub fn differs(&self, new: &NewClaim) -> Option<&'static str> {
        if self.mode != new.mode {
            Some("mode")
        } else if self.reentrant != new.reentrant {
            Some("reentrant")
        } else {
            None
        }
    }

    /// The lease of one of its holds.
    pub fn grant(&self, secret: Secret, now: Duration, waited: Duration) -> Option<Grant> {
        let holding = self.holding()?;
        Some(Grant {
            claim: self.id,
            kind: self.mode.into(),
            secret,
            token: holding.token,
            owner: self.owner.clone(),
            ttl: holding.ends.saturating_sub(now),
            waited,
            holds: u32::try_from(holding.holds.len()).unwrap_or(u32::MAX),
        })
    }

    pub fn holder(&self, now: Duration) -> Option<Holder> {
        let holding = self.holding()?;
        Some(Holder {
            claim: self.id,
            owner: self.owner.clone(),
            identity: self.identity.clone(),
            mode: self.mode,
            token: holding.token,
            remaining: holding.ends.saturating_sub(now),
            holds: u32::try_from(holding.holds.len()).unwrap_or(u32::MAX),
            metadata: self.metadata.clone(),
            since: self.since,
        })
    }

    fn waiter(&self) -> Option<Waiter> {
        self.waiting_for()?;
        Some(Waiter {
            claim: self.id,
            owner: self.owner.clone(),
            identity: self.identity.clone(),
            mode: self.mode,
            metadata: self.metadata.clone(),
            since: self.since,
        })
    }
}

/// The queue of one lock.
///
/// Claims are numbered in the order of their arrival. All claims below `edge` are within the
/// prefix, and all waiters below `notified` have been notified of that.
#[derive(Debug, Default)]
pub struct Lock {
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

impl Lock {
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
            .map(|(_, claim)| claim.mode)
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
            self.prefix.remove(claim.mode);
        }
        Some(claim)
    }

    fn count(&mut self, claim: &Claim, by: isize) {
        let add = |n: &mut usize| *n = n.wrapping_add_signed(by);
        match claim.mode {
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
            if !self.prefix.admits(claim.mode) {
                return;
            }
            self.prefix.push(claim.mode);
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
        let Stage::Waiting(waiting) = &claim.stage else { return };
        claim.since = since;
        claim.stage = Stage::Holding(Holding {
            token,
            ends,
            span: waiting.hold.ttl,
            waited,
            holds: vec![waiting.hold.clone()],
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
            .find(|(_, claim)| {
                claim.reentrant
                    && claim.owner == new.owner
                    && claim.identity == new.identity
                    && claim.holding().is_some()
            })
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
        if claim.id != lease.claim || Kind::from(claim.mode) != lease.kind || holding.token != lease.token {
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
