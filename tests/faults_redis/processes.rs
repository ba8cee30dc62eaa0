//! Servers on one Redis, as their users run them, of which one is killed, stands still or is far away.

use futures::future::join;

use crate::clients::until_empty;
use crate::distance::{
    a_far_holder_renews_within_ten_round_trips, a_holder_of_a_server_in_pulses_renews_within_ten_round_trips,
    no_call_takes_twenty_round_trips,
};
use crate::forwarder::Forwarder;
use crate::harness::{best_of_three, replica, standalone};
use crate::killed::{DEAD, SHORT, go_on_at_another, kill_one_of_three, leases_of_the_killed_run_out};
use crate::moved::{
    guards_are_told_what_is_forced_at_another_server, guards_move_to_another_server,
    streams_leave_a_server_whose_store_is_away,
};
use crate::servers::{RedisServer, available};
use crate::standstill::stands_still;

/// How a namespace of this Redis is configured.
pub fn namespace(redis: &RedisServer) -> String {
    at(&redis.url())
}

fn at(url: &str) -> String {
    format!("backend = \"redis\"\nredis.urls = [\"{url}\"]\nredis.on_empty_store = \"admit\"")
}

// G54a, G54b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_frees_no_lease_and_its_waiters_hold_nobody_up() {
    if !available() {
        return;
    }
    let run = async || {
        let redis = RedisServer::start(&[]);
        kill_one_of_three(&namespace(&redis)).await
    };
    best_of_three(DEAD, run).await;
}

// G163
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_killed_server_go_on_at_another() {
    if !available() {
        return;
    }
    // The killed server's holder keeps its TTL, then its waiters their few seconds.
    let run = async || {
        let redis = RedisServer::start(&[]);
        go_on_at_another(&namespace(&redis)).await
    };
    best_of_three(SHORT + DEAD, run).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_a_killed_server_that_ran_out_is_known_to_have_expired_at_another() {
    if !available() {
        return;
    }
    let redis = RedisServer::start(&[]);
    leases_of_the_killed_run_out(&namespace(&redis)).await;
}

// G163
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_of_a_server_that_fails_move_to_another_within_their_ttl() {
    if !available() {
        return;
    }
    let redis = RedisServer::start(&[]);
    guards_move_to_another_server(&namespace(&redis)).await;
}

// G39
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_is_told_at_once_that_its_lease_was_forced_at_another_server() {
    if !available() {
        return;
    }
    let redis = RedisServer::start(&[]);
    guards_are_told_what_is_forced_at_another_server(&namespace(&redis)).await;
}

// G163
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_leaves_a_server_whose_store_is_away() {
    if !available() {
        return;
    }
    let redis = RedisServer::start(&[]);
    let forwarder = Forwarder::before(redis.port()).await;
    let first = at(&format!("redis://{}", forwarder.address()));
    streams_leave_a_server_whose_store_is_away(&first, &namespace(&redis), || forwarder.stall()).await;
}

// G139
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_a_server_stands_still_with_a_commit_in_flight() {
    if !available() {
        return;
    }
    let run = async |arrives_afterwards| {
        let redis = RedisServer::start(&[]);
        let namespace = |address: &str| at(&format!("redis://{address}"));
        stands_still(redis.port(), namespace, |text| text.into(), arrives_afterwards).await;
        until_empty(&replica(&standalone(&redis.url())).await).await;
    };
    join(run(false), run(true)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_far_away_is_served_and_no_call_takes_longer_than_twenty_round_trips() {
    if !available() {
        return;
    }
    let redis = RedisServer::start(&[]);
    let connect = async |address| replica(&standalone(&format!("redis://{address}"))).await;
    no_call_takes_twenty_round_trips(redis.port(), connect).await;
}

// G196
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_server_is_far_from_redis_renews_while_near_clients_change_its_lock() {
    if !available() {
        return;
    }
    let redis = RedisServer::start(&[]);
    let connect = async |address| replica(&standalone(&format!("redis://{address}"))).await;
    a_far_holder_renews_within_ten_round_trips(redis.port(), connect).await;
}

// G196
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_server_stands_still_again_and_again_renews_while_near_clients_change_its_lock() {
    if !available() {
        return;
    }
    let redis = RedisServer::start(&[]);
    let near = replica(&standalone(&redis.url())).await;
    a_holder_of_a_server_in_pulses_renews_within_ten_round_trips(&namespace(&redis), &near).await;
}
