//! A Redis whose wall clock is stepped. It is the only clock that its scripts have: forth, it ends
//! leases early, as GUARANTEES.md says; everything else must stay as it is.

use std::time::Duration;

use common::clock_steps::HOUR;
use fencepost::backend::Health;

use crate::faults_redis::harness::{HOT_TTL, contend, replica, standalone, take, token};
use crate::faults_redis::servers::{RedisServer, available};

const TTL: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_and_grants_go_on_while_the_clock_is_stepped_under_load() {
    common::skip_unless!(available());
    let mut server = RedisServer::with_clock(&[]);
    let settings = standalone(&server.url());
    let replicas = [replica(&settings).await, replica(&settings).await];
    let steps = if cfg!(feature = "soak") { 200 } else { 8 };
    let pause = Duration::from_millis(500);
    let step = tokio::task::spawn_blocking(move || {
        for n in 0..steps {
            server.shift_clock([HOUR, 0, -HOUR, 0][n % 4]);
            std::thread::sleep(pause);
        }
        server
    });
    let grants = 200 * steps / 8;
    let seen = contend(&replicas, 6, pause * u32::try_from(steps).unwrap(), grants).await;
    let _server = step.await.unwrap();
    assert!(seen.tokens.len() >= grants, "{}", seen.tokens.len());
    assert!(seen.gap < HOT_TTL, "{:?}", seen.gap);
    assert!(seen.failed.is_empty(), "{:?}", seen.failed);
    // Each step forth ends at most the lease that is held at that moment.
    assert!(seen.lost <= steps / 2, "{}", seen.lost);
    assert_eq!(*replicas[0].health().borrow(), Health::Serving);
}

// G6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_beyond_the_range_of_tokens_ruins_no_lock() {
    const CENTURIES: i64 = 300 * 365 * 24 * HOUR;
    common::skip_unless!(available());
    let mut server = RedisServer::with_clock(&[]);
    let locks = replica(&standalone(&server.url())).await;
    let grant = async |lock: &str| {
        let lease = take(&locks, lock, LONG).await;
        locks.release(&lease.key).await.unwrap();
        token(&lease)
    };
    let (idle, mut last) = (grant("idle").await, grant("a").await);
    server.shift_clock(CENTURIES);
    for round in 0..10 {
        let next = grant("a").await;
        assert!(next > last, "{next} after {last}");
        last = next;
        // Redis has deleted what it keeps for some days, as it does whenever they have passed.
        let mut before = idle;
        for pass in 1..3 {
            server.shift_clock(CENTURIES + 24 * HOUR * (2 * round + pass) * 5);
            let next = grant("idle").await;
            assert!(next > before, "{next} after {before}");
            before = next;
        }
        last = last.max(grant("a").await);
    }
    // However far it is ahead.
    server.shift_clock(40 * CENTURIES);
    last = grant("a").await;
    assert!(last > idle && grant("fresh in the year 14000").await > idle);
    server.shift_clock(CENTURIES);
    let held = take(&locks, "held", TTL).await;
    server.shift_clock(0);
    // It has lived through no time but what passed.
    locks.renew(&held.key, None).await.unwrap();
    locks.release(&held.key).await.unwrap();
    assert!(grant("held").await > token(&held) && grant("a").await > last);
    let fresh = grant("fresh").await;
    assert!(fresh > idle && fresh < idle + 3_600_000_000, "{fresh}");
}
