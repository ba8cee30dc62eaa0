//! Servers on one database, as their users run them, of which one is killed, stands still or is far away.

use futures::future::join;

use crate::distance::{
    a_far_holder_renews_within_ten_round_trips, a_holder_of_a_server_in_pulses_renews_within_ten_round_trips,
    no_call_takes_twenty_round_trips,
};
use crate::harness::{NOTICED, durable, in_statement, namespace, settings, settings_of};
use crate::killed::{DEAD, SHORT, go_on_at_another, kill_one_of_three, leases_of_the_killed_run_out};
use crate::replicas::{nothing_is_left, replica};
use crate::servers::available;
use crate::short_leases::their_ends_are_noticed;
use crate::standstill::stands_still;

// G54a, G54b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_frees_no_lease_and_its_waiters_hold_nobody_up() {
    if !available() {
        return;
    }
    let server = durable();
    let held_up = kill_one_of_three(&namespace(&server.address())).await;
    // A machine that stands still for a moment is no service that is late.
    assert!(held_up < 2 * DEAD, "{held_up:?}");
}

// G163
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_killed_server_go_on_at_another() {
    if !available() {
        return;
    }
    let server = durable();
    // The killed server's holder keeps its TTL, then its waiters their few seconds.
    let longest = go_on_at_another(&namespace(&server.address())).await;
    assert!(longest < SHORT + 2 * DEAD, "{longest:?}");
    nothing_is_left(&replica(settings(&server)).await, &server).await;
}

// G139
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_a_killed_server_that_ran_out_is_known_to_have_expired_at_another() {
    if !available() {
        return;
    }
    let server = durable();
    leases_of_the_killed_run_out(&namespace(&server.address())).await;
}

// G139
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_a_server_stands_still_with_a_commit_in_flight() {
    if !available() {
        return;
    }
    let run = async |arrives_afterwards| {
        let server = durable();
        stands_still(server.port(), namespace, in_statement, arrives_afterwards).await;
        nothing_is_left(&replica(settings(&server)).await, &server).await;
    };
    join(run(false), run(true)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_far_away_is_served_and_no_call_takes_longer_than_twenty_round_trips() {
    if !available() {
        return;
    }
    let server = durable();
    no_call_takes_twenty_round_trips(server.port(), async |address| replica(settings_of(vec![address])).await).await;
}

// G196
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_server_is_far_from_the_database_renews_while_near_clients_change_its_lock() {
    if !available() {
        return;
    }
    let server = durable();
    let open = async |address| replica(settings_of(vec![address])).await;
    a_far_holder_renews_within_ten_round_trips(server.port(), open).await;
}

// G196
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_server_stands_still_again_and_again_renews_while_near_clients_change_its_lock() {
    if !available() {
        return;
    }
    let server = durable();
    let near = replica(settings(&server)).await;
    a_holder_of_a_server_in_pulses_renews_within_ten_round_trips(&namespace(&server.address()), &near).await;
}

// G12, G13, G36b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_lease_of_another_server_is_noticed_at_once() {
    if !available() {
        return;
    }
    let server = durable();
    their_ends_are_noticed(async || replica(settings(&server)).await, NOTICED).await;
}
