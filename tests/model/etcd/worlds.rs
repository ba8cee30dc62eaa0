//! The worlds that are walked, and what each rule of the protocol is for.

use super::Condition::{Alone, Holder, Holders, Mark, Next, Request, Session, Waiter, Waiters};
use super::Kind::{Exclusive, Reader, Semaphore};
use super::StepKind::{AdoptHolder, AdoptWaiter, Enter, HandOver, Promote, Queue, Release, UndoHolder, UndoWaiter};
use super::{Flaw, World, explore};

/// A claim with a retry on the other replica.
const RETRIED: World = World {
    flaw: Flaw::None,
    claims: &[(Exclusive, 1, true)],
    calls: &[(0, 0), (0, 1)],
    limits: &[1, 1, 1],
    remembers: true,
    losses: 1,
    ends: 0,
    times: 2,
    forgets: 1,
    leases: 3,
};

/// The same with a session that ends.
const ENDS: World = World { ends: 1, ..RETRIED };

/// A claim with a retry, and another one of the first replica. Answers are lost.
const BESIDE: World = World {
    claims: &[(Exclusive, 1, true), (Exclusive, 1, true)],
    calls: &[(0, 0), (0, 1), (1, 0)],
    times: 0,
    forgets: 0,
    ..RETRIED
};

/// The same with a session that ends, and without losses.
const BESIDE_ENDS: World = World {
    losses: 0,
    ends: 1,
    forgets: 1,
    ..BESIDE
};

/// The same with losses, and a claim without a request id beside it.
const PROMOTED: World = World {
    claims: &[(Exclusive, 1, true), (Exclusive, 1, false)],
    losses: 1,
    forgets: 0,
    leases: 2,
    ..BESIDE_ENDS
};

/// A claim, and another one whose retry comes to the same replica.
const CROWDED: World = World {
    calls: &[(0, 0), (1, 0), (1, 0)],
    ..BESIDE
};

/// A claim with a retry whose key suffix is used for another claim.
const REUSED: World = World {
    claims: &[(Semaphore, 1, true), (Semaphore, 1, false)],
    limits: &[2, 2, 2],
    losses: 0,
    times: 2,
    leases: 2,
    ..BESIDE
};

/// Three claims, two of one replica, which may hand over.
const HANDED: World = World {
    claims: &[(Exclusive, 1, true), (Exclusive, 1, true), (Exclusive, 1, false)],
    calls: &[(0, 0), (1, 0), (2, 1)],
    ..BESIDE
};

/// A semaphore of two, with a claim that takes it whole.
const SEMAPHORES: World = World {
    claims: &[(Semaphore, 1, true), (Semaphore, 2, false), (Semaphore, 1, false)],
    limits: &[2, 2, 2],
    ..HANDED
};

/// The same where the limit is changed from three to two and back.
const LIMITS: World = World {
    claims: &[(Semaphore, 2, true), (Semaphore, 1, false), (Semaphore, 1, false)],
    limits: &[3, 2, 3],
    ..HANDED
};

/// Two claims of different limits, one with a retry.
const TWO_LIMITS: World = World {
    claims: &[(Semaphore, 1, true), (Semaphore, 1, false)],
    limits: &[2, 1],
    losses: 0,
    times: 1,
    ..BESIDE
};

/// A reader with a retry, and a writer.
const READERS: World = World {
    claims: &[(Reader, 1, true), (Exclusive, 2, false)],
    limits: &[2, 2, 2],
    ..BESIDE
};

/// A reader, a writer and a semaphore claim.
const MIXED: World = World {
    claims: &[(Reader, 1, true), (Exclusive, 3, false), (Semaphore, 1, false)],
    limits: &[3, 3, 3],
    ..HANDED
};

/// That each of these flaws is noticed, by what is said.
fn are_noticed(flaws: &[(Flaw, World, &str)]) {
    for (flaw, world, by) in flaws {
        let flaw = *flaw;
        println!("{flaw:?}");
        explore(World { flaw, ..*world }).is_noticed(by);
    }
}

const fn without(step: super::StepKind, condition: super::Condition) -> Flaw {
    Flaw::Without(step, condition)
}

const UNDONE: &str = "a call that had left took effect";
const TAKEN: &str = "counts on it";
const UNNAMED: &str = "does not name its claim";
const TWICE: &str = "a request has two claims";

// G1
#[test]
fn claims_and_their_retries_are_safe() {
    explore(ENDS).is_sound(1_000);
    explore(World {
        remembers: false,
        ..RETRIED
    })
    .is_sound(1_000);
    explore(World { forgets: 2, ..RETRIED }).is_sound(1_000);
    if cfg!(feature = "soak") {
        explore(BESIDE).is_sound(1_000);
    }
}

#[test]
fn claims_whose_sessions_end_are_safe() {
    explore(BESIDE_ENDS).is_sound(1_000);
    if cfg!(feature = "soak") {
        explore(World { ends: 1, ..HANDED }).is_sound(1_000);
        explore(PROMOTED).is_sound(1_000);
    }
}

#[test]
fn newcomers_and_their_retries_that_share_requests_are_safe() {
    explore(CROWDED).is_sound(1_000);
}

#[test]
fn suffixes_that_are_used_again_are_safe() {
    explore(REUSED).is_sound(1_000);
}

#[test]
fn claims_that_share_the_lock_are_safe() {
    explore(MIXED).is_sound(1_000);
    explore(TWO_LIMITS).is_sound(1_000);
    if cfg!(feature = "soak") {
        explore(SEMAPHORES).is_sound(1_000);
        explore(LIMITS).is_sound(1_000);
        explore(READERS).is_sound(1_000);
    }
}

#[test]
fn hand_overs_are_safe() {
    explore(HANDED).is_sound(1_000);
}

#[test]
fn a_call_whose_own_claim_waits_needs_neither_its_session_nor_the_absence_of_a_mark() {
    let flaw = Flaw::NoFenceOfOwn;
    explore(World { flaw, ..HANDED }).is_sound(1_000);
    if cfg!(feature = "soak") {
        explore(World { flaw, ..BESIDE_ENDS }).is_sound(1_000);
        explore(World {
            flaw,
            ends: 1,
            ..HANDED
        })
        .is_sound(1_000);
        explore(World { flaw, ..PROMOTED }).is_sound(1_000);
    }
}

#[test]
fn a_hand_over_need_not_ask_for_other_holders() {
    // While the next waiter is the first, and its key unchanged, nobody joins the holders.
    let flaw = without(HandOver, Alone);
    explore(World { flaw, ..SEMAPHORES }).is_sound(1_000);
    if cfg!(feature = "soak") {
        explore(World { flaw, ..LIMITS }).is_sound(1_000);
        explore(World { flaw, ..READERS }).is_sound(1_000);
    }
}

#[test]
fn each_condition_of_a_newcomer_is_needed() {
    are_noticed(&[
        (without(Enter, Session), ENDS, UNDONE),
        (without(Enter, Mark), ENDS, UNDONE),
        (without(Enter, Request), READERS, TWICE),
        (without(Enter, Holders), BESIDE_ENDS, "did not fit behind"),
        (without(Enter, Waiters), SEMAPHORES, "did not fit behind"),
        (without(Enter, Holders), TWO_LIMITS, "did not fit behind"),
        (without(Queue, Mark), CROWDED, UNDONE),
        (without(Queue, Request), BESIDE_ENDS, TWICE),
    ]);
}

#[test]
fn each_condition_of_an_adoption_is_needed() {
    are_noticed(&[
        (without(AdoptWaiter, Mark), CROWDED, UNDONE),
        (without(AdoptWaiter, Waiter), BESIDE_ENDS, UNNAMED),
        (without(AdoptHolder, Session), ENDS, UNDONE),
        (without(AdoptHolder, Mark), ENDS, UNDONE),
        (without(AdoptHolder, Holder), ENDS, TAKEN),
    ]);
}

#[test]
fn each_condition_of_a_promotion_is_needed() {
    are_noticed(&[
        (without(Promote, Session), PROMOTED, UNDONE),
        (without(Promote, Mark), CROWDED, UNDONE),
        (without(Promote, Waiter), CROWDED, UNDONE),
        (without(Promote, Holders), MIXED, "beside semaphore claims"),
    ]);
}

#[test]
fn each_condition_of_an_end_is_needed() {
    are_noticed(&[
        (without(UndoWaiter, Waiter), BESIDE_ENDS, "a place was taken"),
        (without(UndoHolder, Holder), ENDS, TAKEN),
        (without(Release, Holder), ENDS, UNNAMED),
    ]);
}

#[test]
fn each_condition_of_a_hand_over_is_needed() {
    are_noticed(&[
        (without(HandOver, Holder), World { forgets: 1, ..BESIDE }, UNNAMED),
        (without(HandOver, Next), HANDED, "has a claim"),
    ]);
}

#[test]
fn the_record_of_a_request_is_written_with_its_claim() {
    are_noticed(&[
        (Flaw::AdoptionLeavesTheRequest, BESIDE_ENDS, UNNAMED),
        (Flaw::PromotionLeavesTheRequest, BESIDE_ENDS, UNNAMED),
        (Flaw::UndoLeavesTheRequest, BESIDE_ENDS, UNNAMED),
        (Flaw::MemoryEndsFirst, ENDS, UNNAMED),
        (Flaw::ForgetsBlindly, World { forgets: 2, ..RETRIED }, UNNAMED),
        (Flaw::NotesExpiryBlindly, ENDS, UNNAMED),
        (Flaw::RequestsAreNotWritten, BESIDE_ENDS, TWICE),
        (Flaw::TrustsTheRequest, ENDS, "said to have expired"),
    ]);
}

#[test]
fn a_key_suffix_is_no_claim() {
    are_noticed(&[
        (Flaw::TrustsTheSuffix, REUSED, TAKEN),
        (Flaw::ReleasesTheSuffix, REUSED, TAKEN),
        (Flaw::FreesWhatWasAdopted, REUSED, "overwritten"),
    ]);
}

#[test]
fn an_undo_marks_first_and_removes_only_what_is_its_own() {
    are_noticed(&[
        (Flaw::MarksLast, ENDS, "has a claim"),
        (Flaw::NeverMarks, ENDS, UNDONE),
        (Flaw::UndoIgnoresAdoption, ENDS, TAKEN),
        (Flaw::UndoIgnoresCall, BESIDE_ENDS, "a place was taken"),
    ]);
}

#[test]
fn leases_are_used_as_before() {
    are_noticed(&[
        (Flaw::TwoGrantsShare, BESIDE_ENDS, "than fit"),
        (Flaw::RevokesAfterUnknown, ENDS, TAKEN),
        (Flaw::PoolsAfterUnknown, CROWDED, TAKEN),
        (Flaw::PoolsTakenBack, CROWDED, TAKEN),
        (Flaw::RevokesAdopted, ENDS, TAKEN),
        (Flaw::NoKeepAlive, ENDS, TAKEN),
        (Flaw::KeepAliveTooLate, ENDS, TAKEN),
    ]);
}
