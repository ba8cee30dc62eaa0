//! The protocol of the etcd backend on one lock: calls of two replicas, a claim and its retry, and
//! others; transactions that come late or never, answers that are lost, leases that are used again
//! or end, sessions that end.
//!
//! Renewal, a change of lease and re-entry are in `renewal`, the base of the tokens in `tokens`, and views that
//! lag behind the store in `views`. The guard over the holders matters to newcomers; in a take-up alone it is
//! redundant in these worlds, for steps are judged by the very revision of the waiter's key.

use crate::explorer::{Model, Walked, walk};

mod deciding;
mod renewal;
mod requests;
mod steps;
mod store;
mod tokens;
mod transactions;
mod views;

use steps::{Call, Stage};
use store::{Lease, Store};

/// A way to break the protocol; the walk must notice each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    None,
    /// An undo removes the claim whoever has adopted it.
    UndoIgnoresAdoption,
    /// A call that leaves marks only what it does not find.
    MarksOnlyAbsent,
    /// The lease of a step of unknown outcome is revoked at once.
    RevokesAfterUnknown,
    /// The lease of a step of unknown outcome is used again.
    PoolsAfterUnknown,
    /// A used lease gets no sign of life before its grant counts.
    NoSignOfLife,
    /// Two newcomers that may be granted go together in one request.
    TwoGrantsInOneBatch,
    /// A newcomer is appended in the request that grants its own retry at once.
    TailsBesideNewcomers,
    /// A cancel mark goes in one request with the step that it is to keep out.
    MarksShare,
    /// An undo takes the place of a claim whichever call waits for it.
    UndoIgnoresCall,
    /// An undo takes out what is at its key, though that was written since.
    RemovesUnseen,
    /// Whoever is granted does not look at the holders in the same step.
    NoGuard,
    /// Steps are not bound to the session that they were sent under.
    NoSession,
    /// A call that leaves marks nothing, whatever of it is still under way.
    NeverMarks,
    /// The lease of a hold that was taken back is used again although a step of unknown outcome named it.
    PoolsTakenBack,
    /// A call that has left revokes its leases of unknown outcome although another call has found its hold.
    RevokesAdopted,
}

/// What takes part.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub flaw: Flaw,
    /// Each call: its claim, its replica.
    pub calls: &'static [(u8, u8)],
    /// How many permits of the limit each claim takes.
    pub permits: &'static [u8],
    pub limit: u8,
    /// How often an answer may be lost.
    pub losses: u8,
    /// How often a session may end.
    pub ends: u8,
    /// How often a TTL may pass, or a lease end.
    pub times: u8,
    pub leases: usize,
}

impl World {
    pub fn permits_of(&self, claim: u8) -> u8 {
        self.permits[usize::from(claim)]
    }

    /// A lock of one permit is held exclusively, the others are semaphores.
    pub fn is_exclusive(&self) -> bool {
        self.limit == 1
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
    pub given_back: Vec<bool>,
    /// By replica: the leases to be used again, and how many sessions have ended.
    pub pools: Vec<Vec<u8>>,
    pub losses: u8,
    pub ends: u8,
    pub times: u8,
    /// What went wrong on the way here.
    pub wrong: Option<&'static str>,
}

#[derive(Clone)]
struct Running {
    world: World,
    state: State,
}

impl std::hash::Hash for Running {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.state.hash(state);
    }
}

impl Model for Running {
    type Event = steps::Event;

    fn next(&self) -> Vec<(steps::Event, Self)> {
        let world = self.world;
        let next = steps::next(&world, &self.state);
        let settled = next.into_iter().map(|(what, mut state)| {
            steps::forget(&world, &mut state);
            state.store.renumber(&mut state.calls);
            (what, Self { world, state })
        });
        settled.collect()
    }

    fn wrong(&self) -> Option<&'static str> {
        let state = &self.state;
        if let Some(wrong) = state.wrong {
            return Some(wrong);
        }
        let waits = |claim| state.store.waiter(claim).is_some();
        if state.store.holders.iter().any(|holder| waits(holder.claim)) {
            return Some("a claim waits behind itself");
        }
        let mut held = 0;
        for (claim, lease) in state.believes.iter().enumerate() {
            let Some(lease) = lease else { continue };
            held += self.world.permits_of(claim as u8);
            let kept = state
                .store
                .holders
                .iter()
                .any(|holder| holder.claim == claim as u8 && holder.lease == *lease);
            if !kept {
                return Some("the lock was taken from a client that counts on it");
            }
        }
        (held > self.world.limit).then_some("more believe that they hold than fit")
    }
}

fn explore(world: World) -> Walked {
    let claims = usize::from(world.calls.iter().map(|(claim, _)| *claim).max().expect("a call")) + 1;
    let call = |(claim, replica): &(u8, u8)| Call {
        claim: *claim,
        replica: *replica,
        stage: Stage::Wants,
        queued: None,
        stale: false,
        late: Vec::new(),
        lost: Vec::new(),
        adopted: false,
    };
    let state = State {
        store: Store {
            leases: vec![Lease::Unborn; world.leases],
            sessions: vec![0; 2],
            ..Store::default()
        },
        calls: world.calls.iter().map(call).collect(),
        believes: vec![None; claims],
        given_back: vec![false; claims],
        pools: vec![Vec::new(); 2],
        losses: world.losses,
        ends: world.ends,
        times: world.times,
        wrong: None,
    };
    walk(Running { world, state }, 4_000_000)
}

/// A claim with a retry on the other replica.
const RETRIED: World = World {
    flaw: Flaw::None,
    calls: &[(0, 0), (0, 1)],
    permits: &[1, 1, 1],
    limit: 1,
    losses: if cfg!(feature = "soak") { 2 } else { 1 },
    ends: 0,
    times: 2,
    leases: 3,
};

/// The same with another claim beside it.
const BESIDE: World = World {
    calls: &[(0, 0), (0, 1), (1, 1)],
    losses: 1,
    times: 0,
    ..RETRIED
};

/// A claim, and another one whose retry comes to the same replica while it is on its way.
const CROWDED: World = World {
    calls: &[(0, 0), (1, 0), (1, 0)],
    ..BESIDE
};

/// Three claims, two of one replica, which may hand over.
const HANDED: World = World {
    calls: &[(0, 0), (1, 0), (2, 1)],
    ..BESIDE
};

#[test]
fn a_claim_and_its_retry_are_safe() {
    explore(RETRIED).is_sound(1_000);
}

#[test]
fn a_claim_and_its_retry_beside_another_are_safe() {
    explore(BESIDE).is_sound(1_000);
}

#[test]
fn hand_overs_are_safe() {
    explore(HANDED).is_sound(1_000);
}

#[test]
fn newcomers_and_their_retries_that_share_requests_are_safe() {
    explore(CROWDED).is_sound(1_000);
    let semaphore = World {
        permits: &[1, 2],
        limit: 2,
        ..CROWDED
    };
    explore(semaphore).is_sound(1_000);
}

#[test]
fn leases_that_end_and_are_used_again_are_safe() {
    explore(World {
        calls: &[(0, 0), (1, 0)],
        ..RETRIED
    })
    .is_sound(1_000);
}

#[test]
fn sessions_that_end_are_safe() {
    explore(World { ends: 1, ..RETRIED }).is_sound(1_000);
}

#[test]
fn two_permits_of_three_claims_are_safe() {
    explore(World { limit: 2, ..HANDED }).is_sound(1_000);
}

#[test]
fn a_semaphore_claim_of_all_permits_between_small_ones_is_safe() {
    explore(World {
        permits: &[1, 2, 1],
        limit: 2,
        ..HANDED
    })
    .is_sound(1_000);
}

#[test]
fn small_semaphore_claims_beside_a_larger_one_are_safe() {
    explore(World {
        permits: &[2, 1, 1],
        limit: 3,
        ..HANDED
    })
    .is_sound(1_000);
}

#[test]
fn an_undo_that_ignores_the_call_is_noticed() {
    let flaw = Flaw::UndoIgnoresCall;
    explore(World { flaw, ..BESIDE }).is_noticed("a place was taken");
}

#[test]
fn an_undo_that_takes_out_what_it_does_not_know_is_noticed() {
    let flaw = Flaw::RemovesUnseen;
    explore(World { flaw, ..BESIDE }).is_noticed("a place was taken");
}

#[test]
fn grants_without_the_guard_over_the_holders_are_noticed() {
    let flaw = Flaw::NoGuard;
    explore(World { flaw, ..HANDED }).is_noticed("than fit");
    let semaphore = World {
        flaw,
        permits: &[1, 2, 1],
        limit: 2,
        ..HANDED
    };
    explore(semaphore).is_noticed("than fit");
}

#[test]
fn an_undo_that_ignores_adoption_is_noticed() {
    let flaw = Flaw::UndoIgnoresAdoption;
    explore(World { flaw, ..RETRIED }).is_noticed("counts on it");
}

#[test]
fn marks_only_for_what_is_absent_are_noticed() {
    let flaw = Flaw::MarksOnlyAbsent;
    explore(World { flaw, ..RETRIED }).is_noticed("took effect");
}

#[test]
fn calls_that_never_mark_are_noticed() {
    let flaw = Flaw::NeverMarks;
    explore(World { flaw, ..RETRIED }).is_noticed("took effect");
}

#[test]
fn a_lease_of_unknown_outcome_used_again_after_a_take_back_is_noticed() {
    let flaw = Flaw::PoolsTakenBack;
    let calls = &[(0, 0), (1, 0)];
    explore(World { flaw, calls, ..RETRIED }).is_noticed("counts on it");
}

#[test]
fn a_lease_revoked_that_another_call_has_found_is_noticed() {
    let flaw = Flaw::RevokesAdopted;
    explore(World { flaw, ..RETRIED }).is_noticed("counts on it");
}

#[test]
fn a_lease_revoked_after_an_unknown_outcome_is_noticed() {
    let flaw = Flaw::RevokesAfterUnknown;
    explore(World { flaw, ..RETRIED }).is_noticed("counts on it");
}

#[test]
fn a_lease_used_again_after_an_unknown_outcome_is_noticed() {
    let flaw = Flaw::PoolsAfterUnknown;
    let world = World {
        flaw,
        limit: 2,
        ..HANDED
    };
    explore(world).is_noticed("two claims on one lease");
}

#[test]
fn a_used_lease_without_a_sign_of_life_is_noticed() {
    let flaw = Flaw::NoSignOfLife;
    let calls = &[(0, 0), (1, 0)];
    explore(World { flaw, calls, ..RETRIED }).is_noticed("counts on it");
}

#[test]
fn two_grants_in_one_batch_are_noticed() {
    let flaw = Flaw::TwoGrantsInOneBatch;
    explore(World { flaw, ..HANDED }).is_noticed("than fit");
}

#[test]
fn a_newcomer_in_the_request_that_grants_its_retry_is_noticed() {
    let flaw = Flaw::TailsBesideNewcomers;
    explore(World { flaw, ..CROWDED }).is_noticed("behind itself");
}

#[test]
fn a_mark_in_one_request_with_what_it_keeps_out_is_noticed() {
    let flaw = Flaw::MarksShare;
    explore(World { flaw, ..CROWDED }).is_noticed("took effect");
}

#[test]
fn steps_that_outlive_their_session_are_noticed() {
    let flaw = Flaw::NoSession;
    let calls = &[(0, 0), (0, 1), (1, 0)];
    let world = World {
        flaw,
        calls,
        ends: 1,
        ..RETRIED
    };
    explore(world).is_noticed("took effect");
}
