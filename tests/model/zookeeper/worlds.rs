//! Worlds in which the protocol is sound. Those of many states are walked under `soak` alone.

#[cfg(feature = "soak")]
use super::Flaw;
use super::Reached as R;
use super::{EXCLUSIVE, SHARED, Share, World, explore};

/// A claim at the first replica, its retry at the second, another claim at the first.
pub const RETRIED: World = World {
    flaws: &[],
    calls: &[(0, 0), (0, 1), (1, 0)],
    shares: [EXCLUSIVE; 3],
    request_ids: 1,
    tries: 0,
    crashes: 0,
    session_ends: 0,
    session_switches: 0,
    forced: 0,
    renewals: 0,
    release_retries: 0,
    watches: false,
    batches: false,
    hedges: false,
    reads_apart: false,
    grants_again: false,
};

/// The retry at the same replica.
pub const RETRIED_HERE: World = World {
    calls: &[(0, 0), (0, 0), (1, 0)],
    ..RETRIED
};

/// The other claim at the retry's replica.
pub const OTHER_THERE: World = World {
    calls: &[(0, 0), (0, 1), (1, 1)],
    ..RETRIED
};

/// Two claims, no retry.
pub const TWO: World = World {
    calls: &[(0, 0), (1, 1)],
    request_ids: 0,
    ..RETRIED
};

/// Three claims, no retry.
pub const THREE: World = World {
    calls: &[(0, 0), (1, 0), (2, 1)],
    request_ids: 0,
    ..RETRIED
};

/// One permit of a semaphore of two.
pub const ONE_OF_TWO: Share = (1, 2);

/// A limit is changed from three to two and back.
pub const LIMITS: [Share; 3] = [(2, 3), (1, 2), (1, 3)];

/// Two readers, then a writer.
pub const READERS_FIRST: [Share; 3] = [SHARED, SHARED, EXCLUSIVE];
pub const WRITER_FIRST: [Share; 3] = [EXCLUSIVE, SHARED, SHARED];

// G106
#[test]
fn a_claim_its_retry_and_another_claim_are_safe() {
    let reached = [
        R::AdoptedAHolder,
        R::AdoptedAWaiter,
        R::AdoptedAndPromoted,
        R::ReleasedWithNext,
        R::TookEffectLate,
        R::WasFenced,
        R::Expired,
        R::UndidAHolder,
        R::UndoMetAnAdoption,
        R::TookAnEmptyLock,
        R::UnknownReleasePromoted,
    ];
    explore(RETRIED).is_sound(100_000, &reached);
}

#[test]
fn a_retry_at_the_same_replica_is_safe() {
    let reached = [R::AdoptedAHolder, R::AdoptedAWaiter, R::Batched];
    let batches = true;
    explore(World {
        batches,
        ..RETRIED_HERE
    })
    .is_sound(100_000, &reached);
}

#[test]
fn a_hedged_retry_is_safe() {
    explore(World {
        hedges: true,
        ..RETRIED
    })
    .is_sound(100_000, &[R::AdoptedAHolder]);
}

#[test]
fn a_call_that_grants_itself_anew_after_an_unknown_outcome_is_safe() {
    let grants_again = true;
    let reached = [R::GrantedAgain, R::AdoptedAHolder];
    explore(World {
        grants_again,
        ..RETRIED
    })
    .is_sound(100_000, &reached);
}

#[test]
fn a_call_that_does_not_wait_and_its_retry_are_safe() {
    let tries = |tries| World { tries, ..RETRIED };
    explore(tries(2)).is_sound(50_000, &[R::RemovedATry]);
    explore(tries(1)).is_sound(50_000, &[R::AdoptedAHolder]);
}

#[test]
fn a_replica_that_crashes_is_safe() {
    explore(World { crashes: 1, ..RETRIED }).is_sound(200_000, &[R::Expired, R::AdoptedAHolder]);
}

#[test]
fn three_claims_in_batches_are_safe() {
    explore(World { batches: true, ..THREE }).is_sound(100_000, &[R::Batched, R::ReleasedWithNext]);
}

#[test]
fn a_writer_before_readers_is_safe() {
    let world = World {
        shares: WRITER_FIRST,
        batches: true,
        ..THREE
    };
    explore(world).is_sound(200_000, &[R::Batched, R::ReleasedWithNext]);
}

#[test]
fn semaphore_claims_of_different_limits_are_safe() {
    let shares = LIMITS;
    explore(World { shares, ..THREE }).is_sound(100_000, &[R::ReleasedWithNext]);
}

#[test]
fn watches_wake_every_waiter() {
    let watches = true;
    explore(World { watches, ..OTHER_THERE }).is_sound(100_000, &[R::ReleasedWithNext]);
}

/// Worlds that take a minute each, and are walked under `soak` alone.
#[cfg(feature = "soak")]
mod larger {
    use super::*;

    /// One permit, and two, of a semaphore of two.
    const ONE: Share = ONE_OF_TWO;
    const ALL: Share = (2, 2);

    #[test]
    fn sessions_that_end_or_are_given_up_are_safe() {
        let reached = [R::MovedAWaiter, R::WasFenced, R::AdoptedAHolder];
        let session_ends = 1;
        explore(World {
            session_ends,
            ..RETRIED
        })
        .is_sound(500_000, &reached[1..]);
        let session_switches = 1;
        explore(World {
            session_switches,
            ..RETRIED
        })
        .is_sound(1_000_000, &reached);
    }

    #[test]
    fn renewals_forced_releases_and_retries_of_releases_are_safe() {
        let renewals = 1;
        let retried = World { renewals, ..RETRIED };
        explore(World { forced: 1, ..retried }).is_sound(500_000, &[R::Renewed]);
        let release_retries = 1;
        explore(World {
            release_retries,
            ..retried
        })
        .is_sound(1_000_000, &[R::Renewed]);
    }

    #[test]
    fn replicas_that_all_crash_are_safe() {
        explore(World {
            crashes: 2,
            ..OTHER_THERE
        })
        .is_sound(200_000, &[R::Expired]);
    }

    #[test]
    fn a_renewed_lease_that_expires_is_safe_where_reads_and_steps_are_apart() {
        let world = World {
            reads_apart: true,
            renewals: 2,
            ..TWO
        };
        explore(world).is_sound(5_000_000, &[R::ExpiryMetANewerVersion, R::Renewed]);
    }

    #[test]
    fn readers_and_semaphore_claims_are_safe() {
        let shared = |shares| World { shares, ..THREE };
        explore(World {
            tries: 2,
            ..shared(READERS_FIRST)
        })
        .is_sound(200_000, &[R::RemovedATry]);
        explore(shared([ONE, ONE, ALL])).is_sound(200_000, &[R::ReleasedWithNext]);
        let batches = true;
        explore(World {
            batches,
            ..shared([ALL, ONE, ONE])
        })
        .is_sound(200_000, &[R::Batched]);
        explore(World {
            batches,
            ..shared(LIMITS)
        })
        .is_sound(200_000, &[R::Batched]);
    }

    #[test]
    fn watches_wake_readers_semaphore_claims_and_those_behind_a_replica_that_crashed() {
        let shared = |shares| World {
            shares,
            watches: true,
            ..THREE
        };
        explore(shared([EXCLUSIVE; 3])).is_sound(200_000, &[R::ReleasedWithNext]);
        explore(shared(READERS_FIRST)).is_sound(200_000, &[R::ReleasedWithNext]);
        explore(shared([ONE, ALL, ONE])).is_sound(200_000, &[R::ReleasedWithNext]);
        explore(shared(LIMITS)).is_sound(200_000, &[R::ReleasedWithNext]);
        let crashes = 1;
        explore(World {
            crashes,
            ..shared(WRITER_FIRST)
        })
        .is_sound(500_000, &[R::Expired]);
    }

    #[test]
    fn two_claims_with_a_retry_each_are_safe() {
        let world = World {
            calls: &[(0, 0), (0, 1), (1, 0), (1, 1)],
            request_ids: 3,
            ..RETRIED
        };
        explore(world).is_sound(2_000_000, &[R::AdoptedAHolder, R::AdoptedAWaiter]);
    }

    #[test]
    fn two_choices_of_releases_are_harmless() {
        let harmless = |flaws| World { flaws, ..THREE };
        let looks = harmless(&[Flaw::NextIsNotItsStep]);
        explore(looks).is_sound(100_000, &[R::ReleasedWithNext]);
        let release_retries = 1;
        let alone = harmless(&[Flaw::NextNeedsNoHolder]);
        explore(World {
            release_retries,
            ..alone
        })
        .is_sound(500_000, &[R::ReleasedWithNext]);
    }

    /// There are more than can be walked: nothing is wrong in the nearest ones.
    #[test]
    fn the_nearest_states_of_crowded_worlds_are_safe() {
        let crowded = World {
            calls: &[(0, 0), (0, 1), (1, 0), (2, 1)],
            ..RETRIED
        };
        let twice = World {
            calls: &[(0, 0), (0, 1), (0, 0), (1, 1)],
            ..RETRIED
        };
        for world in [
            crowded,
            twice,
            World {
                watches: true,
                ..crowded
            },
            World {
                session_switches: 1,
                ..crowded
            },
            World { crashes: 1, ..twice },
            World {
                reads_apart: true,
                ..RETRIED
            },
        ] {
            super::super::explore_nearest(world, 4_000_000);
        }
    }
}
