//! Servers on one etcd, as their users run them, of which one is killed.

use crate::harness::{Lateness, cluster};
use crate::killed::{DEAD, SHORT, go_on_at_another, kill_one_of_three, leases_of_the_killed_run_out};
use crate::moved::{guards_are_told_what_is_forced_at_another_server, guards_move_to_another_server};
use crate::servers::Cluster;

/// How a namespace of this etcd is configured.
fn namespace(cluster: &Cluster) -> String {
    format!("backend = \"etcd\"\netcd.endpoints = {:?}", cluster.urls())
}

// G54
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_frees_no_lease_and_its_waiters_hold_nobody_up() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let lateness = Lateness::begin();
    let held_up = kill_one_of_three(&namespace(&cluster)).await;
    let late = lateness.so_far();
    assert!(held_up < DEAD + late, "{held_up:?}, {late:?}");
}

// G163
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_killed_server_go_on_at_another() {
    let Some(cluster) = cluster(3, &[]) else { return };
    // The killed server's holder keeps its TTL, then its waiters their few seconds.
    let lateness = Lateness::begin();
    let longest = go_on_at_another(&namespace(&cluster)).await;
    let late = lateness.so_far();
    assert!(longest < SHORT + DEAD + late, "{longest:?}, {late:?}");
}

// G29
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_a_killed_server_that_ran_out_is_known_to_have_expired_at_another() {
    let Some(cluster) = cluster(1, &[]) else { return };
    leases_of_the_killed_run_out(&namespace(&cluster)).await;
}

// G163
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_of_a_server_that_fails_move_to_another_within_their_ttl() {
    let Some(cluster) = cluster(1, &[]) else { return };
    guards_move_to_another_server(&namespace(&cluster)).await;
}

// G39
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_is_told_at_once_that_its_lease_was_forced_at_another_server() {
    let Some(cluster) = cluster(1, &[]) else { return };
    guards_are_told_what_is_forced_at_another_server(&namespace(&cluster)).await;
}
