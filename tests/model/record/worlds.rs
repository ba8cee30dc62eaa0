//! The worlds that are walked, and what each rule of the protocol is for. Beside each world stands how many states it
//! has, and how many seconds of a core they take; beside each flaw, the law that notices it, and after how many states.

#[cfg(feature = "soak")]
use super::Chance::{Death, Forget, Misjudgement};
use super::Chance::{FastEstimate, Loss, Read, Removal, Renewal, StepBack, Tick};
use super::laws::*;
use super::{Flaw, World, explore};

/// Two claims at two servers.
const QUIET: World = World::of(&[(0, 0, false), (1, 1, false)]).with(Tick, 3);
const LOST: World = QUIET.with(Loss, 1);
const RENEWS: World = QUIET.with(Renewal, 1).with(Tick, 4);
const RENEWS_LOST: World = World::of(&[(0, 0, false)]).with(Renewal, 1).with(Loss, 1).with(Tick, 4);
const READ: World = QUIET.with(Read, 1);
const BACK: World = QUIET.with(StepBack, 1).with(Tick, 4);
const READ_BACK: World = BACK.with(Read, 1).with(Tick, 3);
const FAST: World = QUIET.with(FastEstimate, 1);
/// A claim, and its retry at the other server.
const RETRIED: World = World::of(&[(0, 0, false), (0, 1, false)]).with(Loss, 1).with(Tick, 3);
/// A claim that waits behind another, and its retry, which is a try.
const TRIED: World = World::of(&[(0, 0, false), (1, 0, false), (1, 1, true)]).with(Tick, 1);
/// Two claims of one server, which hands over, and one of the other server.
const HANDED: World = World::of(&[(0, 0, false), (1, 0, false), (2, 1, false)]).with(Tick, 1);
/// A claim, its retry and another claim.
const CROWDED: World = World::of(&[(0, 0, false), (0, 1, false), (1, 1, false)]);
const ONE_SERVER: World = World::of(&[(0, 0, false), (1, 0, false)]).with(Loss, 2).with(Tick, 2);
/// An idle root is removed, beside a claim and a try.
const REMOVED: World = World::of(&[(0, 0, false), (1, 1, true)])
    .with(Removal, 1)
    .with(Loss, 1)
    .with(Tick, 3);
/// The store's clock goes back after an idle root was removed.
const REMOVED_BACK: World = REMOVED.with(StepBack, 2).with(Loss, 0);

fn are_safe(worlds: &[(World, usize)]) {
    for (world, states) in worlds {
        // Hardly anything can happen in a world of fewer states.
        explore(*world).is_sound(states / 2);
    }
}

fn are_noticed(flaws: &[(Flaw, World, &str)]) {
    for (flaw, world, law) in flaws {
        let flaw = *flaw;
        println!("{flaw:?}");
        explore(World { flaw, ..*world }).is_noticed(law);
    }
}

#[test]
fn claims_of_two_servers_are_safe() {
    are_safe(&[
        (QUIET, 31_600),
        (LOST, 425_443),    // 5 s
        (READ, 314_028),    // 3 s
        (FAST, 69_738),     // 1 s
        (BACK, 352_429),    // 3 s
        (REMOVED, 324_223), // 3 s
    ]);
}

#[test]
fn retries_tries_and_hand_overs_are_safe() {
    are_safe(&[
        (CROWDED, 25_365),
        (RETRIED, 320_656), // 3 s
        (TRIED, 131_296),   // 1 s
        (HANDED, 136_867),  // 1 s
        (RENEWS_LOST, 5_867),
        (ONE_SERVER, 117_594), // 1 s
    ]);
}

#[test]
fn each_rule_that_is_broken_is_noticed() {
    are_noticed(&[
        (Flaw::VersionsAreCounted, REMOVED, LEASE_LASTS),       // 8,864
        (Flaw::FirstWriteIsBlind, QUIET, TOKENS_RISE),          // 613
        (Flaw::NoLatestTime, REMOVED, UNDO_IS_FINAL),           // 154,671
        (Flaw::NoFenceWrite, LOST.anew(), UNDO_IS_FINAL),       // 9,723
        (Flaw::NoFenceWrite, REMOVED, UNDO_IS_FINAL),           // 243,882
        (Flaw::PresenceSettlesAbsence, REMOVED, UNDO_IS_FINAL), // 236,494
        (Flaw::TryLeavesNoMark, TRIED, SUPERSEDED_STAYS_OUT),   // 64,197
        (Flaw::ShowsUncommittedEnds, READ_BACK, END_IS_FINAL),  // 64,030
        (Flaw::WaitedToTheLastSending, LOST, LEASE_LASTS),      // 19,640
        (Flaw::TwoInFlight, QUIET, UNDO_IS_FINAL),              // 938
    ]);
}

#[test]
fn a_commit_or_read_that_is_not_atomic_is_noticed() {
    are_noticed(&[
        (Flaw::UnknownIsFailed, LOST, UNDO_IS_FINAL),        // 220
        (Flaw::UnknownIsApplied, LOST, LEASE_LASTS),         // 215
        (Flaw::RefusedIsGone, RENEWS, LEASE_IS_CONFIRMED),   // 24,230
        (Flaw::AcquireIsNotIdempotent, LOST, ONE_PLACE),     // 216,825
        (Flaw::NoNotAfter, RENEWS, END_IS_FINAL),            // 5,073
        (Flaw::NoNotAfter, READ, READ_IS_CURRENT),           // 13,628
        (Flaw::NoNotBefore, FAST, ONE_HOLDER),               // 8,509
        (Flaw::EndsAtTheEstimate, QUIET, LEASE_LASTS),       // 20,290
        (Flaw::AnsweredBeforeTheCommit, QUIET, LEASE_LASTS), // 19
        (Flaw::ReadsTheCache, READ, READ_IS_CURRENT),        // 2,826
    ]);
}

#[test]
fn a_clock_that_goes_back_and_tokens_that_fall_are_noticed() {
    are_noticed(&[
        (Flaw::ClockGoesBack, BACK, LEASE_ENDS), // 242
        (Flaw::LeavesTheClock, BACK, CLOCK_RUNS),
        (Flaw::TokenIsTheTime, BACK, TOKENS_RISE),                    // 33,861
        (Flaw::RemovalLeavesNoFloor, REMOVED_BACK, TOKENS_RISE),      // 151,108
        (Flaw::FirstWriteIgnoresTheFloor, REMOVED_BACK, TOKENS_RISE), // 151,205
    ]);
}

#[test]
fn a_verb_that_ends_the_claim_of_another_call_is_noticed() {
    are_noticed(&[
        (Flaw::UndoIgnoresCall, CROWDED, PLACE_LASTS),      // 5,116
        (Flaw::UndoIgnoresAdoption, RETRIED, LEASE_LASTS),  // 69,965
        (Flaw::AdoptionIsNotWritten, RETRIED, LEASE_LASTS), // 42,919
        (Flaw::ReleasesAnyToken, QUIET, LEASE_LASTS),       // 20,076
    ]);
}

#[cfg(feature = "soak")]
#[test]
fn larger_worlds_of_two_claims_are_safe() {
    are_safe(&[
        (RENEWS, 287_393),                                   // 2 s
        (LOST.anew(), 568_850),                              // 5 s
        (LOST.with(Loss, 2).with(Tick, 1), 199_680),         // 2 s
        (LOST.with(Forget, 1).with(Tick, 2), 449_793),       // 4 s
        (LOST.with(Misjudgement, 1).with(Tick, 2), 444_752), // 4 s
        (LOST.with(Death, 1), 794_165),                      // 8 s
        (FAST.with(Loss, 1), 1_000_000),                     // 10 s
        (READ_BACK, 1_541_507),                              // 14 s
    ]);
    // A commit that comes before its guard is refused, and may come again later.
    are_noticed(&[(Flaw::NoFenceWrite, FAST.with(Loss, 1), UNDO_IS_FINAL)]); // 638,840
}

#[cfg(feature = "soak")]
#[test]
fn larger_worlds_of_retries_and_removals_are_safe() {
    are_safe(&[
        (RETRIED.anew(), 415_517),                     // 4 s
        (CROWDED.with(Loss, 1), 295_408),              // 3 s
        (TRIED.with(Loss, 1).with(Tick, 0), 263_628),  // 3 s
        (HANDED.with(Loss, 1).with(Tick, 0), 283_946), // 3 s
        (REMOVED.anew(), 436_978),                     // 4 s
        (REMOVED.with(Tick, 4), 763_755),              // 7 s
        (REMOVED_BACK, 308_896),                       // 2 s
    ]);
}
