//! Thousands of waiters: all time out on time, or all are served in order.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tonic_types::StatusExt;

use super::server::Server;
use super::traffic::{Client, alone, ask, connect, give, runtime, take, until_waiting};

const WAITERS: usize = if cfg!(feature = "soak") { 10_000 } else { 2500 };
/// How many begin to wait together where the order counts: twenty groups come.
const GROUP: usize = WAITERS / 20;
const WAIT: Duration = Duration::from_secs(5);
/// How much later than their wait all may be answered: so many times what as many tries take on this machine just
/// before, and two seconds for what else runs on it.
const TIMES_TRIES: u32 = 4;
const LATE: Duration = Duration::from_secs(2);
const PATIENT: Duration = Duration::from_secs(120);

/// Waits in vain and says how long.
async fn time_out(client: &Client, lock: String) -> Duration {
    let began = Instant::now();
    let refused = take(client, ask(&lock, WAIT)).await.expect_err("it is held");
    let took = began.elapsed();
    let reason = refused.get_details_error_info().expect("details").reason;
    assert_eq!(reason, "WAIT_TIMEOUT", "{refused:?}");
    took
}

/// Holds so many locks while all waiters wait for them in vain.
fn all_time_out(locks: usize) {
    let _alone = alone();
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let lock = |number: usize| format!("lock-{}", number % locks);
    let (took, tries) = runtime().block_on(async {
        let client = connect(&server.address).await;
        let attempt = |number: usize| take(&client, ask(&lock(number), Duration::ZERO));
        for number in 0..locks {
            attempt(number).await.expect("it is free");
        }
        let began = Instant::now();
        let refused = join_all((0..WAITERS).map(attempt)).await;
        let tries = began.elapsed();
        assert!(refused.iter().all(Result::is_err), "all are held");
        let waiters = (0..WAITERS).map(|waiter| time_out(&client, lock(waiter)));
        let took = join_all(waiters).await;
        until_waiting(&client, 0).await;
        (took, tries)
    });
    let (first, last) = (took.iter().min().expect("many"), took.iter().max().expect("many"));
    println!(
        "{WAITERS} waits of {WAIT:?} for {locks} locks ended after {first:?} to {last:?}, as many tries {tries:?}"
    );
    assert!(*first >= WAIT, "one ended after {first:?}");
    assert!(
        *last <= WAIT + LATE + tries * TIMES_TRIES,
        "one ended after {last:?}, tries {tries:?}"
    );
}

#[test]
fn thousands_of_waiters_of_one_lock_time_out_on_time() {
    all_time_out(1);
}

#[test]
fn thousands_of_waiters_of_a_thousand_locks_time_out_on_time() {
    all_time_out(1000);
}

/// Waits until it is served, gives the lock back at once, and says which token it had.
async fn be_served(client: &Client) -> u64 {
    let lease = take(client, ask("hot", PATIENT)).await.expect("it is served");
    let token = lease.fencing_token;
    give(client, lease).await;
    token
}

#[test]
fn thousands_of_waiters_of_one_lock_are_served_in_order() {
    let _alone = alone();
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let began = Instant::now();
    let (tokens, took) = runtime().block_on(async {
        let client = connect(&server.address).await;
        let first = take(&client, ask("hot", Duration::ZERO)).await.expect("it is free");
        let mut waiters = Vec::new();
        for group in 1..=WAITERS / GROUP {
            waiters.extend((0..GROUP).map(|_| {
                let client = client.clone();
                tokio::spawn(async move { be_served(&client).await })
            }));
            until_waiting(&client, (group * GROUP) as u32).await;
        }
        let queued = Instant::now();
        give(&client, first).await;
        let tokens = join_all(waiters).await;
        (tokens, queued.elapsed())
    });
    println!(
        "{WAITERS} waiters came in {:?} and were served in {took:?}",
        began.elapsed() - took
    );
    let tokens: Vec<u64> = tokens.into_iter().map(|token| token.expect("it ends")).collect();
    in_order(&tokens);
}

/// Nobody of a group is served before anybody of the group that came before it.
fn in_order(tokens: &[u64]) {
    let spans: Vec<(u64, u64)> = tokens
        .chunks(GROUP)
        .map(|group| {
            let (first, last) = (group.iter().min(), group.iter().max());
            (*first.expect("some"), *last.expect("some"))
        })
        .collect();
    for pair in spans.windows(2) {
        assert!(pair[0].1 < pair[1].0, "overtaken: {spans:?}");
    }
}
