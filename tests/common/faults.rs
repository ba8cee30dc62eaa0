//! Faults that several stores have in common: one table, *fault × store*.
//!
//! A row of [`fault_table`] is a fault: the name of its test says what holds then, and its case is written once, over the
//! traits of [`stores`] (`store`), or for a namespace that is configured on a new store (`namespace`). A column is a store. A
//! cell is `yes`, or why the row has no test on that store:
//!
//! - `above`: what decides is above the store, in `core/src/locks` or the client, and the stores with `yes` show it.
//! - `own`: the store fails in another way, and has a test of its own: `tests/faults_redis` for a Redis that forgets,
//!   `tests/faults_redlock` for nodes that fail one by one, `tests/common/tree/leader.rs` for the leader of three.
//! - `server`: no clock of the store counts, but that of each server does: the last rows.
//! - `store`: no clock of a server counts, but that of the store does.
//! - `tree`: what comes late is refused by versions and sessions, not by the root of a record: `tests/common/tree`.
//! - `votes`: the nodes keep no queue, no record, and no lease that has ended.
//!
//! The embedded store has no column, because no server shares it: `tests/embedded` and `tests/faults` show its faults. The
//! simulated stores have none either: their storms mix these faults in every order.

pub mod answers;
pub mod cases;
pub mod records;
pub mod stores;

/// Makes the tests of a store: `common::faults!(redis, store::Redis);`
#[macro_export]
macro_rules! faults {
    ($column:ident, $store:ty) => {
        $crate::fault_table! { $column, $store }
    };
}

/// The table. Its columns: redis, redlock, etcd, zookeeper, postgres, mysql.
#[doc(hidden)]
#[macro_export]
macro_rules! fault_table {
    ($column:ident, $store:ty) => {
        $crate::fault_rows! { $column, $store;

        // A server of several is killed, stands still, or is far away.

        // G54a, G54b
        fn a_killed_server_frees_no_lease_and_its_waiters_hold_nobody_up
            [ yes   own   yes    yes       yes      yes   ] store faults::cases::killed;
        // G163
        fn clients_of_a_killed_server_go_on_at_another
            [ yes   votes yes    yes       yes      yes   ] store faults::cases::killed_under_load;
        // G122c, G139
        fn a_lease_of_a_killed_server_that_ran_out_is_known_to_have_expired_at_another
            [ yes   votes yes    yes       yes      yes   ] namespace killed::leases_of_the_killed_run_out;
        // G163
        fn guards_of_a_server_that_fails_move_to_another_within_their_ttl
            [ yes   above yes    yes       above    above ] namespace moved::guards_move_to_another_server;
        // G39
        fn a_guard_is_told_at_once_that_its_lease_was_forced_at_another_server
            [ yes   above yes    yes       yes      above ] namespace moved::guards_are_told_what_is_forced_at_another_server;
        // G163
        fn a_stream_leaves_a_server_whose_store_is_away
            [ yes   above above  above     above    above ] store moved::streams_leave_a_server_whose_store_is_away;
        // G12, G13, G36b
        fn the_end_of_a_lease_of_another_server_is_noticed_at_once
            [ yes   yes   yes    yes       yes      yes   ] store faults::cases::ended_elsewhere;
        // G139
        fn nobody_holds_beside_another_while_a_server_stands_still_with_a_commit_in_flight
            [ yes   votes tree   tree      yes      yes   ] store standstill::nobody_holds_beside_another;
        fn a_server_that_is_far_away_is_served_and_no_call_takes_longer_than_twenty_round_trips
            [ yes   votes tree   tree      yes      yes   ] store distance::no_call_takes_twenty_round_trips;
        // G196
        fn a_holder_whose_server_is_far_from_the_store_renews_while_near_clients_change_its_lock
            [ yes   votes tree   tree      yes      yes   ] store distance::a_far_holder_renews_within_ten_round_trips;
        // G196
        fn a_holder_whose_server_stands_still_again_and_again_renews_while_near_clients_change_its_lock
            [ yes   votes tree   tree      yes      yes   ] store distance::a_holder_of_a_server_in_pulses_renews_within_ten_round_trips;

        // The store hangs, or crashes.

        // G57
        fn a_wait_that_ends_while_the_store_stands_silent_says_so
            [ yes   own   yes    yes       yes      yes   ] store faults::cases::silent_store;
        // G58, G61b
        fn a_wait_that_arrives_while_the_store_hangs_is_granted_afterwards_and_waits_and_watches_end
            [ yes   yes   yes    yes       above    above ] store faults::cases::hanging_store;
        // G93, G140
        fn nobody_holds_beside_another_while_the_store_crashes
            [ yes   own   own    own       yes      yes   ] store faults::records::crashes_under_load;
        // G141
        fn nobody_holds_beside_another_while_the_store_stands_still
            [ yes   own   own    own       yes      yes   ] store faults::cases::stands_still_under_load;
        // G93, G140
        fn what_was_answered_is_there_after_a_crash_under_load
            [ yes   votes own    own       yes      yes   ] store record_faults::what_was_answered_outlives_crashes;

        // The network delays or loses answers, or a commit.

        // G1
        fn nobody_holds_beside_another_while_answers_are_lost_and_connections_break
            [ yes   own   yes    yes       yes      yes   ] store faults::answers::are_lost_under_load;
        fn nobody_holds_beside_another_while_answers_come_late
            [ yes   own   yes    yes       yes      yes   ] store faults::answers::are_late_under_load;
        // G16, G21
        fn a_call_whose_answer_is_lost_leaves_nothing_or_what_its_retry_finds
            [ yes   votes yes    yes       yes      yes   ] store faults::answers::are_lost_before_a_retry;

        // G17, G132
        fn a_late_commit_takes_effect_unless_a_settling_write_came_before_it
            [ yes   votes tree   tree      yes      yes   ] store record_faults::late_commits_take_effect_until_settled;
        // G17, G132
        fn a_commit_whose_answer_is_lost_is_unknown
            [ yes   votes tree   tree      yes      yes   ] store record_faults::a_commit_without_its_answer_is_unknown;

        // The clock of the store is stepped.

        // G80
        fn a_clock_stepped_forth_ends_leases_early_and_waiters_go_on
            [ yes   own   server server    yes      yes   ] store clock_steps::ends_leases_early_if_stepped_forth;
        // G80
        fn a_clock_stepped_back_ends_no_lease_and_freezes_none
            [ yes   own   server server    yes      yes   ] store clock_steps::ends_and_freezes_none_if_stepped_back;
        // G80
        fn nobody_holds_beside_another_while_the_clock_is_stepped_back
            [ yes   own   server server    yes      yes   ] store faults::cases::clock_back_under_load;
        // G77b
        fn tokens_of_each_lock_rise_by_a_clock_before_2020
            [ yes   own   server server    yes      yes   ] store clock_steps::tokens_of_each_lock_rise_before_2020;
        // G6
        fn a_clock_beyond_the_range_of_tokens_ruins_no_lock
            [ own   own   server server    yes      yes   ] store clock_steps::tokens_beyond_their_range_ruin_no_lock;
        // G78c
        fn the_log_says_that_the_clock_is_wrong
            [ yes   own   server server    yes      yes   ] store clock_steps::the_log_names_a_wrong_clock;

        // The clock of a server is wrong.

        // G6
        fn a_server_whose_clock_is_beyond_the_range_of_tokens_ruins_nothing
            [ store store yes    yes       store    store ] namespace wild_clock::a_clock_beyond_the_range_ruins_nothing;
        // G75a, G75c, G75e
        fn a_server_whose_clock_is_years_ahead_raises_no_token_until_it_is_admitted
            [ store store yes    yes       store    store ] namespace wild_clock::a_clock_years_ahead_raises_no_token_until_it_is_admitted;
        // G75b, G75d, G78a, G78b
        fn a_server_whose_clock_is_years_ahead_keeps_leases_and_grants_again_when_it_is_right
            [ store store yes    yes       store    store ] namespace wild_clock::a_clock_years_ahead_keeps_leases_until_it_is_right;
        // G75a
        fn a_server_whose_clock_is_less_than_a_year_ahead_grants
            [ store store yes    yes       store    store ] namespace wild_clock::a_clock_less_than_a_year_ahead_grants;
        // G77a, G78a
        fn a_server_whose_clock_is_in_1970_is_safe
            [ store store yes    yes       store    store ] namespace wild_clock::a_clock_of_1970_is_safe;
        // G76
        fn tokens_follow_the_clock_while_a_server_runs
            [ store store yes    yes       store    store ] namespace wild_clock::tokens_follow_the_clock_while_a_server_runs;
        // G76
        fn a_server_whose_clock_jumps_keeps_nothing_held
            [ store store yes    yes       store    store ] store wild_clock::a_clock_that_jumps_keeps_nothing_held;
        }
    };
}

/// The tests of one column.
#[doc(hidden)]
#[macro_export]
macro_rules! fault_rows {
    ($column:ident, $store:ty; $(fn $name:ident [$($cell:ident)+] $kind:ident $($case:ident)::+;)+) => {
        $($crate::fault_cell! { $column [$($cell)+] $name, $kind, $($case)::+, $store })+
    };
}

/// The test of one cell, or nothing where it has a reason.
#[doc(hidden)]
#[macro_export]
macro_rules! fault_cell {
    (redis [yes $($rest:ident)+] $($test:tt)+) => { $crate::fault_test! { $($test)+ } };
    (redlock [$a:ident yes $($rest:ident)+] $($test:tt)+) => { $crate::fault_test! { $($test)+ } };
    (etcd [$a:ident $b:ident yes $($rest:ident)+] $($test:tt)+) => { $crate::fault_test! { $($test)+ } };
    (zookeeper [$a:ident $b:ident $c:ident yes $($rest:ident)+] $($test:tt)+) => { $crate::fault_test! { $($test)+ } };
    (postgres [$a:ident $b:ident $c:ident $d:ident yes $e:ident] $($test:tt)+) => { $crate::fault_test! { $($test)+ } };
    (mysql [$a:ident $b:ident $c:ident $d:ident $e:ident yes] $($test:tt)+) => { $crate::fault_test! { $($test)+ } };
    ($column:ident [$($cell:ident)+] $($test:tt)+) => {};
}

#[doc(hidden)]
#[macro_export]
macro_rules! fault_test {
    ($name:ident, store, $($case:ident)::+, $store:ty) => {
        $crate::fault_test! { $name, $store, $crate::$($case)::+::<$store>() }
    };
    ($name:ident, namespace, $($case:ident)::+, $store:ty) => {
        $crate::fault_test! { $name, $store, async {
            let store = <$store as $crate::faults::stores::Store>::start();
            $crate::$($case)::+(&$crate::faults::stores::Store::namespace(&store)).await;
        } }
    };
    ($name:ident, $store:ty, $case:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $crate::skip_unless!(<$store as $crate::faults::stores::Store>::available());
            $case.await;
        }
    };
}
