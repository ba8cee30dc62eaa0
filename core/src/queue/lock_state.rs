//! The queue of one lock: claims in queue order, and their prefix of eligible claims, maintained
//! incrementally.

use std::time::{Duration, SystemTime};

use crate::claim::{Holder, Prefix, Queue};
use crate::name::{ClaimId, FencingToken, Kind, LeaseKey, Mode};
use crate::queue::claim::{Claim, Hold, Holding, ReplicaId, Stage, Waiting};
use crate::queue::expiry::Expiry;
use crate::queue::step::{InspectLimit, NewClaim, QueuePosition};

mod claims;
mod index;

use self::claims::Claims;
use self::index::Index;

/// The queue of one lock.
///
/// Claims are numbered in the order of their arrival. All claims below `edge` are within the
/// prefix, and all waiters below `notified` have been notified of that.
#[derive(Debug, Clone, Default)]
pub struct LockState {
    claims: Claims,
    index: Index,
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
    /// The queue with these claims at these positions, whose [`Self::tail`] and [`Self::notified`] were these. The rest
    /// follows from the claims.
    pub fn restored(claims: impl IntoIterator<Item = (u64, Claim)>, tail: u64, notified: u64) -> Self {
        let mut state = Self {
            next: tail,
            notified,
            ..Self::default()
        };
        for (position, claim) in claims {
            state.insert(position, claim);
        }
        state.settle();
        state
    }

    /// Replaces the placeholders of a commit, which was stamped with this time of the lock's clock. `token` is called with
    /// each placeholder and returns the token.
    pub fn resolve(&mut self, stamp: Duration, mut token: impl FnMut(FencingToken) -> FencingToken) {
        let open = self.claims.iter().filter(|(_, claim)| claim.is_open());
        let open: Vec<_> = open.map(|(position, _)| position).collect();
        for position in open {
            let Some(holding) = self.claims.get_mut(position).and_then(Claim::holding_mut) else {
                continue;
            };
            holding.ends = holding.ends.resolved(stamp);
            if let Some(kept) = &mut holding.kept {
                kept.ends = kept.ends.resolved(stamp);
            }
            if holding.token.ordinal().is_some() {
                let made = token(holding.token);
                let placeholder = std::mem::replace(&mut holding.token, made);
                self.index.replace_token(position, placeholder, made);
            }
        }
    }

    /// Whether the queue has no claim. A store may then forget the lock.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The number of claims.
    pub fn len(&self) -> usize {
        self.claims.len()
    }

    /// The places of all claims ([`Claim::places`]).
    pub fn places(&self) -> usize {
        self.index.places()
    }

    /// The number of claims that hold.
    pub fn holders(&self) -> usize {
        self.holders
    }

    /// The number of claims that wait.
    pub fn waiters(&self) -> usize {
        self.claims.len() - self.holders
    }

    /// The claim at this position.
    pub fn get(&self, position: u64) -> Option<&Claim> {
        self.claims.get(position)
    }

    /// A claim to change, but not its token nor the number of its holds. Only [`Self::hold`] may turn a waiter into a
    /// holder.
    pub(super) fn get_mut(&mut self, position: u64) -> Option<&mut Claim> {
        self.claims.get_mut(position)
    }

    /// All claims with their positions, in queue order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Claim)> {
        self.claims.iter()
    }

    /// The mode of a claim that cannot share the lock with `mode`.
    pub(super) fn mismatch(&self, mode: Mode) -> Option<Mode> {
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
    pub(super) fn admits(&self, mode: Mode) -> bool {
        self.prefix.len() == self.claims.len() && self.prefix.admits(mode)
    }

    /// The position of the next new claim.
    pub fn tail(&self) -> u64 {
        self.next
    }

    /// All waiters below this position have been notified that they are eligible.
    pub fn notified(&self) -> u64 {
        self.notified
    }

    /// The position of the claim with this hold.
    pub fn find(&self, id: &ClaimId) -> Option<u64> {
        self.index.find(&self.claims, id)
    }

    /// The position of the holder with this token.
    pub fn find_token(&self, token: FencingToken) -> Option<u64> {
        self.index.find_token(&self.claims, token)
    }

    /// The position of the holder that a lease is of, and the index of its hold.
    pub(super) fn find_hold(&self, lease: &LeaseKey) -> Option<(u64, usize)> {
        let position = self.find_token(lease.token)?;
        Some((position, self.hold_of(position, lease)?))
    }

    /// Appends a claim.
    pub(super) fn push(&mut self, claim: Claim) -> u64 {
        let position = self.next;
        self.insert(position, claim);
        position
    }

    /// Inserts a claim at its earlier position, when a queue is rebuilt.
    pub fn insert(&mut self, position: u64, claim: Claim) {
        self.count(&claim, 1);
        self.next = self.next.max(position + 1);
        self.claims.insert(position, claim);
        self.index.added(&self.claims, position);
    }

    /// Removes a claim.
    pub(super) fn remove(&mut self, position: u64) -> Option<Claim> {
        let claim = self.claims.remove(position)?;
        self.count(&claim, -1);
        self.index.removed(&claim);
        if position < self.edge {
            self.prefix.remove(claim.terms.mode);
        }
        Some(claim)
    }

    /// Adds a hold to the claim that holds at this position.
    pub(super) fn add_hold(&mut self, position: u64, hold: Hold) {
        if let Some(holding) = self.claims.get_mut(position).and_then(Claim::holding_mut) {
            let id = hold.id;
            holding.holds.push(hold);
            self.index.hold_added(&self.claims, position, id);
        }
    }

    /// Removes one hold of the claim at this position, which stays.
    pub(super) fn remove_hold(&mut self, position: u64, index: usize) -> Option<Hold> {
        let claim = self.claims.get_mut(position)?;
        let before = claim.places();
        let hold = claim.holding_mut()?.holds.swap_remove(index);
        let fewer = before - claim.places();
        self.index.hold_removed(hold.id, fewer);
        Some(hold)
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
    pub(super) fn settle(&mut self) {
        while let Some((position, claim)) = self.claims.range(self.edge..u64::MAX).next() {
            if !self.prefix.admits(claim.terms.mode) {
                return;
            }
            self.prefix.push(claim.terms.mode);
            self.edge = position + 1;
        }
    }

    /// Whether the claim at this position is within the prefix.
    pub(super) fn eligible(&self, position: u64) -> bool {
        position < self.edge
    }

    /// The eligible waiters that have not been notified yet. Marks them as notified.
    pub(super) fn take_newly_eligible(&mut self) -> Vec<(ReplicaId, ClaimId)> {
        let from = std::mem::replace(&mut self.notified, self.edge);
        if from >= self.edge {
            return Vec::new();
        }
        let newly_eligible = self.claims.range(from..self.edge);
        newly_eligible
            .filter_map(|(_, claim)| match &claim.stage {
                Stage::Waiting(waiting) => Some((waiting.replica, claim.id)),
                Stage::Holding(_) => None,
            })
            .collect()
    }

    /// Makes a waiting claim a holder.
    pub(super) fn hold(&mut self, position: u64, token: FencingToken, ends: Expiry, since: SystemTime, waited: bool) {
        let Some(claim) = self.claims.get_mut(position) else {
            return;
        };
        let Stage::Waiting(Waiting { hold, .. }) = &claim.stage else {
            return;
        };
        claim.terms.since = since;
        claim.stage = Stage::Holding(Holding {
            token,
            ends,
            span: hold.ttl,
            waited,
            holds: vec![hold.clone()],
            kept: None,
        });
        self.holders += 1;
        self.index.granted(position, token);
    }

    /// The holder that a reentrant call may join: it is reentrant and has the same owner and
    /// identity.
    pub(super) fn reentry_target(&self, new: &NewClaim) -> Option<u64> {
        if !new.reentrant || self.holders == 0 {
            return None;
        }
        self.claims
            .range(0..self.edge)
            .find(|(_, claim)| {
                let is_held = claim.holding().is_some_and(|holding| !holding.holds.is_empty());
                is_held && claim.terms.is_joined_by(new)
            })
            .map(|(position, _)| position)
    }

    /// The position of the waiter, and when the holder ahead of it expires.
    pub(super) fn ahead(&self, position: u64, now: Duration) -> QueuePosition {
        let first_end = self
            .claims
            .iter()
            .next()
            .and_then(|(_, claim)| claim.holding())
            .map(|holding| holding.ends);
        QueuePosition {
            position,
            frees_in: first_end.map(|ends| ends.remaining(now)),
        }
    }

    /// The first holder, if there is one; `now` is a time on the lock's clock.
    pub fn first_holder(&self, now: Duration) -> Option<Holder> {
        self.claims.range(0..self.edge).find_map(|(_, claim)| claim.holder(now))
    }

    /// The index of the hold that the lease names, in the claim at this position.
    fn hold_of(&self, position: u64, lease: &LeaseKey) -> Option<usize> {
        let claim = self.get(position)?;
        let holding = claim.holding()?;
        if claim.id != lease.claim || Kind::from(claim.terms.mode) != lease.kind || holding.token != lease.token {
            return None;
        }
        holding.holds.iter().position(|hold| hold.secret == lease.secret)
    }

    /// The queue with at most as many entries as `limit` allows.
    pub(super) fn view(&self, now: Duration, limit: InspectLimit) -> Queue {
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
