//! The queue of one lock: claims in their order, and the prefix kept step by step.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::backend::{QueuePosition, ClaimLimits, Grant, InspectLimit, NewClaim};
use crate::claim::{Holder, Prefix, Queue, Waiter};
use crate::name::{CallId, ClaimId, FencingToken, Identity, Kind, LeaseKey, Metadata, Mode, Owner, Secret};

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
    /// When it was granted; before that, when it came.
    pub since: SystemTime,
    pub stage: Stage,
}

/// The two stages of a claim's life.
#[derive(Debug, Clone)]
pub enum Stage {
    Waiting(Waiting),
    Holding(Holding),
}

/// A claim that waits, for the hold that it is to be.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub hold: Hold,
}

/// A claim that holds.
#[derive(Debug, Clone)]
pub struct Holding {
    pub token: FencingToken,
    /// When it ends, on the store's clock.
    pub ends: Duration,
    /// What it is given after a restart: never less than what any client still counts on.
    pub span: Duration,
    /// It waited in the queue before it held.
    pub waited: bool,
    pub holds: Vec<Hold>,
}

/// One Acquire's share in a claim.
#[derive(Debug, Clone)]
pub struct Hold {
    pub id: ClaimId,
    pub call: CallId,
    pub secret: Secret,
    pub retryable: bool,
    /// What it was last given.
    pub ttl: Duration,
    /// A retry has found it: its call no longer undoes it.
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

    /// The ids by which calls may look for it.
    pub fn hold_ids(&self) -> impl Iterator<Item = ClaimId> + '_ {
        let (one, many) = match &self.stage {
            Stage::Waiting(waiting) => (Some(waiting.hold.id), [].as_slice()),
            Stage::Holding(holding) => (None, holding.holds.as_slice()),
        };
        one.into_iter().chain(many.iter().map(|hold| hold.id))
    }

    /// The first parameter in which a call with its id differs from it.
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
/// Claims are numbered in the order of their arrival; all below `edge` are within the prefix, and
/// all waiters below `told` know so.
#[derive(Debug, Default)]
pub struct Lock {
    claims: BTreeMap<u64, Box<Claim>>,
    prefix: Prefix,
    edge: u64,
    told: u64,
    next: u64,
    holders: usize,
    /// How many claims of each mode that excludes another are here.
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

    pub fn get(&self, place: u64) -> Option<&Claim> {
        self.claims.get(&place).map(AsRef::as_ref)
    }

    /// A claim to change; whether it waits or holds is changed by [`Self::hold`] alone.
    pub fn get_mut(&mut self, place: u64) -> Option<&mut Claim> {
        self.claims.get_mut(&place).map(AsMut::as_mut)
    }

    /// All claims with their places, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Claim)> {
        self.claims.iter().map(|(&place, claim)| (place, claim.as_ref()))
    }

    /// The mode of a claim with which this one cannot share the lock.
    pub fn mismatch(&self, mode: Mode) -> Option<Mode> {
        let against_shared = matches!(mode, Mode::Semaphore { .. }) && self.shared > 0;
        let against_semaphores = mode != Mode::Exclusive && self.semaphores > 0;
        if !against_shared && !against_semaphores {
            return None;
        }
        self.claims
            .values()
            .map(|claim| claim.mode)
            .find(|there| !there.mixes(mode))
    }

    /// Whether a new claim of this mode would hold at once.
    pub fn admits(&self, mode: Mode) -> bool {
        self.prefix.len() == self.claims.len() && self.prefix.admits(mode)
    }

    /// The place of the next one that comes.
    pub fn tail(&self) -> u64 {
        self.next
    }

    /// Puts a claim at the tail.
    pub fn push(&mut self, claim: Claim) -> u64 {
        let place = self.next;
        self.insert(place, claim);
        place
    }

    /// Puts a claim at its place of before, when a queue is made anew.
    pub fn insert(&mut self, place: u64, claim: Claim) {
        self.count(&claim, 1);
        self.next = self.next.max(place + 1);
        self.claims.insert(place, Box::new(claim));
    }

    /// Lets a claim leave.
    pub fn remove(&mut self, place: u64) -> Option<Claim> {
        let claim = *self.claims.remove(&place)?;
        self.count(&claim, -1);
        if place < self.edge {
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

    /// Lets the prefix grow over the claims that fit now.
    pub fn settle(&mut self) {
        while let Some((&place, claim)) = self.claims.range(self.edge..).next() {
            if !self.prefix.admits(claim.mode) {
                return;
            }
            self.prefix.push(claim.mode);
            self.edge = place + 1;
        }
    }

    /// Whether the claim at this place is within the prefix.
    pub fn eligible(&self, place: u64) -> bool {
        place < self.edge
    }

    /// The eligible waiters that have not been told yet; from now on they have.
    pub fn tell(&mut self) -> Vec<ClaimId> {
        let from = std::mem::replace(&mut self.told, self.edge);
        if from >= self.edge {
            return Vec::new();
        }
        let fresh = self.claims.range(from..self.edge);
        fresh
            .filter(|(_, claim)| claim.waiting_for().is_some())
            .map(|(_, claim)| claim.id)
            .collect()
    }

    /// Makes a waiting claim a holder.
    pub fn hold(&mut self, place: u64, token: FencingToken, ends: Duration, since: SystemTime, waited: bool) {
        let Some(claim) = self.claims.get_mut(&place) else {
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

    /// The holder that a reentrant call may join: reentrant, and of the same owner and identity.
    pub fn reentered(&self, new: &NewClaim) -> Option<u64> {
        if !new.reentrant || self.holders == 0 {
            return None;
        }
        self.claims
            .range(..self.edge)
            .find(|(_, claim)| {
                claim.reentrant
                    && claim.owner == new.owner
                    && claim.identity == new.identity
                    && claim.holding().is_some()
            })
            .map(|(&place, _)| place)
    }

    /// What the waiter at this place knows of those ahead.
    pub fn ahead(&self, place: u64, now: Duration) -> QueuePosition {
        let first_end = self
            .claims
            .values()
            .next()
            .and_then(|claim| claim.holding())
            .map(|holding| holding.ends);
        QueuePosition {
            position: place,
            frees_in: first_end.map(|ends| ends.saturating_sub(now)),
        }
    }

    /// The first holder, where one holds.
    pub fn first_holder(&self, now: Duration) -> Option<Holder> {
        self.claims.range(..self.edge).find_map(|(_, claim)| claim.holder(now))
    }

    /// Which hold of the claim at this place a lease names.
    pub fn hold_of(&self, place: u64, lease: &LeaseKey) -> Option<usize> {
        let claim = self.get(place)?;
        let holding = claim.holding()?;
        if claim.id != lease.claim || Kind::from(claim.mode) != lease.kind || holding.token != lease.token {
            return None;
        }
        holding.holds.iter().position(|hold| hold.secret == lease.secret)
    }

    /// The queue as others may see it, as much of it as `most` says.
    pub fn view(&self, now: Duration, most: InspectLimit) -> Queue {
        let prefix = self.claims.range(..self.edge).map(|(_, claim)| claim);
        let all = self.claims.values();
        Queue {
            holders: prefix
                .filter_map(|claim| claim.holder(now))
                .take(most.holders)
                .collect(),
            waiters: all.filter_map(|claim| claim.waiter()).take(most.waiters).collect(),
            holder_count: self.holders(),
            waiter_count: self.waiters(),
        }
    }
}
