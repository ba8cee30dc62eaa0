//! Servers whose wall clock is wrong, and token bases that a wrong clock has written.

use std::time::Duration;

use etcd_client::Client;
use fencepost::name::FencingToken;

use crate::forwarder::Forwarder;
use crate::harness::{acquire, cluster, etcd, namespace, replica, serves, steady, take, token, unready};
use crate::servers::Cluster;
use crate::wild_clock;

const TTL: Duration = Duration::from_secs(60);
const DAY: u64 = 86_400_000_000;

/// How a namespace of this etcd is configured.
fn config(cluster: &Cluster) -> String {
    format!("backend = \"etcd\"\netcd.endpoints = {:?}", cluster.urls())
}

// G6, G78
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_beyond_the_range_of_tokens_ruins_nothing() {
    let Some(cluster) = cluster(1, &[]) else { return };
    wild_clock::a_clock_beyond_the_range_ruins_nothing(&config(&cluster)).await;
}

// G75
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_years_ahead_raises_no_token_until_it_is_admitted() {
    let Some(cluster) = cluster(1, &[]) else { return };
    wild_clock::a_clock_years_ahead_raises_no_token_until_it_is_admitted(&config(&cluster)).await;
}

// G77, G78
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_in_1970_is_safe() {
    let Some(cluster) = cluster(1, &[]) else { return };
    wild_clock::a_clock_of_1970_is_safe(&config(&cluster)).await;
}

// G76
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_follow_the_clock_while_a_server_runs() {
    let Some(cluster) = cluster(1, &[]) else { return };
    wild_clock::tokens_follow_the_clock_while_a_server_runs(&config(&cluster)).await;
}

// G76
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_jumps_keeps_nothing_held() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let way = Forwarder::before(cluster.servers[0].port()).await;
    let config = format!("backend = \"etcd\"\netcd.endpoints = [\"http://{}\"]", way.address());
    wild_clock::a_clock_that_jumps_keeps_nothing_held(&config, || way.cut()).await;
}

async fn base(etcd: &mut Client) -> u64 {
    let read = etcd.get(format!("/fencepost/{}/token_base", namespace()), None).await;
    let read = read.expect("etcd answers");
    read.kvs()[0].value_str().expect("text").parse().expect("a number")
}

async fn write_base(etcd: &mut Client, base: u64) {
    let key = format!("/fencepost/{}/token_base", namespace());
    etcd.put(key, base.to_string(), None).await.expect("etcd answers");
}

/// Bases that a server wrote in the years 2326 and 2255, and the largest that there is.
const RUINED: [u64; 3] = [11_234_000_000_000_000, FencingToken::MAX - 1_000, u64::MAX];

// G79
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_beyond_the_range_of_tokens_is_replaced_at_the_start_of_a_server() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let mut etcd = etcd(&cluster).await;
    let locks = replica(&cluster).await;
    let mut last = token(&take(&locks, "first", TTL).await);
    let right = base(&mut etcd).await;
    locks.close().await;
    for (number, ruined) in RUINED.into_iter().enumerate() {
        write_base(&mut etcd, ruined).await;
        let locks = replica(&cluster).await;
        let next = token(&take(&locks, &format!("lock{number}"), TTL).await);
        assert!(next > last, "{next} after {last}");
        last = next;
        assert!(base(&mut etcd).await < right + DAY);
        locks.close().await;
    }
}

// G79
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_beyond_the_range_of_tokens_grants_nothing_and_is_replaced_while_a_server_runs() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let mut etcd = etcd(&cluster).await;
    let locks = unready(steady(cluster.urls()));
    serves(&locks, Duration::from_secs(20)).await;
    let held = take(&locks, "a", TTL).await;
    let mut last = token(&held);
    for (number, ruined) in RUINED.into_iter().enumerate() {
        write_base(&mut etcd, ruined).await;
        // Nobody is left behind who holds with a token that is none.
        let next = token(&rides_out(&locks, &format!("lock{number}")).await);
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    locks.renew(&held.key, None).await.expect("it is held");
}

/// Acquires without a wait as soon as the store serves.
async fn rides_out(locks: &fencepost::locks::Locks, lock: &str) -> fencepost::locks::Lease {
    let again = async {
        loop {
            match acquire(locks, lock, TTL, Duration::ZERO).await {
                Err(fencepost::error::Error::Backend(error)) if error.is_transient() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                held => return held.expect("it is free"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again)
        .await
        .expect("it serves again")
}
