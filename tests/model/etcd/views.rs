//! The views by which waiting claims are judged: each replica has one, which may lag behind the store by
//! any number of events, and hears of its own grants and ends before their events come.
//!
//! Readers are kept apart from the other holders, so a reader asks only that nothing else is there. A claim that is put
//! at the tail asks nothing of the modes: where calls race, a reader may wait beside semaphore claims.
//!
//! Calls, leases and lost answers are in the other rooms; here a claim may leave the queue and come again
//! under the same id, as a request does.

use self::rules::Kind::{Exclusive, Reader, Semaphore};
use self::rules::{Flaw, Key, Queue, World};
use crate::explorer::{Model, Walked, walk};

mod rules;

/// A step on its way, with what it was judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Acquire {
        seen: u8,
    },
    /// The first step of a reader, which has seen nothing.
    Read,
    Queue,
    Promote {
        waiter: Key,
        seen: u8,
    },
    Release {
        holder: Key,
    },
    HandOver {
        holder: Key,
        next: Key,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Outside,
    Sent(Step),
    Waits,
    Holds,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    store: Queue,
    /// By replica.
    views: [Queue; 2],
    /// Up to which revision each view has all holders, ahead of their events.
    known: [u8; 2],
    stages: Vec<Stage>,
    leaves: u8,
    wrong: Option<&'static str>,
}

type Running = crate::explorer::Running<World, State>;

#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "shown where something is wrong")]
enum Event {
    Comes(u8),
    ComesToRead(u8),
    Arrives(u8, Step),
    AsksToBePromoted(u8),
    Releases(u8),
    ReleasesWithTheNext(u8),
    LeavesTheQueue(u8),
    Sees(usize),
}

impl Running {
    fn to(&self, claim: u8, stage: Stage) -> Self {
        let mut after = self.clone();
        after.state.stages[usize::from(claim)] = stage;
        after
    }

    fn come(&self, claim: u8) -> Self {
        let (world, state) = (&self.world, &self.state);
        // A newcomer reads the lock, or asks for a free one; a view only tells it that others wait.
        let known = match world.flaw == Flaw::EntersByTheView {
            true => &state.views[world.replica(claim)],
            false => &state.store,
        };
        let fits = world.admits(known, claim);
        let all = known.holders.iter().chain(&known.waiters).map(|key| key.claim);
        if world.are_mixed(all.chain([claim])) {
            return self.clone();
        }
        let step = match fits {
            true => Step::Acquire { seen: known.revision },
            false => Step::Queue,
        };
        self.to(claim, Stage::Sent(step))
    }

    fn ask(&self, claim: u8) -> Option<Self> {
        let world = &self.world;
        let view = &self.state.views[world.replica(claim)];
        let next = world.next_without(view, None).find(|key| key.claim == claim);
        let blind = || {
            let unseen = view.waiter(claim).is_none() && view.waiters.is_empty();
            let fits = world.fit(view.holders.iter().map(|key| key.claim).chain([claim]));
            let own = self.state.store.waiter(claim);
            own.filter(|_| unseen && fits && world.flaw == Flaw::JudgesWhatItDoesNotSee)
        };
        let waiter = next.or_else(blind)?;
        let seen = view.revision.max(self.state.known[world.replica(claim)]);
        Some(self.to(claim, Stage::Sent(Step::Promote { waiter, seen })))
    }

    fn release(&self, claim: u8) -> Option<Self> {
        let holder = self.state.store.holder(claim)?;
        Some(self.to(claim, Stage::Sent(Step::Release { holder })))
    }

    /// With the first waiter of the same replica, where the view shows it alone after this holder.
    fn hand_over(&self, claim: u8) -> Option<Self> {
        let world = &self.world;
        let view = &self.state.views[world.replica(claim)];
        let holder = self.state.store.holder(claim)?;
        let others = view.holders.iter().any(|key| key.claim != claim);
        let next = world.next_without(view, Some(claim)).next()?;
        let served = world.replica(next.claim) == world.replica(claim)
            && self.state.stages[usize::from(next.claim)] == Stage::Waits;
        let step = Step::HandOver { holder, next };
        (served && !others).then(|| self.to(claim, Stage::Sent(step)))
    }

    fn holds(&self, claim: u8, step: Step) -> bool {
        let (world, store) = (&self.world, &self.state.store);
        let is_there = |waiter: Key| match world.flaw == Flaw::ComparesOnlyTheClaim {
            true => store.waiter(waiter.claim).is_some(),
            false => store.waiter(waiter.claim) == Some(waiter),
        };
        match step {
            Step::Acquire { seen } => {
                let free = match world.kind(claim) {
                    Exclusive => store.waiters.is_empty(),
                    _ => store.waiters.iter().all(|key| key.created <= seen),
                };
                free && world.is_guarded(store, claim, seen) || world.flaw == Flaw::EntersByTheView
            }
            Step::Read => {
                let passes = world.flaw == Flaw::ReadsBeforeWaiters;
                let apart = |key: &Key| world.kind(key.claim) == Reader;
                (passes || store.waiters.is_empty()) && store.holders.iter().all(apart)
            }
            Step::Queue => true,
            Step::Promote { waiter, seen } => is_there(waiter) && world.is_guarded(store, claim, seen),
            Step::Release { holder } => store.holder(claim) == Some(holder),
            Step::HandOver { holder, next } => is_there(next) && store.holders == [holder],
        }
    }

    fn arrive(&self, claim: u8, step: Step) -> Self {
        let met = self.holds(claim, step);
        let replica = self.world.replica(claim);
        let mut after = self.to(claim, Stage::Outside);
        if !met {
            let stage = match step {
                Step::Acquire { .. } | Step::Read | Step::Queue => Stage::Outside,
                Step::Promote { .. } => Stage::Waits,
                Step::Release { .. } | Step::HandOver { .. } => Stage::Holds,
            };
            return self.to(claim, stage);
        }
        let (granted, gone) = match step {
            Step::Promote { waiter, .. } => (Some(waiter.claim), None),
            Step::HandOver { holder, next } => (Some(next.claim), Some(holder)),
            Step::Release { holder } => (None, Some(holder)),
            Step::Acquire { .. } | Step::Read | Step::Queue => (None, None),
        };
        if matches!(step, Step::Acquire { .. } | Step::Read) && !self.world.admits(&self.state.store, claim) {
            after.state.wrong = Some("a newcomer did not fit behind all that were there");
        }
        if let Some(granted) = granted {
            let gone = gone.map(|key| key.claim);
            let mut within = self.world.next_without(&self.state.store, gone);
            if !within.any(|key| key.claim == granted) {
                after.state.wrong = Some("a waiter was overtaken");
            }
        }
        let view = &mut after.state.views[replica];
        if let Some(gone) = gone {
            after.state.store.write();
            after.state.store.holders.retain(|key| *key != gone);
            view.holders.retain(|key| *key != gone);
            after.state.stages[usize::from(claim)] = Stage::Done;
        }
        let taker = match step {
            Step::Acquire { .. } | Step::Read => Some(claim),
            _ => granted,
        };
        if let Some(taker) = taker {
            let key = after.state.store.hold(taker);
            let view = &mut after.state.views[replica];
            if view.revision < key.created {
                view.waiters.retain(|key| key.claim != taker);
                view.holders.push(key);
            }
            let known = &mut after.state.known[replica];
            let trusts = match step {
                // No holder was made between that one and this.
                Step::Promote { seen, .. } => self.world.kind(taker) == Semaphore && seen <= view.revision.max(*known),
                _ => false,
            };
            if trusts {
                *known = key.created;
            }
            after.state.stages[usize::from(taker)] = Stage::Holds;
        }
        if step == Step::Queue {
            let created = after.state.store.write();
            after.state.store.waiters.push(Key { claim, created });
            after.state.stages[usize::from(claim)] = Stage::Waits;
        }
        after
    }

    fn leave_queue(&self, claim: u8) -> Option<Self> {
        let mut after = self.to(claim, Stage::Outside);
        after.state.leaves = self.state.leaves.checked_sub(1)?;
        after.state.store.write();
        after.state.store.waiters.retain(|key| key.claim != claim);
        Some(after)
    }

    fn see(&self, replica: usize) -> Option<Self> {
        let mut after = self.clone();
        after.state.views[replica] = self.state.store.clone();
        (after.state.views != self.state.views).then_some(after)
    }
}

impl Model for Running {
    type Event = Event;

    fn next(&self) -> Vec<(Event, Self)> {
        let mut next = Vec::new();
        let mut then = |what, after: Option<Self>| next.extend(after.map(|after| (what, after)));
        for claim in 0..self.world.claims.len() as u8 {
            match self.state.stages[usize::from(claim)] {
                Stage::Outside => {
                    then(Event::Comes(claim), Some(self.come(claim)));
                    let read = || self.to(claim, Stage::Sent(Step::Read));
                    then(Event::ComesToRead(claim), self.world.reads(claim).then(read));
                }
                Stage::Sent(step) => then(Event::Arrives(claim, step), Some(self.arrive(claim, step))),
                Stage::Waits => {
                    then(Event::AsksToBePromoted(claim), self.ask(claim));
                    then(Event::LeavesTheQueue(claim), self.leave_queue(claim));
                }
                Stage::Holds => {
                    then(Event::Releases(claim), self.release(claim));
                    then(Event::ReleasesWithTheNext(claim), self.hand_over(claim));
                }
                Stage::Done => {}
            }
        }
        for replica in 0..self.state.views.len() {
            then(Event::Sees(replica), self.see(replica));
        }
        next
    }

    fn wrong(&self) -> Option<&'static str> {
        let holders = &self.state.store.holders;
        let fit = self.world.fit(holders.iter().map(|key| key.claim));
        let mixed = self.world.are_mixed(holders.iter().map(|key| key.claim));
        mixed
            .then_some("readers hold beside semaphore claims")
            .or((!fit).then_some("more hold than fit"))
            .or(self.state.wrong)
    }
}

fn explore(world: World) -> Walked {
    let state = State {
        store: Queue::default(),
        views: Default::default(),
        known: [0; 2],
        stages: vec![Stage::Outside; world.claims.len()],
        leaves: world.leaves,
        wrong: None,
    };
    walk(Running { world, state }, 6_000_000)
}

/// Three claims on two replicas, of which one may leave and come again.
const EXCLUSIVE: World = World {
    flaw: Flaw::None,
    claims: &[((1, 1), 0, Exclusive), ((1, 1), 0, Exclusive), ((1, 1), 1, Exclusive)],
    leaves: 1,
};

/// A semaphore of two, with a claim that takes it whole.
const SEMAPHORE: World = World {
    claims: &[((1, 2), 0, Semaphore), ((2, 2), 0, Semaphore), ((1, 2), 1, Semaphore)],
    ..EXCLUSIVE
};

/// Claims of one replica that are promoted one upon another, beside one of another replica.
const CROWD: World = World {
    claims: &[
        ((2, 2), 0, Semaphore),
        ((1, 2), 0, Semaphore),
        ((1, 2), 0, Semaphore),
        ((1, 2), 1, Semaphore),
    ],
    leaves: 0,
    ..EXCLUSIVE
};

/// A limit is changed from three to two, and back.
const LIMITS: World = World {
    claims: &[((2, 3), 0, Semaphore), ((1, 2), 1, Semaphore), ((1, 3), 1, Semaphore)],
    ..EXCLUSIVE
};

/// The same with one more, of which two of the replica are promoted one upon another.
const LIMITS_CROWD: World = World {
    claims: &[
        ((1, 3), 0, Semaphore),
        ((1, 2), 0, Semaphore),
        ((2, 3), 0, Semaphore),
        ((1, 1), 1, Semaphore),
    ],
    leaves: 0,
    ..EXCLUSIVE
};

/// Two readers, a writer and a semaphore claim.
const READERS: World = World {
    claims: &[
        ((1, 3), 0, Reader),
        ((1, 3), 1, Reader),
        ((3, 3), 0, Exclusive),
        ((1, 3), 1, Semaphore),
    ],
    leaves: 0,
    ..EXCLUSIVE
};

// G1
#[test]
fn claims_that_are_judged_by_views_of_any_age_are_safe() {
    explore(EXCLUSIVE).is_sound(1_000);
    explore(SEMAPHORE).is_sound(1_000);
    explore(LIMITS).is_sound(1_000);
    if cfg!(feature = "soak") {
        explore(CROWD).is_sound(1_000);
        explore(LIMITS_CROWD).is_sound(1_000);
    }
}

#[test]
fn a_smaller_limit_that_is_ignored_is_noticed() {
    let flaw = Flaw::IgnoresSmallerLimits;
    explore(World { flaw, ..LIMITS }).is_noticed("more hold than fit");
}

#[test]
fn readers_and_semaphore_claims_never_hold_together() {
    explore(READERS).is_sound(1_000);
}

#[test]
fn a_reader_that_does_not_ask_for_new_semaphore_claims_is_noticed() {
    let flaw = Flaw::ReadsBesideSemaphores;
    explore(World { flaw, ..READERS }).is_noticed("beside semaphore claims");
}

#[test]
fn a_semaphore_claim_that_does_not_ask_for_readers_is_noticed() {
    let flaw = Flaw::PassesReaders;
    explore(World { flaw, ..READERS }).is_noticed("beside semaphore claims");
}

#[test]
fn a_reader_that_does_not_ask_for_waiters_is_noticed() {
    let flaw = Flaw::ReadsBeforeWaiters;
    explore(World { flaw, ..READERS }).is_noticed("did not fit behind");
}

#[test]
fn a_prefix_of_readers_and_semaphore_claims_is_noticed() {
    let flaw = Flaw::MixesModes;
    explore(World { flaw, ..READERS }).is_noticed("beside semaphore claims");
}

#[test]
fn a_claim_judged_by_a_view_without_it_is_noticed() {
    let flaw = Flaw::JudgesWhatItDoesNotSee;
    explore(World { flaw, ..EXCLUSIVE }).is_noticed("overtaken");
}

#[test]
fn a_waiter_that_came_again_and_is_judged_by_its_old_place_is_noticed() {
    let flaw = Flaw::ComparesOnlyTheClaim;
    explore(World { flaw, ..EXCLUSIVE }).is_noticed("overtaken");
}

#[test]
fn a_semaphore_claim_beside_holders_that_no_view_has_seen_is_noticed() {
    let flaw = Flaw::PassesNewHolders;
    explore(World { flaw, ..SEMAPHORE }).is_noticed("than fit");
    explore(World { flaw, ..LIMITS }).is_noticed("than fit");
}

#[test]
fn a_newcomer_that_is_judged_by_a_view_is_noticed() {
    let flaw = Flaw::EntersByTheView;
    explore(World { flaw, ..EXCLUSIVE }).is_noticed("more hold than fit");
}
