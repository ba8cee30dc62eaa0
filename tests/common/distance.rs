//! Servers at unequal distances from their store.

use std::time::{Duration, Instant};

use fencepost::error::Error;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::Mode;
use futures::future::join_all;

use crate::clients::ask;
use crate::forwarder::{Answers, Forwarder};

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
async fn share(locks: Locks, lock: &'static str) -> Result<Calls, Error> {
    let (mut calls, began) = (Calls::default(), Instant::now());
    while began.elapsed() < TIME {
        let minute = Duration::from_secs(60);
        let ask = Acquire {
            mode: Mode::Shared,
            ..ask(lock, minute, Duration::ZERO)
        };
        let sent = Instant::now();
        let lease = locks.acquire(ask).await?.delivered();
        let acquired = Instant::now();
        locks.release(&lease.key).await?;
        let released = Instant::now();
        let slowest = (acquired - sent).max(released - acquired);
        calls.add(Calls {
            count: 2,
            all: released - sent,
            slowest,
        });
    }
    Ok(calls)
}

/// The calls of several clients on one lock.
async fn share_by_many(locks: &Locks) -> Result<Calls, Error> {
    let clients = (0..CLIENTS).map(|_| tokio::spawn(share(locks.clone(), "hot")));
    let mut all = Calls::default();
    for calls in join_all(clients).await {
        all.add(calls.expect("no panic")?);
    }
    Ok(all)
}

/// The calls of the near clients and of the far ones on one lock, and those of a far one that is alone on its lock.
async fn run(near: &Locks, far: &Locks) -> Result<[Calls; 3], Error> {
    let (near, far, alone) = tokio::join!(share_by_many(near), share_by_many(far), share(far.clone(), "own"));
    Ok([near?, far?, alone?])
}

/// Asserts that no call of clients of two servers on the store at this port takes as long as 20 calls of one that is alone,
/// although one of the servers is far away.
pub async fn no_call_takes_twenty_round_trips(port: u16, replica: impl AsyncFn(String) -> Locks) {
    let mut seen = Vec::new();
    // A machine that stands still for a moment is no server that starves, and may fail a call.
    for _ in 0..5 {
        let way = Forwarder::before(port).await;
        way.answers(Answers::Late(DISTANCE));
        let (near, far) = (replica(format!("127.0.0.1:{port}")).await, replica(way.address()).await);
        let calls = run(&near, &far).await;
        println!("near, far and alone: {calls:?}");
        if let Ok([near, far, alone]) = calls {
            assert!(near.count > 0 && far.count > 0);
            if near.slowest.max(far.slowest) < 20 * alone.mean() {
                return;
            }
        }
        seen.push(calls);
    }
    panic!("{seen:?}");
}
