//! What a pair of an Acquire and a Release costs etcd, as etcd itself counts it.

use std::collections::BTreeSet;
use std::ops::Sub;
use std::time::{Duration, Instant};

use etcd_client::WatchOptions;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::RequestId;
use futures::future::join_all;
use tokio::time::sleep_until;

use crate::harness::{ROOT, ask, calls, cleanup_since, cluster, etcd, figure, steady_replica};
use crate::servers::Cluster;

const TTL: Duration = Duration::from_secs(30);
const CALLERS: usize = 16;
const TIMES: usize = 40;

/// Requests, and what they did.
#[derive(Debug, Clone, Copy, Default)]
struct Costs {
    transactions: usize,
    reads: usize,
    /// Reads of keys: by requests, within transactions, and for their conditions.
    looks: usize,
    puts: usize,
    deletes: usize,
    fsyncs: usize,
    events: usize,
}

impl Costs {
    fn of(cluster: &Cluster) -> Self {
        Self {
            transactions: calls(cluster, "Txn"),
            reads: calls(cluster, "Range"),
            looks: figure(cluster, "etcd_mvcc_range_total"),
            puts: figure(cluster, "etcd_mvcc_put_total"),
            deletes: figure(cluster, "etcd_mvcc_delete_total"),
            fsyncs: figure(cluster, "etcd_disk_wal_fsync_duration_seconds_count"),
            events: figure(cluster, "etcd_debugging_mvcc_events_total"),
        }
    }

    /// Shows them for each of so many.
    fn show(self, what: &str, pairs: usize) {
        let each = |count: usize| count as f64 / pairs as f64;
        println!(
            "{what}, each of {pairs}: transactions {:.2}, reads {:.2}, looks {:.2}, puts {:.2}, deletes {:.2}, fsyncs \
             {:.2}, events {:.2}",
            each(self.transactions),
            each(self.reads),
            each(self.looks),
            each(self.puts),
            each(self.deletes),
            each(self.fsyncs),
            each(self.events),
        );
    }
}

impl Sub for Costs {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            transactions: self.transactions - before.transactions,
            reads: self.reads - before.reads,
            looks: self.looks - before.looks,
            puts: self.puts - before.puts,
            deletes: self.deletes - before.deletes,
            fsyncs: self.fsyncs - before.fsyncs,
            events: self.events - before.events,
        }
    }
}

fn numbered(lock: &str, number: Option<usize>) -> Acquire {
    Acquire {
        request_id: number.map(|number| RequestId::new(&format!("{lock}{number}")).expect("a good id")),
        ..ask(lock, TTL, Duration::from_secs(50))
    }
}

async fn pair(locks: &Locks, ask: Acquire) {
    let lease = locks.acquire(ask).await.expect("it is next").delivered();
    locks.release(&lease.key).await.expect("it is held");
}

/// What callers cost that acquire and release [`TIMES`] times, each the lock that `lock` says.
async fn crowd(cluster: &Cluster, locks: &Locks, with_id: bool, lock: impl Fn(usize) -> String) -> Costs {
    let before = Costs::of(cluster);
    let callers = (0..CALLERS).map(|caller| {
        let (locks, lock) = (locks.clone(), lock(caller));
        tokio::spawn(async move {
            for time in 0..TIMES {
                pair(&locks, numbered(&lock, with_id.then_some(caller * TIMES + time))).await;
            }
        })
    });
    for caller in join_all(callers.collect::<Vec<_>>()).await {
        caller.expect("no panic");
    }
    Costs::of(cluster) - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_pair_costs_two_transactions_and_no_read() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    for (what, with_id) in [("a lone pair", false), ("one with a request id", true)] {
        pair(&locks, numbered("warm", with_id.then_some(TIMES))).await;
        let (before, begun) = (Costs::of(&cluster), Instant::now());
        for number in 0..TIMES {
            pair(&locks, numbered("warm", with_id.then_some(number))).await;
        }
        let costs = Costs::of(&cluster) - before;
        costs.show(what, TIMES);
        // With a few for what other tasks do.
        assert!(costs.transactions <= 2 * TIMES + 2, "{costs:?}");
        assert!(costs.puts <= (3 + usize::from(with_id)) * TIMES + 2, "{costs:?}");
        assert!(costs.deletes <= TIMES + 2, "{costs:?}");
        assert!(costs.reads <= cleanup_since(begun), "{costs:?}");
        assert!(costs.fsyncs <= 2 * TIMES + 10, "{costs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_on_many_locks_at_once_share_transactions() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let pairs = CALLERS * TIMES;
    for (what, with_id) in [("a pair of many", false), ("one with a request id", true)] {
        let begun = Instant::now();
        let costs = crowd(&cluster, &locks, with_id, |caller| format!("own{caller}")).await;
        costs.show(what, pairs);
        assert!(costs.transactions < pairs, "{costs:?}");
        assert!(costs.reads <= CALLERS + cleanup_since(begun), "{costs:?}");
    }
    let keys = keys_ever(&cluster, "/own").await;
    assert!(
        keys <= CALLERS + 4,
        "{keys} keys, though each lock can use one again and again"
    );
}

// G71
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_costs_few_requests_and_the_keys_of_a_lock_do_not_grow_with_its_uses() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let pairs = CALLERS * TIMES;
    for (lock, with_id) in [("plain", false), ("requested", true)] {
        let begun = Instant::now();
        let costs = crowd(&cluster, &locks, with_id, |_| lock.into()).await;
        costs.show(&format!("a hand-off, {lock}"), pairs);
        // A release with the next, with which newcomers to the queue go along; some go by themselves.
        assert!(costs.transactions * 2 <= pairs * 3, "{costs:?}");
        // One list shows half of the queue.
        assert!(costs.reads <= pairs / 2 + cleanup_since(begun), "{costs:?}");
        // Etcd walks past each of these in a condition over the lock's keys.
        let keys = keys_ever(&cluster, &format!("/{lock}/")).await;
        assert!(keys <= 4 * CALLERS, "{lock}: {keys} keys");
    }
}

/// Of a lease whose server has gone, so that the server of the waiter has to watch over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_asks_seldom_whether_a_lease_has_ended() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let locks = steady_replica(&cluster).await;
    let ttl = Duration::from_secs(3);
    let ask = Acquire {
        ttl: Some(ttl),
        ..numbered("dies", None)
    };
    locks.acquire(ask).await.expect("it is free").delivered();
    let granted = Instant::now();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { pair(&locks, numbered("dies", None)).await }
    });
    sleep_until((granted + ttl / 3).into()).await;
    let (before, begun) = (Costs::of(&cluster), Instant::now());
    waiting.await.expect("no panic");
    let costs = Costs::of(&cluster) - before;
    println!("until it has ended: {costs:?}");
    assert!(
        costs.transactions + costs.reads <= 10 + cleanup_since(begun),
        "{costs:?}"
    );
}

/// How many keys of claims with this in their path existed since the last compaction.
async fn keys_ever(cluster: &Cluster, part: &str) -> usize {
    let mut etcd = etcd(cluster).await;
    let last = etcd.put("last", "1", None).await.expect("etcd answers");
    let last = last.header().expect("a header").revision();
    let all = WatchOptions::new().with_range([255_u8]).with_start_revision(1);
    let mut events = etcd.watch([1_u8], Some(all)).await.expect("etcd answers");
    let mut keys = BTreeSet::new();
    loop {
        let message = events.message().await.expect("etcd answers").expect("it goes on");
        for kv in message.events().iter().filter_map(|event| event.kv()) {
            let key = kv.key_str().unwrap_or_default();
            if key.starts_with(&format!("{ROOT}/l/")) && key.contains(part) {
                keys.insert(key.to_owned());
            }
            if kv.mod_revision() >= last {
                return keys.len();
            }
        }
    }
}
