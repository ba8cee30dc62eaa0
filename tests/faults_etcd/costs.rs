//! What a pair of an Acquire and a Release costs etcd: each operation of the transactions that are sent for it.

use std::collections::BTreeSet;
use std::ops::{AddAssign, Sub};
use std::time::{Duration, Instant};

use etcd_client::WatchOptions;
use fencepost::error::Error;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::RequestId;
use futures::future::join_all;
use tokio::time::sleep_until;

use crate::harness::{ask, calls, cluster, etcd, namespace, steady_replica_of};
use crate::proxy::Proxy;
use crate::servers::Cluster;

const TTL: Duration = Duration::from_secs(30);
const CALLERS: usize = 16;
const TIMES: usize = 40;

/// Operations, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Costs {
    messages: usize,
    conditions: usize,
    puts: usize,
    /// Of the puts, those of records that remember an end or a request.
    remembered: usize,
    deletes: usize,
    ranges: usize,
    signs_of_life: usize,
    events: usize,
}

impl Costs {
    fn sum(self) -> [usize; 8] {
        [
            self.messages,
            self.conditions,
            self.puts,
            self.remembered,
            self.deletes,
            self.ranges,
            self.signs_of_life,
            self.events,
        ]
    }

    /// Whether none is more often than so many times what `each` says, with a twentieth for what other tasks do.
    fn is_within(self, each: Self, pairs: usize) -> bool {
        let most = |each: usize| each * pairs + pairs / 20;
        self.sum()
            .into_iter()
            .zip(each.sum())
            .all(|(seen, each)| seen <= most(each))
    }
}

impl AddAssign<&[u8]> for Costs {
    /// Adds the operations of a transaction that is carried out: its conditions, and its writes and reads where they are
    /// met.
    fn add_assign(&mut self, transaction: &[u8]) {
        for (field, value) in fields(transaction) {
            match field {
                1 => self.conditions += 1,
                2 => self.add_operation(value),
                _ => {}
            }
        }
    }
}

impl Sub for Costs {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            signs_of_life: self.signs_of_life - before.signs_of_life,
            events: self.events - before.events,
            ..self
        }
    }
}

impl Costs {
    fn add_operation(&mut self, operation: &[u8]) {
        for (kind, value) in fields(operation) {
            match kind {
                1 => self.ranges += 1,
                2 => {
                    let key = fields(value).into_iter().find(|(field, _)| *field == 1);
                    let key = key.map_or(String::new(), |(_, key)| String::from_utf8_lossy(key).into_owned());
                    self.puts += 1;
                    self.remembered += usize::from(key.contains("/end/") || key.contains("/request/"));
                }
                3 => self.deletes += 1,
                4 => *self += value,
                _ => {}
            }
        }
    }
}

/// The fields of a protobuf message that have a length, each with its number.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut all = Vec::new();
    while !message.is_empty() {
        let (tag, rest) = varint(message);
        let (value, rest) = varint(rest);
        message = rest;
        match tag & 7 {
            0 => {}
            2 => {
                let (content, rest) = message.split_at(usize::try_from(value).expect("a length"));
                all.push((tag >> 3, content));
                message = rest;
            }
            other => panic!("no field of etcd has the wire type {other}"),
        }
    }
    all
}

/// The reads that a transaction executes if its conditions are not met.
fn reads_if_refused(transaction: &[u8]) -> usize {
    let all = fields(transaction).into_iter();
    all.map(|(field, value)| match field {
        2 => {
            let nested = fields(value).into_iter().filter(|(kind, _)| *kind == 4);
            nested.map(|(_, nested)| reads_if_refused(nested)).sum::<usize>()
        }
        3 => 1,
        _ => 0,
    })
    .sum()
}

fn varint(bytes: &[u8]) -> (u64, &[u8]) {
    let last = bytes.iter().position(|byte| byte & 0x80 == 0).expect("it ends");
    let number = bytes[..=last]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7f));
    (number, &bytes[last + 1..])
}

/// A server behind a proxy.
struct Counted {
    cluster: Cluster,
    proxy: Proxy,
    locks: Locks,
}

impl Counted {
    /// How many reads, transactions and queries for a lease's remaining time etcd has answered.
    fn questions(&self) -> usize {
        let methods = ["Range", "Txn", "LeaseTimeToLive"];
        methods.iter().map(|method| calls(&self.cluster, method)).sum()
    }

    async fn new() -> Option<Self> {
        let cluster = cluster(1, &["--unsafe-no-fsync"])?;
        let port = cluster.servers[0].url().rsplit(':').next()?.parse().expect("a port");
        let proxy = Proxy::before(port).await;
        let locks = steady_replica_of(vec![proxy.url()]).await;
        Some(Self { cluster, proxy, locks })
    }

    /// What was sent since the last call of this, and the streams' counts so far.
    fn costs(&self) -> Costs {
        let (transactions, signs_of_life) = self.proxy.transactions();
        let mut costs = Costs {
            messages: transactions.len(),
            signs_of_life,
            events: crate::harness::figure(&self.cluster, "etcd_debugging_mvcc_events_total"),
            ..Costs::default()
        };
        for transaction in &transactions {
            // After the flag and the length of the message.
            costs += &transaction[5..];
        }
        costs
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_pair_costs_two_transactions_and_no_read() {
    let Some(counted) = Counted::new().await else { return };
    let pairs = 40;
    let plain = Costs {
        messages: 2,
        conditions: 5,
        puts: 2,
        remembered: 1,
        deletes: 1,
        ..Costs::default()
    };
    let requested = Costs {
        conditions: plain.conditions + 1,
        puts: plain.puts + 2,
        remembered: plain.remembered + 2,
        ..plain
    };
    for (lock, with_id, most) in [("plain", false, plain), ("requested", true, requested)] {
        pair(&counted.locks, numbered(lock, with_id.then_some(pairs))).await;
        let (before, begun) = (counted.costs(), Instant::now());
        for number in 0..pairs {
            pair(&counted.locks, numbered(lock, with_id.then_some(number))).await;
        }
        let costs = counted.costs() - before;
        println!("{lock}: {pairs} pairs: {costs:?}");
        // One for a second or more of pairs, and one for the lease with the request records.
        let signs = 2 + begun.elapsed().as_secs() as usize;
        assert!(costs.signs_of_life <= signs, "{lock}: {costs:?}");
        let others = Costs {
            signs_of_life: 0,
            ..costs
        };
        assert!(others.is_within(most, pairs), "{lock}: {costs:?}");
    }
}

/// A request has the conditions that its steps share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_on_many_locks_at_once_cost_three_conditions_two_for_each_message_and_a_key_a_lock() {
    let Some(counted) = Counted::new().await else { return };
    let pairs = CALLERS * TIMES;
    let before = counted.costs();
    let callers = (0..CALLERS).map(|caller| {
        let locks = counted.locks.clone();
        tokio::spawn(async move {
            for _ in 0..TIMES {
                pair(&locks, numbered(&format!("own{caller}"), None)).await;
            }
        })
    });
    for caller in join_all(callers.collect::<Vec<_>>()).await {
        caller.expect("no panic");
    }
    let costs = counted.costs() - before;
    println!("{pairs} pairs: {costs:?}");
    assert!(costs.messages < pairs, "{costs:?}");
    assert!(costs.conditions <= 3 * pairs + 2 * costs.messages, "{costs:?}");
    let keys = keys_ever(&counted.cluster, &format!("/fencepost/{}/lock/own", namespace())).await;
    // Two locks may share a place in the pool of key suffixes.
    assert!(
        keys <= CALLERS + 4,
        "{keys} keys, though each lock can use one again and again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_grants_after_a_refused_one_have_reads_with_them() {
    let Some(counted) = Counted::new().await else { return };
    let pairs = async |times: usize| {
        counted.proxy.transactions();
        for _ in 0..times {
            pair(&counted.locks, numbered("own", None)).await;
        }
        let (transactions, _) = counted.proxy.transactions();
        transactions
            .iter()
            .map(|sent| reads_if_refused(&sent[5..]))
            .sum::<usize>()
    };
    assert_eq!(pairs(10).await, 0);
    let held = numbered("held", None);
    let lease = counted.locks.acquire(held).await.expect("it is free").delivered();
    let refused = Acquire {
        wait: Duration::ZERO,
        ..numbered("held", None)
    };
    let refused = counted.locks.acquire(refused).await;
    assert!(matches!(refused, Err(Error::LockHeld { .. })), "{:?}", refused.err());
    assert_ne!(pairs(1).await, 0, "the next may be refused, too");
    pairs(20).await;
    assert_eq!(pairs(10).await, 0);
    counted.locks.release(&lease.key).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_costs_few_messages_with_a_request_id_and_without() {
    let Some(counted) = Counted::new().await else { return };
    let pairs = CALLERS * TIMES;
    for (lock, with_id) in [("plain", false), ("requested", true)] {
        let (before, reads) = (counted.costs(), calls(&counted.cluster, "Range"));
        let callers = (0..CALLERS).map(|caller| {
            let locks = counted.locks.clone();
            tokio::spawn(async move {
                for time in 0..TIMES {
                    pair(&locks, numbered(lock, with_id.then_some(caller * TIMES + time))).await;
                }
            })
        });
        for caller in join_all(callers.collect::<Vec<_>>()).await {
            caller.expect("no panic");
        }
        let costs = counted.costs() - before;
        let reads = calls(&counted.cluster, "Range") - reads;
        println!("{lock}: {pairs} hand-offs: {costs:?}, {reads} reads of their own");
        // A release with the next, with which newcomers to the queue go along; some go by themselves.
        assert!(costs.messages * 2 <= pairs * 3, "{lock}: {costs:?}");
        // The view is read when the watch begins, and anew every few seconds.
        assert!(costs.ranges + reads <= pairs / 10, "{lock}: {costs:?}, {reads}");
    }
}

/// The etcd lease outlives the TTL by a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_asks_seldom_whether_a_lease_whose_ttl_is_over_has_ended() {
    let Some(counted) = Counted::new().await else { return };
    let short = Duration::from_secs(2);
    // A query for a lease's remaining time, so that etcd counts them.
    etcd(&counted.cluster).await.lease_time_to_live(1, None).await.ok();
    let ask = Acquire {
        ttl: Some(short),
        ..numbered("dies", None)
    };
    counted.locks.acquire(ask).await.expect("it is free").delivered();
    let granted = Instant::now();
    let waiting = tokio::spawn({
        let locks = counted.locks.clone();
        async move {
            locks
                .acquire(numbered("dies", None))
                .await
                .expect("it is next")
                .delivered()
        }
    });
    let later = |after: Duration| sleep_until((granted + after).into());
    let (begin, end) = (short + Duration::from_millis(200), short + Duration::from_millis(900));
    later(begin).await;
    let before = counted.questions();
    later(end).await;
    let meanwhile = counted.questions() - before;
    println!("{meanwhile} questions while the lease lives");
    // The view is read anew every few seconds, as is the status of etcd.
    assert!(meanwhile <= 4, "{meanwhile} questions while the lease lives");
    waiting.await.expect("no panic");
    let took = granted.elapsed().saturating_sub(end);
    let after = counted.questions() - before - meanwhile;
    println!("{after} questions within {took:?} until it has ended");
    // Each time the waiter reads the lock and asks for the lease, and so does the task that notes expiries.
    let most = 8 + 4 * took.as_millis() / 100;
    assert!(after as u128 <= most, "{after} questions within {took:?}");
}

// G71
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_a_lock_do_not_grow_with_its_uses_with_request_ids_or_without() {
    let Some(counted) = Counted::new().await else { return };
    for (lock, with_id) in [("plain", false), ("requested", true)] {
        let callers = (0..CALLERS).map(|caller| {
            let locks = counted.locks.clone();
            tokio::spawn(async move {
                for time in 0..TIMES {
                    pair(&locks, numbered(lock, with_id.then_some(caller * TIMES + time))).await;
                }
            })
        });
        for caller in join_all(callers.collect::<Vec<_>>()).await {
            caller.expect("no panic");
        }
        // Etcd walks past each of these in a condition over the lock's keys.
        let keys = keys_ever(&counted.cluster, &format!("/fencepost/{}/lock/{lock}\t", namespace())).await;
        println!("{lock}: {keys} keys for {} claims", CALLERS * TIMES);
        assert!(keys <= 4 * CALLERS, "{lock}: {keys}");
    }
}

/// How many keys with this prefix existed since the last compaction.
async fn keys_ever(cluster: &Cluster, prefix: &str) -> usize {
    let mut etcd = etcd(cluster).await;
    let last = etcd.put("last", "1", None).await.expect("etcd answers");
    let last = last.header().expect("a header").revision();
    let all = WatchOptions::new().with_range([255_u8]).with_start_revision(1);
    let mut events = etcd.watch([1_u8], Some(all)).await.expect("etcd answers");
    let mut keys = BTreeSet::new();
    loop {
        let message = events.message().await.expect("etcd answers").expect("it goes on");
        for kv in message.events().iter().filter_map(|event| event.kv()) {
            if kv.key().starts_with(prefix.as_bytes()) {
                keys.insert(kv.key().to_vec());
            }
            if kv.mod_revision() >= last {
                return keys.len();
            }
        }
    }
}
