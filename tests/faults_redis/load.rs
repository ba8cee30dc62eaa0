//! Clients of two servers that want one lock all the time, while Redis fails: whoever is sure to hold is never refused,
//! tokens rise, and nothing is left behind.

use std::time::Duration;

use crate::clock_steps::HOUR;
use crate::crowd::Load;
use crate::harness::{impatient, replica, standalone};
use crate::servers::{RedisServer, available};

/// How often a fault is repeated.
const TIMES: u32 = if cfg!(feature = "soak") { 30 } else { 2 };
/// How long the clients are left alone before a fault.
const CALM: Duration = Duration::from_secs(1);

/// Begins one that lasts at least so long.
async fn begin(server: &RedisServer, time: Duration) -> Load {
    let settings = impatient(standalone(&server.url()));
    Load::begin([replica(&settings).await, replica(&settings).await], time)
}

// G93
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_redis_crashes() {
    if !available() {
        return;
    }
    let mut server = RedisServer::durable();
    let load = begin(&server, 2 * CALM * (TIMES + 1)).await;
    for _ in 0..TIMES {
        tokio::time::sleep(CALM).await;
        server.kill9();
        server.restart();
    }
    load.ends_well().await;
}

/// Longer than a call may take, and than a lease lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_redis_stands_still() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let pause = Duration::from_secs(4);
    let load = begin(&server, (CALM + pause) * TIMES).await;
    for _ in 0..TIMES {
        tokio::time::sleep(CALM).await;
        server.pause();
        tokio::time::sleep(pause).await;
        server.resume();
    }
    load.ends_well().await;
}

// G80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_while_the_clock_is_stepped_back() {
    if !available() {
        return;
    }
    let mut server = RedisServer::with_clock(&[]);
    let steps = if cfg!(feature = "soak") { 200 } else { 4 };
    let load = begin(&server, CALM * (steps + 1)).await;
    for step in 1..=steps {
        tokio::time::sleep(CALM).await;
        server.shift_clock(-HOUR * i64::from(step));
    }
    load.ends_well().await;
}
