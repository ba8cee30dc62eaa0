//! The protocol of the etcd backend on one lock: calls of two replicas, a claim and its retry, and others; transactions
//! that come late or never, answers that are lost, leases that are used again or end, sessions that end.
//!
//! A claim's keys end in a suffix of its replica's session, and are used again once the claim is over. A claim of a
//! call with a request id has a record at `request/<id>`, written in the same transactions, which says where it is. So a
//! retry finds its claim by that record, and every condition but the guards is on one key.
//!
//! Renewal, a change of lease and re-entry are in `renewal`, the base of the tokens in `tokens`, and views that lag behind
//! the store in `views`.

use crate::explorer::{Model, Walked, walk};

mod calls;
mod conditions;
mod effects;
mod events;
mod renewal;
mod requests;
mod store;
mod tokens;
mod views;

use calls::{Call, Stage};
use conditions::{Condition, StepKind};
use store::{Lease, Store};

/// A way to break the protocol; the walk must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    None,
    /// A step lacks one of its conditions.
    Without(StepKind, Condition),
    /// A grant to a call whose own claim waits asks neither for its session nor for its mark. (It need not.)
    NoFenceOfOwn,
    /// An adoption of a waiter leaves the record of its request on the earlier session.
    AdoptionLeavesTheRequest,
    /// A promotion leaves the record of its request on the session.
    PromotionLeavesTheRequest,
    /// An undo of a waiter leaves the record of its request.
    UndoLeavesTheRequest,
    /// The record of a request ends before the lease of its holder.
    MemoryEndsFirst,
    /// The record of an ended request is deleted without a look at what it is by now.
    ForgetsBlindly,
    /// An expiry is noted without a look at what the record is by now.
    NotesExpiryBlindly,
    /// What is under the key suffix that a request names counts as its claim.
    TrustsTheSuffix,
    /// The key suffix that a request names is read without the record itself.
    TrustsTheRequest,
    /// A release ends what is under the key suffix of its lease.
    ReleasesTheSuffix,
    /// A key suffix is free when its call is over, whatever is there.
    FreesWhatWasAdopted,
    /// Two steps that write one request's record count as writing different keys.
    RequestsAreNotWritten,
    /// Two steps that grant share a request.
    TwoGrantsShare,
    /// An undo looks first, and marks last.
    MarksLast,
    /// A call is undone without a mark, whatever of it is still under way.
    NeverMarks,
    /// An undo removes the claim whoever has adopted it.
    UndoIgnoresAdoption,
    /// An undo removes the claim whichever call waits for it.
    UndoIgnoresCall,
    /// The lease of a step of unknown outcome is revoked at once.
    RevokesAfterUnknown,
    /// The lease of a step of unknown outcome is used again.
    PoolsAfterUnknown,
    /// The lease of a hold that was taken back is used again although a step of unknown outcome named it.
    PoolsTakenBack,
    /// A call that has left revokes its leases of unknown outcome although another call has found its hold.
    RevokesAdopted,
    /// A used lease gets no keep-alive before its grant counts.
    NoKeepAlive,
    /// A used lease gets none for a whole TTL after its last one.
    KeepAliveTooLate,
}

/// How a claim shares the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Exclusive,
    Semaphore,
    Reader,
}

/// A claim: how it shares, its permits, and whether its calls have a request id.
pub type Claim = (Kind, u8, bool);

/// What takes part.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub flaw: Flaw,
    pub claims: &'static [Claim],
    /// Each call: its claim, its replica.
    pub calls: &'static [(u8, u8)],
    /// By claim: the limit of its permits.
    pub limits: &'static [u8],
    /// Whether the ends of claims are remembered.
    pub remembers: bool,
    /// How often an answer may be lost.
    pub losses: u8,
    /// How often a session may end.
    pub ends: u8,
    /// How often a TTL may pass, or a lease end.
    pub times: u8,
    /// How often the record of an ended request may end.
    pub forgets: u8,
    pub leases: usize,
}

impl World {
    pub fn kind(&self, claim: u8) -> Kind {
        self.claims[usize::from(claim)].0
    }

    /// Whether the permits of these claims fit in the smallest of their limits.
    pub fn fit(&self, claims: impl Iterator<Item = u8>) -> bool {
        let (used, limit) = claims.map(usize::from).fold((0, u8::MAX), |(used, limit), claim| {
            (used + self.claims[claim].1, limit.min(self.limits[claim]))
        });
        used <= limit
    }

    pub fn is_retryable(&self, claim: u8) -> bool {
        self.claims[usize::from(claim)].2
    }
}

/// One state of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub store: Store,
    pub calls: Vec<Call>,
    /// By claim: the lease that its client counts on.
    pub believes: Vec<Option<u8>>,
    /// By claim: its client has given it back.
    pub over: Vec<bool>,
    /// By claim: a hold of it has been released, or has expired.
    pub ended: Vec<bool>,
    /// By replica: the leases to be used again.
    pub pools: Vec<Vec<u8>>,
    /// By replica: the key suffixes of its session that may not be used for another claim.
    pub used: Vec<Vec<u8>>,
    pub losses: u8,
    pub ends: u8,
    pub times: u8,
    pub forgets: u8,
    /// What went wrong on the way here.
    pub wrong: Option<&'static str>,
}

type Running = crate::explorer::Running<World, State>;

impl Model for Running {
    type Event = events::Event;

    fn next(&self) -> Vec<(events::Event, Self)> {
        let world = self.world;
        let next = events::next(&world, &self.state);
        let settled = next.into_iter().map(|(what, mut state)| {
            events::settle(&world, &mut state);
            state.store.renumber(&mut state.calls);
            (what, Self { world, state })
        });
        settled.collect()
    }

    fn wrong(&self) -> Option<&'static str> {
        let (world, state) = (&self.world, &self.state);
        let store = &state.store;
        let kept = |claim: usize, lease: u8| {
            let mut holders = store.holders.iter();
            holders.any(|holder| holder.claim == claim as u8 && holder.lease == lease)
        };
        let believed: Vec<_> = state
            .believes
            .iter()
            .enumerate()
            .filter_map(|(claim, lease)| Some((claim, (*lease)?)))
            .collect();
        let fit = world.fit(believed.iter().map(|(claim, _)| *claim as u8));
        let kinds = |kind| believed.iter().any(|(claim, _)| world.kind(*claim as u8) == kind);
        let left = |call: u8| state.calls[usize::from(call)].stage == Stage::Left;
        let behind = store.waiters.iter().any(|waiter| left(waiter.call))
            || store.holders.iter().any(|holder| left(holder.call) && !holder.adopted);
        if let Some(wrong) = state.wrong {
            Some(wrong)
        } else if !believed.iter().all(|(claim, lease)| kept(*claim, *lease)) {
            Some("the lock was taken from a client that counts on it")
        } else if !fit {
            Some("more believe that they hold than fit")
        } else if kinds(Kind::Reader) && kinds(Kind::Semaphore) {
            Some("readers hold beside semaphore claims")
        } else if behind {
            Some("a call that had left has a claim")
        } else {
            conditions::misplaced(world, state)
        }
    }
}

fn explore(world: World) -> Walked {
    let call = |(claim, replica): &(u8, u8)| Call {
        claim: *claim,
        replica: *replica,
        stage: Stage::Wants,
        own: None,
        at: None,
        queued: None,
        stale: false,
        uncovered: false,
        late: Vec::new(),
        lost: Vec::new(),
        adopted: false,
    };
    let state = State {
        store: Store {
            leases: vec![Lease::Unborn; world.leases],
            sessions: vec![0; 2],
            requests: vec![None; world.claims.len()],
            ..Store::default()
        },
        calls: world.calls.iter().map(call).collect(),
        believes: vec![None; world.claims.len()],
        over: vec![false; world.claims.len()],
        ended: vec![false; world.claims.len()],
        pools: vec![Vec::new(); 2],
        used: vec![Vec::new(); 2],
        losses: world.losses,
        ends: world.ends,
        times: world.times,
        forgets: world.forgets,
        wrong: None,
    };
    walk(Running { world, state }, 4_000_000)
}

#[cfg(test)]
mod worlds;
