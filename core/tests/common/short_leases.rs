//! Leases that end by themselves while another server waits for their lock, or watches it.

use std::time::Duration;

use fencepost_core::backend::{ChangeKind, WatchEvent};
use fencepost_core::claim::Cause;
use fencepost_core::locks::{Acquire, Lease, Locks};
use fencepost_core::name::Owner;
use futures::StreamExt;
use futures::future::{join, join_all};
use tokio::time::{Instant, sleep};

use crate::clients::{ask, name, take};

/// How long they live, at least: shorter than the poll of a store, as long, and longer. That of PostgreSQL is 1 s, that of
/// Redis 5 s, and that of MySQL a part of the shortest TTL; etcd and ZooKeeper have none.
const TTLS: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(6),
];
/// Longer than a run lasts.
const LONG: Duration = Duration::from_secs(60);
/// How many runs there are, and how many of them must be in time: a machine that stands still for a moment is no server
/// that is late.
const RUNS: (usize, usize) = (3, 2);

/// Asserts that of two servers of a store, and of three, each notices the end of a lease that another one has granted so soon
/// after it: who waits there is granted the lock, and who watches it is shown the end. The end is that of its time, or a
/// release, a force, or an undo.
pub async fn their_ends_are_noticed(open: impl AsyncFn() -> Locks, late: Duration) {
    let (mut seen, mut good) = (Vec::new(), 0);
    let servers: Vec<_> = join_all((0..3).map(|_| open())).await;
    while good < RUNS.1 {
        let run = seen.len() + good;
        let took = join(ends(&servers[..2], run), ends(&servers, run)).await;
        match took.0.max(took.1) {
            took if took <= late => good += 1,
            took => seen.push(took),
        }
        assert!(seen.len() <= RUNS.0 - RUNS.1, "not within {late:?}: {seen:?}");
    }
}

/// The longest time after which an end is noticed.
async fn ends(servers: &[Locks], run: usize) -> Duration {
    let lock = |kind: &str| format!("{}-{run}-{kind}", servers.len());
    let by_time = join_all(TTLS.iter().map(async |ttl| {
        let (waited, watched) = tokio::join!(
            waits(servers, lock(&format!("{ttl:?}-waited")), *ttl),
            watches(servers, lock(&format!("{ttl:?}-watched")), *ttl)
        );
        println!(
            "{} servers, {ttl:?}: granted {waited:?} and shown {watched:?} after the end",
            servers.len()
        );
        waited.max(watched)
    }));
    let by_call = join_all([End::Release, End::Force, End::Undo].map(async |end| {
        let took = hands_over(servers, lock(&format!("{end:?}")), end).await;
        println!(
            "{} servers, {end:?}: granted and shown {took:?} after it",
            servers.len()
        );
        took
    }));
    let (by_time, by_call) = join(by_time, by_call).await;
    by_time.into_iter().chain(by_call).max().expect("some")
}

/// What ends a claim, other than its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Release,
    Force,
    Undo,
}

/// How long after a claim of the first server has ended the last server's waiter is granted the lock, and its watch shows it.
async fn hands_over(servers: &[Locks], lock: String, end: End) -> Duration {
    let [first, .., last] = servers else {
        panic!("two servers")
    };
    let mut watch = last.watch(&name(&lock));
    watch.next().await.expect("the state").expect("it serves");
    let held = take(first, &lock, LONG).await;
    // One that waits in front, where an undo is the end.
    let before = (end == End::Undo).then(|| tokio::spawn(acquire_of(first.clone(), "before", lock.clone())));
    if before.is_some() {
        until_queued(first, &lock, "before").await;
    }
    let waiter = tokio::spawn(acquire_of(last.clone(), "waiter", lock.clone()));
    until_queued(last, &lock, "waiter").await;
    let began = Instant::now();
    if let Some(before) = before {
        before.abort();
    }
    let ended = match end {
        End::Force => first.force_release(&name(&lock), held.key.token).await,
        End::Release | End::Undo => first.release(&held.key).await,
    };
    ended.expect("it is held");
    let lease = waiter.await.expect("no panic");
    let is_shown = |seen: &WatchEvent| match seen {
        WatchEvent::Change(change) => change.kind == ChangeKind::Granted && change.token == Some(lease.key.token),
        WatchEvent::State(queue) => queue.holders.iter().any(|holder| holder.token == lease.key.token),
    };
    while !is_shown(&watch.next().await.expect("it goes on").expect("it serves")) {}
    began.elapsed()
}

async fn acquire_of(locks: Locks, owner: &str, lock: String) -> Lease {
    let waiter = Acquire {
        owner: Owner::new(owner).expect("a good name"),
        ..ask(&lock, LONG, LONG)
    };
    locks.acquire(waiter).await.expect("it is granted").delivered()
}

/// Waits until this owner is queued, as this server sees it.
async fn until_queued(locks: &Locks, lock: &str, owner: &str) {
    let is_queued = async || {
        let queue = locks.inspect(&name(lock), 9).await.expect("it serves");
        queue.waiters.iter().any(|known| known.owner.as_str() == owner)
    };
    while !is_queued().await {
        sleep(Duration::from_millis(5)).await;
    }
}

/// How long after the end of a lease that followed another one the last server's waiter is granted the lock.
async fn waits(servers: &[Locks], lock: String, ttl: Duration) -> Duration {
    let [first, .., last] = servers else {
        panic!("two servers")
    };
    let next = &servers[servers.len() - 2];
    let held = take(first, &lock, LONG).await;
    let mut calls = Vec::new();
    for (number, locks) in [next, last].into_iter().enumerate() {
        let waiter = Acquire {
            owner: Owner::new(&number.to_string()).expect("a good name"),
            ..ask(&lock, ttl, LONG)
        };
        let server = locks.clone();
        calls.push(tokio::spawn(async move {
            let lease = server.acquire(waiter).await.expect("it is granted").delivered();
            (lease, Instant::now())
        }));
        until_queued(locks, &lock, &number.to_string()).await;
    }
    first.release(&held.key).await.expect("it is held");
    let mut granted = Vec::new();
    for call in calls {
        granted.push(call.await.expect("no panic"));
    }
    granted.sort_by_key(|(_, at)| *at);
    let (short, at) = &granted[0];
    granted[1].1.saturating_duration_since(*at + short.ttl)
}

/// How long after the end of a lease of the first server a watch of the last one shows it.
async fn watches(servers: &[Locks], lock: String, ttl: Duration) -> Duration {
    let [first, .., last] = servers else {
        panic!("two servers")
    };
    let mut watch = last.watch(&name(&lock));
    watch.next().await.expect("the state").expect("it serves");
    let short = take(first, &lock, ttl).await;
    let end = Instant::now() + short.ttl;
    let mut was_held = false;
    loop {
        let seen = watch.next().await.expect("it goes on").expect("it serves");
        let is_over = match seen {
            WatchEvent::Change(change) => change.kind == ChangeKind::Ended(Cause::Expired),
            WatchEvent::State(queue) => queue.holders.is_empty() && (was_held || Instant::now() + short.ttl / 2 >= end),
        };
        // A state may come in place of changes, and from before the grant.
        was_held = true;
        if is_over {
            return Instant::now().saturating_duration_since(end);
        }
    }
}
