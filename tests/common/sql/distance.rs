//! Servers at unequal distances from the database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::locks::{Acquire, Locks};
use fencepost::name::Mode;
use futures::future::join_all;

use crate::clients::ask;
use crate::forwarder::{Answers, Forwarder};
use crate::harness::{Server, durable, settings, settings_of};
use crate::replicas::replica;
use crate::servers::available;

/// How much later each answer reaches the far server.
const DISTANCE: Duration = Duration::from_millis(3);
/// How long both use the lock.
const TIME: Duration = Duration::from_secs(2);
/// How many clients each server has.
const CLIENTS: usize = 8;

/// How long calls took.
#[derive(Debug, Default, Clone, Copy)]
struct Calls {
    count: u32,
    all: Duration,
    slowest: Duration,
}

impl Calls {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.all += other.all;
        self.slowest = self.slowest.max(other.slowest);
    }

    fn mean(&self) -> Duration {
        self.all / self.count.max(1)
    }
}

/// Acquires and releases a share of a lock: each call changes its record, and waits for nobody.
async fn share(locks: Locks, lock: &'static str) -> Calls {
    let (mut calls, began) = (Calls::default(), Instant::now());
    while began.elapsed() < TIME {
        let minute = Duration::from_secs(60);
        let ask = Acquire {
            mode: Mode::Shared,
            ..ask(lock, minute, Duration::ZERO)
        };
        let sent = Instant::now();
        let lease = locks.acquire(ask).await.expect("it fits").delivered();
        let acquired = Instant::now();
        locks.release(&lease.key).await.expect("it is held");
        let released = Instant::now();
        let slowest = (acquired - sent).max(released - acquired);
        calls.add(Calls {
            count: 2,
            all: released - sent,
            slowest,
        });
    }
    calls
}

/// The calls of the near clients and of the far ones on one lock, and those of a far one that is alone on its lock.
async fn run(server: &Server) -> [Calls; 3] {
    let way = Forwarder::before(server.port()).await;
    way.answers(Answers::Late(DISTANCE));
    let near = replica(settings(server)).await;
    let far = replica(settings_of(vec![way.address()])).await;
    let crowd = |locks: &Locks| {
        let locks = Arc::new(locks.clone());
        async move {
            let mut all = Calls::default();
            let clients = join_all((0..CLIENTS).map(|_| tokio::spawn(share((*locks).clone(), "hot"))));
            clients
                .await
                .into_iter()
                .for_each(|calls| all.add(calls.expect("no panic")));
            all
        }
    };
    let (near, far, alone) = tokio::join!(crowd(&near), crowd(&far), share(far.clone(), "own"));
    [near, far, alone]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_far_away_is_served_and_no_call_takes_longer_than_twenty_round_trips() {
    if !available() {
        return;
    }
    let server = durable();
    let mut seen = Vec::new();
    // A machine that stands still for a moment is no server that starves.
    for _ in 0..5 {
        let [near, far, alone] = run(&server).await;
        println!("near {near:?}, far {far:?}, alone {alone:?}");
        assert!(near.count > 0 && far.count > 0);
        if near.slowest.max(far.slowest) < 20 * alone.mean() {
            return;
        }
        seen.push((near, far, alone));
    }
    panic!("{seen:?}");
}
