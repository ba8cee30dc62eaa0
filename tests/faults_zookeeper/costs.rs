//! What a pair of an Acquire and a Release costs ZooKeeper: each request that is sent for it, and each event.

use std::collections::HashSet;
use std::ops::Sub;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::backend::zookeeper::Store;
use fencepost::backend::zookeeper::settings::Credentials;
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::RequestId;
use futures::future::join_all;

use crate::clients::{acquire, ask};
use crate::forwarder::Forwarder;
use crate::harness::{READY, namespace, serves, settings, store, waiters};
use crate::requests::{Answer, CHILDREN, GET, Kind, Request, answers, requests};
use crate::servers::Ensemble;

const TTL: Duration = Duration::from_secs(30);
const CALLERS: usize = 32;
const TIMES: usize = 20;

/// Requests, operations and events, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Costs {
    multis: usize,
    refused: usize,
    creates: usize,
    deletes: usize,
    sets: usize,
    checks: usize,
    reads: usize,
    lists: usize,
    /// Watches, syncs and signs of life.
    others: usize,
    events: usize,
}

impl Costs {
    fn all(self) -> [usize; 10] {
        [
            self.multis,
            self.refused,
            self.creates,
            self.deletes,
            self.sets,
            self.checks,
            self.reads,
            self.lists,
            self.others,
            self.events,
        ]
    }

    /// Shows them for each of so many.
    fn show(self, what: &str, pairs: usize) {
        let names = [
            "multis", "refused", "creates", "deletes", "sets", "checks", "reads", "lists", "others", "events",
        ];
        let each = names.iter().zip(self.all());
        let each = each.map(|(name, count)| format!("{name} {:.2}", count as f64 / pairs as f64));
        println!("{what}, each of {pairs}: {}", each.collect::<Vec<_>>().join(", "));
    }

    fn add(&mut self, request: &Request) {
        // The cleanup lists the buckets, whose names have two letters, as long as a test takes.
        let is_cleanup = request.path.rsplit('/').next().is_some_and(|name| name.len() == 2);
        match request.code {
            CHILDREN if is_cleanup => {}
            GET => self.reads += 1,
            CHILDREN => self.lists += 1,
            _ if request.operations.is_none() => self.others += 1,
            _ => self.multis += 1,
        }
        for operation in request.operations.iter().flatten() {
            match operation.kind {
                Kind::Create => self.creates += 1,
                Kind::Delete => self.deletes += 1,
                Kind::Set => self.sets += 1,
                Kind::Check => self.checks += 1,
            }
        }
    }
}

impl Sub for Costs {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            multis: self.multis - before.multis,
            refused: self.refused - before.refused,
            creates: self.creates - before.creates,
            deletes: self.deletes - before.deletes,
            sets: self.sets - before.sets,
            checks: self.checks - before.checks,
            reads: self.reads - before.reads,
            lists: self.lists - before.lists,
            others: self.others - before.others,
            events: self.events - before.events,
        }
    }
}

/// What has passed a forwarder.
#[derive(Debug, Default)]
struct Passed {
    costs: Costs,
    multis: HashSet<i32>,
    /// What is not a whole frame yet, of the requests and of the answers.
    begun: [Vec<u8>; 2],
}

impl Passed {
    fn sent(&mut self, part: &[u8]) {
        self.begun[0].extend(part);
        let begun = std::mem::take(&mut self.begun[0]);
        let (requests, rest) = requests(&begun);
        for request in requests {
            self.costs.add(&request);
            if request.operations.is_some() {
                self.multis.insert(request.number);
            }
        }
        self.begun[0] = rest.to_vec();
    }

    fn answered(&mut self, part: &[u8]) {
        self.begun[1].extend(part);
        let begun = std::mem::take(&mut self.begun[1]);
        let (answers, rest) = answers(&begun);
        for answer in answers {
            match answer {
                Answer::Event => self.costs.events += 1,
                Answer::To(number, is_refused) => {
                    let is_multi = self.multis.remove(&number);
                    self.costs.refused += usize::from(is_multi && is_refused);
                }
            }
        }
        self.begun[1] = rest.to_vec();
    }
}

/// A replica behind a forwarder.
struct Counted {
    locks: Locks,
    passed: Arc<Mutex<Passed>>,
    _network: Forwarder,
}

impl Counted {
    async fn new(ensemble: &Ensemble, limits: Limits) -> Self {
        let network = Forwarder::before(ensemble.servers[0].port()).await;
        let backend = Store::open(settings(vec![network.address()]), Credentials::default()).namespace(&namespace());
        let locks = Locks::new(namespace(), limits, backend);
        serves(&locks).await;
        let passed = Arc::<Mutex<Passed>>::default();
        let [sent, answered] = [Arc::clone(&passed), Arc::clone(&passed)];
        // They look at what passes, and hold or end nothing.
        network.holds(move |part| {
            sent.lock().expect("no panic").sent(part);
            false
        });
        network.ends_after(move |part| {
            answered.lock().expect("no panic").answered(part);
            false
        });
        Self {
            locks,
            passed,
            _network: network,
        }
    }

    fn costs(&self) -> Costs {
        self.passed.lock().expect("no panic").costs
    }

    /// What callers cost that acquire and release so often, each the lock that `lock` says.
    async fn crowd(&self, callers: usize, times: usize, with_id: bool, lock: impl Fn(usize) -> String) -> Costs {
        let before = self.costs();
        let callers = (0..callers).map(|caller| {
            let (locks, lock) = (self.locks.clone(), lock(caller));
            tokio::spawn(async move {
                for _ in 0..times {
                    pair(&locks, &lock, with_id).await;
                }
            })
        });
        for caller in join_all(callers.collect::<Vec<_>>()).await {
            caller.expect("no panic");
        }
        self.costs() - before
    }
}

async fn pair(locks: &Locks, lock: &str, with_id: bool) {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let new_id = || LAST.fetch_add(1, Ordering::Relaxed).to_string();
    let ask = Acquire {
        request_id: with_id.then(|| RequestId::new(&new_id()).expect("a good id")),
        ..ask(lock, TTL, Duration::from_secs(50))
    };
    let lease = locks.acquire(ask).await.expect("it is next").delivered();
    locks.release(&lease.key).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_pair_costs_two_multis_and_no_read() {
    let Some(ensemble) = store(1) else { return };
    let counted = Counted::new(&ensemble, Limits::default()).await;
    let plain = Costs {
        multis: 2,
        creates: 3,
        deletes: 2,
        sets: 1,
        checks: 2,
        ..Costs::default()
    };
    let requested = Costs { sets: 2, ..plain };
    for (what, with_id, most) in [
        ("a lone pair", false, plain),
        ("one with a request id", true, requested),
    ] {
        // The first one creates the buckets.
        counted.crowd(1, 1, with_id, |_| "warm".into()).await;
        let costs = counted.crowd(1, TIMES, with_id, |_| "warm".into()).await;
        costs.show(what, TIMES);
        // The cleanup may look at the lock.
        let is_within = |(seen, most): (usize, usize)| seen <= most * TIMES + 5;
        assert!(costs.all().into_iter().zip(most.all()).all(is_within), "{costs:?}");
        assert!(costs.multis <= 2 * TIMES + 2, "{costs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_on_many_locks_at_once_share_multis_and_what_is_forgotten_is_not_read() {
    let Some(ensemble) = store(1) else { return };
    let finished = 50;
    let counted = Counted::new(
        &ensemble,
        Limits {
            finished,
            ..Limits::default()
        },
    )
    .await;
    for (what, with_id) in [("a pair of many", false), ("one with a request id", true)] {
        let own = |caller| format!("own{caller}");
        counted.crowd(CALLERS, 1, with_id, own).await;
        let pairs = CALLERS * TIMES;
        let costs = counted.crowd(CALLERS, TIMES, with_id, own).await;
        costs.show(what, pairs);
        assert!(costs.multis < pairs, "{costs:?}");
        // The lock, its holder, and the end or request of an earlier pair: each once, at some time.
        let all = counted.costs();
        assert!(all.deletes <= all.creates, "{all:?}");
        assert!(costs.creates <= 3 * pairs, "{costs:?}");
        assert!(costs.reads <= CALLERS, "{costs:?}");
    }
}

/// One after the other, so that each end is forgotten at a time of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_that_are_forgotten_one_by_one_are_deleted_together() {
    let Some(ensemble) = store(1) else { return };
    let kept = 5;
    let limits = Limits {
        finished: kept,
        ..Limits::default()
    };
    let counted = Counted::new(&ensemble, limits).await;
    counted.crowd(1, 1, false, |_| "warm".into()).await;
    let pairs = 5 * TIMES;
    let before = counted.costs();
    counted.crowd(1, pairs, false, |_| "lone".into()).await;
    let all_are_forgotten = async {
        while (counted.costs() - before).deletes < 3 * pairs - kept as usize {
            tokio::time::sleep(READY / 1000).await;
        }
    };
    let forgotten = tokio::time::timeout(READY, all_are_forgotten).await;
    let costs = counted.costs() - before;
    assert!(forgotten.is_ok(), "ends are left: {costs:?}");
    costs.show("a lone pair beyond the limit", pairs);
    assert!(costs.multis <= 2 * pairs + pairs / 2, "{costs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_costs_few_requests_with_a_request_id_and_without() {
    let Some(ensemble) = store(1) else { return };
    let counted = Counted::new(&ensemble, Limits::default()).await;
    let pairs = CALLERS * TIMES;
    for (lock, with_id) in [("plain", false), ("requested", true)] {
        let first = acquire(&counted.locks, lock, TTL, TTL).await.expect("it is free");
        let crowd = counted.crowd(CALLERS, TIMES, with_id, |_| lock.into());
        let begins = async {
            waiters(&counted.locks, lock, CALLERS).await;
            counted.locks.release(&first.key).await.expect("it is held");
            counted.costs()
        };
        let before = counted.costs();
        let (all, queued) = tokio::join!(crowd, begins);
        // Without those of the queue's beginning.
        let costs = all - (queued - before);
        costs.show(&format!("a hand-off, {lock}"), pairs);
        // A release with the next, and the place of a newcomer.
        assert!(costs.events >= 3 * pairs, "nobody waited: {costs:?}");
        assert!(costs.multis <= 2 * pairs + pairs / 4, "{costs:?}");
        assert!(costs.refused <= pairs / 10, "{costs:?}");
        // One list shows half of the queue.
        assert!(costs.lists + costs.reads <= pairs / 5, "{costs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_between_two_replicas_costs_few_requests() {
    let Some(ensemble) = store(1) else { return };
    let replicas = [
        Counted::new(&ensemble, Limits::default()).await,
        Counted::new(&ensemble, Limits::default()).await,
    ];
    let [one, other] = &replicas;
    let (one, other) = tokio::join!(
        one.crowd(CALLERS / 2, TIMES, true, |_| "hot".into()),
        // Their requests are their own.
        other.crowd(CALLERS / 2, TIMES, false, |_| "hot".into())
    );
    let pairs = CALLERS / 2 * TIMES;
    one.show("a hand-off, one of two replicas", pairs);
    other.show("a hand-off, the other", pairs);
    for costs in [one, other] {
        assert!(costs.lists + costs.reads <= pairs, "{costs:?}");
        assert!(costs.multis <= 4 * pairs, "{costs:?}");
    }
}
