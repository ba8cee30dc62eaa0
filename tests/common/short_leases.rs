//! Leases that end by themselves while another server waits for their lock, or watches it.

use std::time::Duration;

use fencepost::backend::{ChangeKind, WatchEvent};
use fencepost::claim::Cause;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::Owner;
use futures::StreamExt;
use futures::future::join_all;
use tokio::time::{Instant, sleep};

use crate::clients::{ask, name, take};

/// How long they live, at least: shorter than each poll of a store, as long, and longer.
const TTLS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(6)];
/// Longer than a run lasts.
const LONG: Duration = Duration::from_secs(60);

/// Asserts that of two servers of a store, and of three, each notices the end of a lease that another one has granted so soon
/// after it: who waits there is granted the lock, and who watches it is shown the end.
pub async fn their_ends_are_noticed(open: impl AsyncFn() -> Locks, late: Duration) {
    for count in [2, 3] {
        let servers: Vec<_> = join_all((0..count).map(|_| open())).await;
        let mut seen = Vec::new();
        // A machine that stands still for a moment is no server that is late.
        while seen.iter().all(|took| *took > late) {
            assert!(seen.len() < 3, "{count} servers: not within {late:?}: {seen:?}");
            let run = seen.len();
            let ends = TTLS.iter().map(async |ttl| {
                let lock = format!("{count}-{run}-{}", ttl.as_secs());
                let (waited, watched) = tokio::join!(
                    waits(&servers, format!("{lock}-waited"), *ttl),
                    watches(&servers, format!("{lock}-watched"), *ttl)
                );
                println!("{count} servers, {ttl:?}: granted {waited:?} and shown {watched:?} after the end");
                waited.max(watched)
            });
            seen.extend(join_all(ends).await.into_iter().max());
        }
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
        let (server, call) = (locks.clone(), waiter.clone());
        calls.push(tokio::spawn(async move {
            let lease = server.acquire(call).await.expect("it is granted").delivered();
            (lease, Instant::now())
        }));
        let is_queued = async || {
            let queue = locks.inspect(&name(&lock), 9).await.expect("it serves");
            queue.waiters.iter().any(|known| known.owner == waiter.owner)
        };
        while !is_queued().await {
            sleep(Duration::from_millis(5)).await;
        }
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
            WatchEvent::State(queue) => was_held && queue.holders.is_empty(),
        };
        // A state may come in place of changes, and from before the grant.
        was_held = true;
        if is_over {
            return Instant::now().saturating_duration_since(end);
        }
    }
}
