//! Ways to break the protocol, each noticed.

use super::worlds::{LIMITS, ONE_OF_TWO, OTHER_THERE, READERS_FIRST, RETRIED, THREE, TWO, WRITER_FIRST};
use super::{Flaw, World, explore};

const LOST: &str = "counts on a holder that is gone";
const OVERTOOK: &str = "overtook";
const AFTER_LEAVE: &str = "after its leave was answered";
const AGAIN: &str = "granted again";
const STUCK: &str = "nobody wakes";

fn notices(flaws: &'static [Flaw], world: World, by: &str) {
    explore(World { flaws, ..world }).is_noticed(by);
}

#[test]
fn an_unknown_outcome_that_is_settled_by_a_look_alone() {
    notices(&[Flaw::RaisesNoFence], RETRIED, AFTER_LEAVE);
}

#[test]
fn a_look_before_the_fence_is_raised() {
    notices(&[Flaw::LooksFirst], RETRIED, AFTER_LEAVE);
}

#[test]
fn steps_that_ignore_the_fence() {
    notices(&[Flaw::StepsIgnoreTheFence], RETRIED, AFTER_LEAVE);
}

#[test]
fn a_try_that_leaves_without_a_fence() {
    notices(&[Flaw::TriesIgnoreTheFence], World { tries: 2, ..RETRIED }, AFTER_LEAVE);
}

#[test]
fn a_new_session_that_leaves_the_old_fence() {
    let session_switches = 1;
    notices(
        &[Flaw::OldFenceStays],
        World {
            session_switches,
            ..RETRIED
        },
        AFTER_LEAVE,
    );
}

#[test]
fn an_expiry_that_ignores_the_version() {
    notices(&[Flaw::ExpiryIgnoresTheVersion], World { renewals: 1, ..TWO }, LOST);
}

#[test]
fn one_timer_whatever_the_version() {
    notices(&[Flaw::WatchesAnyVersion], World { renewals: 1, ..TWO }, LOST);
}

#[test]
fn a_lease_that_only_its_replica_watches() {
    let world = World {
        crashes: 1,
        ..OTHER_THERE
    };
    notices(&[Flaw::OnlyOwnLeasesExpire], world, "nobody watches over");
}

#[test]
fn a_renewal_that_creates_its_node() {
    notices(
        &[Flaw::RenewalCreates],
        World { renewals: 1, ..TWO },
        "more holders than fit",
    );
}

#[test]
fn an_undo_that_ignores_an_adoption() {
    notices(&[Flaw::UndoIgnoresAdoption], RETRIED, LOST);
}

#[test]
fn an_undo_that_ignores_the_version() {
    notices(&[Flaw::UndoIgnoresTheVersion], RETRIED, LOST);
}

#[test]
fn an_undo_that_removes_whatever_its_claim_holds() {
    notices(&[Flaw::UndoRemovesAny], RETRIED, LOST);
}

#[test]
fn one_path_for_each_claim() {
    let apart = World {
        reads_apart: true,
        ..RETRIED
    };
    notices(&[Flaw::OnePathForEachClaim], apart, LOST);
    let flaws = &[Flaw::OnePathForEachClaim, Flaw::NoRequestNode];
    notices(
        flaws,
        World {
            release_retries: 1,
            ..apart
        },
        AGAIN,
    );
}

#[test]
fn a_path_that_is_used_again() {
    notices(
        &[Flaw::UsesItsPathAgain],
        World {
            session_ends: 1,
            ..RETRIED
        },
        OVERTOOK,
    );
    notices(
        &[Flaw::UsesItsPathAgain],
        World {
            reads_apart: true,
            ..TWO
        },
        LOST,
    );
}

#[test]
fn an_empty_lock_that_is_taken_by_its_version() {
    notices(&[Flaw::TakesAnEmptyLockByItsVersion], TWO, OVERTOOK);
}

#[test]
fn claims_that_join_without_queueing() {
    let joins = &[Flaw::JoinsWithoutQueueing];
    notices(
        joins,
        World {
            shares: READERS_FIRST,
            ..THREE
        },
        OVERTOOK,
    );
    notices(
        joins,
        World {
            shares: [ONE_OF_TWO; 3],
            ..THREE
        },
        OVERTOOK,
    );
}

#[test]
fn a_list_from_before_the_own_place() {
    notices(&[Flaw::JudgesByAnEarlierList], TWO, OVERTOOK);
    notices(&[Flaw::JudgesByAnEarlierList], THREE, OVERTOOK);
}

#[test]
fn calls_of_one_request_that_are_not_kept_apart() {
    notices(&[Flaw::NoRequestNode], RETRIED, AGAIN);
}

#[test]
fn an_adopted_waiter_at_the_tail() {
    notices(&[Flaw::AdoptionLosesThePlace], RETRIED, OVERTOOK);
}

#[test]
fn a_retry_that_is_answered_without_a_renewal() {
    notices(&[Flaw::AdoptsWithoutRenewing], RETRIED, LOST);
}

#[test]
fn a_grant_anew_over_an_adoption() {
    let world = World {
        grants_again: true,
        ..RETRIED
    };
    notices(&[Flaw::GrantsAgainOverAnAdoption], world, LOST);
}

#[test]
fn two_grants_in_one_multi() {
    let world = World {
        calls: &[(0, 0), (1, 0), (2, 0)],
        shares: WRITER_FIRST,
        batches: true,
        ..THREE
    };
    notices(&[Flaw::TwoGrantsShare], world, "not larger than all before");
}

#[test]
fn a_watch_on_a_node_that_is_gone() {
    notices(&[Flaw::WatchesBlindly], World { watches: true, ..THREE }, STUCK);
}

#[test]
fn a_list_that_is_judged_and_another_that_sets_the_watch() {
    let world = World {
        shares: READERS_FIRST,
        watches: true,
        ..THREE
    };
    notices(&[Flaw::JudgesAnotherList], world, STUCK);
}

#[test]
fn a_smaller_limit_that_is_ignored() {
    let shares = LIMITS;
    notices(&[Flaw::IgnoresSmallerLimits], World { shares, ..THREE }, "than fit");
}

#[test]
fn a_waiter_that_watches_one_of_several_holders() {
    let world = World {
        shares: [(1, 3), (1, 2), (1, 3)],
        watches: true,
        ..THREE
    };
    notices(&[Flaw::WatchesOneHolder], world, STUCK);
}

#[test]
fn a_promotion_that_does_not_name_its_waiter() {
    notices(&[Flaw::PromotesAnyWaiter], RETRIED, OVERTOOK);
}

#[test]
fn a_move_of_a_waiter_that_is_gone() {
    let world = World {
        session_switches: 1,
        ..RETRIED
    };
    notices(&[Flaw::MovesAnyWaiter], world, "a request has two places");
}
