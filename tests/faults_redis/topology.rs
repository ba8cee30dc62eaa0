//! Failovers, and slots that move.

use std::time::{Duration, Instant};

use fencepost::backend::BackendError;
use fencepost::backend::redis_server::settings::{Servers, Settings, connection_info};
use fencepost::error::Error;
use fencepost::locks::{Lease, Locks};

use crate::faults_redis::harness::{
    Contest, HOT_TTL, acquire, best_of_three, contend, replica, replicated, settings, take, token,
};
use crate::faults_redis::servers::{Cluster, RedisServer, Sentinels, available, eventually};

/// Longer than any test takes.
const TTL: Duration = Duration::from_secs(120);

fn through(servers: &Sentinels) -> Settings {
    let info = |address: &String| connection_info(&format!("redis://{address}")).unwrap();
    let sentinels: Vec<_> = servers.addresses().iter().map(info).collect();
    settings(Servers::Sentinel {
        master: "mymaster".into(),
        login: sentinels[0].clone(),
        sentinels,
    })
}

/// Tries until the lock is had, for at most `limit`.
async fn insist(locks: &Locks, lock: &str, limit: Duration) -> Lease {
    let end = Instant::now() + limit;
    loop {
        match acquire(locks, lock, TTL, Duration::ZERO).await {
            Ok(lease) => return lease,
            Err(error) => assert!(Instant::now() < end, "not within {limit:?}: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

// G89
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_and_tokens_rise() {
    common::skip_unless!(available());
    best_of_three(Duration::from_secs(1), follow_a_failover).await;
}

/// One failover, and how long after the switch the successor served.
async fn follow_a_failover() -> Duration {
    let servers = Sentinels::start();
    let locks = replica(&through(&servers)).await;
    let held = take(&locks, "a", TTL).await;
    let settled = take(&locks, "settled", TTL).await;
    replicated(&servers.servers[0]).await;
    let port = tokio::task::block_in_place(|| servers.fail_over());
    let switched = Instant::now();
    assert_eq!(port, servers.servers[1].port());
    // From the promoted server: what is taken from the demoted one meanwhile may not last.
    let served = loop {
        let tried = acquire(&locks, "b", Duration::from_secs(1), Duration::ZERO).await;
        let there = servers.servers[1].cli(&["EXISTS", "fencepost:faults:l:b"]) == "1";
        if tried.is_ok() && there {
            break switched.elapsed();
        }
        assert!(switched.elapsed() < Duration::from_secs(10), "{tried:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    // What was replicated is still held; its token is passed only upwards.
    locks.release(&held.key).await.unwrap();
    assert!(token(&take(&locks, "a", TTL).await) > token(&held));
    locks.renew(&settled.key, None).await.unwrap();
    served
}

// G89
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_master_gets_no_more_writes() {
    common::skip_unless!(available());
    let servers = Sentinels::start();
    let settings = through(&servers);
    let replicas = [replica(&settings).await, replica(&settings).await];
    let load = tokio::spawn(async move { contend(&replicas, 4, Duration::from_secs(8), 100).await });
    let demoted = &servers.servers[0];
    // A server that became a replica runs what its master replicates, which is no script.
    let calls = || demoted.scripts();
    tokio::task::block_in_place(|| {
        eventually("it serves", Duration::from_secs(30), || (calls() > 100).then_some(()));
        servers.fail_over();
        eventually("nobody writes to it", Duration::from_secs(15), || {
            let before = calls();
            std::thread::sleep(Duration::from_secs(2));
            (calls() == before).then_some(())
        });
    });
    let seen = load.await.unwrap();
    assert!(seen.tokens.len() >= 100, "{}", seen.tokens.len());
    // A Release that was not replicated is a lease held to its TTL; that is the longest wait, for the
    // waiters that the promoted server has and nobody knows are disowned.
    assert!(seen.gap < HOT_TTL + Duration::from_secs(10), "{:?}", seen.gap);
}

// G88c, G89
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_was_not_replicated_is_passed_by_a_larger_token() {
    common::skip_unless!(available());
    let mut servers = Sentinels::quick();
    let locks = replica(&through(&servers)).await;
    let replicated_one = take(&locks, "old", TTL).await;
    replicated(&servers.servers[0]).await;
    // Without its connection it gets nothing more, and stopped it does not make a new one.
    servers.servers[1].pause();
    servers.servers[0].cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    let first = take(&locks, "a", TTL).await;
    servers.servers[0].kill9();
    servers.servers[1].resume();
    let second = insist(&locks, "a", TTL / 2).await;
    // Two hold now, well within the first one's TTL; the protected resource tells them apart.
    assert!(token(&second) > token(&first));
    let lost = locks.renew(&first.key, None).await;
    assert!(matches!(lost, Err(Error::LeaseLost { .. })), "{lost:?}");
    assert!(matches!(locks.release(&first.key).await, Err(Error::LeaseLost { .. })));
    locks.renew(&second.key, None).await.unwrap();
    // What was replicated is held as before.
    let refused = acquire(&locks, "old", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::LockHeld { .. })), "{refused:?}");
    locks.renew(&replicated_one.key, None).await.unwrap();
}

// G91
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_under_load_and_no_call_fails() {
    common::skip_unless!(available());
    let cluster = Cluster::start();
    let seeds = cluster.urls().iter().map(|url| connection_info(url).unwrap()).collect();
    let settings = settings(Servers::Cluster(seeds));
    let replicas = [replica(&settings).await, replica(&settings).await];
    take(&replicas[0], "warm", TTL).await;
    let slot = slot_of("hot").to_string();
    // What this machine lets anybody wait for is seen at a lock that stays where it is.
    assert_ne!(slot_of("resting"), slot_of("hot"));
    let contest = |lock| Contest {
        lock,
        clients: 4,
        time: Duration::from_secs(5),
        grants: 100,
        ttl: HOT_TTL,
    };
    let moves = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(500));
        let keys = move_slot(&cluster, &slot);
        (cluster, keys)
    });
    let (contest, resting) = (contest("hot"), contest("resting"));
    let (seen, control, slowest) = tokio::join!(
        contest.run(&replicas),
        resting.run(&replicas),
        use_once(&replicas[0], "hot", contest.time)
    );
    println!("slowest use of a new lock {slowest:?}");
    let soon = |usual: Duration| usual + Duration::from_millis(800);
    assert!(slowest < soon(control.gap), "{slowest:?}");
    let (_cluster, keys) = moves.await.unwrap();
    assert!(keys >= 1, "the lock did not move");
    assert!(seen.failed.is_empty() && seen.lost == 0, "{:?}", seen.failed);
    assert!(
        seen.tokens.len() >= 100 && seen.gap < soon(control.gap),
        "{:?}",
        seen.gap
    );
    // A hand-off waits for others; a Release waits for its own redirection alone.
    assert!(
        seen.slowest_release < soon(control.slowest_release),
        "{:?}",
        seen.slowest_release
    );
}

pub fn slot_of(lock: &str) -> u16 {
    fencepost::backend::redis_server::cluster::slot(format!("fencepost:faults:l:{lock}").as_bytes())
}

/// Takes and gives back locks of the same slot, each a few times: those that a moving slot does not
/// have yet are served where it goes to. No call may fail; the longest one.
async fn use_once(locks: &Locks, like: &str, time: Duration) -> Duration {
    let until = Instant::now() + time;
    let mut slowest = Duration::ZERO;
    for name in (0..)
        .map(|n| format!("new{n}"))
        .filter(|name| slot_of(name) == slot_of(like))
    {
        if Instant::now() > until {
            break;
        }
        for _ in 0..3 {
            let asked = Instant::now();
            let lease = take(locks, &name, TTL).await;
            locks.renew(&lease.key, None).await.unwrap();
            locks.release(&lease.key).await.unwrap();
            slowest = slowest.max(asked.elapsed());
        }
    }
    slowest
}

// G91
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_of_a_cluster_that_dies_is_followed() {
    common::skip_unless!(available());
    let mut cluster = Cluster::quick();
    let seeds = cluster.urls().iter().map(|url| connection_info(url).unwrap()).collect();
    let settings = settings(Servers::Cluster(seeds));
    let (one, two) = (replica(&settings).await, replica(&settings).await);
    let held = take(&one, "a", TTL).await;
    for master in cluster.masters() {
        assert!(
            master.cli(&["FUNCTION", "LIST"]).contains("fencepost_"),
            "{}",
            master.port()
        );
    }
    let owner = owner(&cluster, slot_of("a")).port();
    // The replicas began after the marker's first writing, which is repeated each second.
    let at = cluster.nodes.iter().position(|node| node.port() == owner).unwrap();
    replicated(&cluster.nodes[at]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.nodes[at].kill9();
    let killed = Instant::now();
    // The node's timeout is 5 s, then the others vote. What was replicated is still held.
    loop {
        let tried = acquire(&two, "a", TTL, Duration::ZERO).await;
        match tried {
            Err(Error::LockHeld { .. }) => break,
            Err(Error::Backend(BackendError::Unavailable { .. } | BackendError::NotSent { .. })) => {}
            other => panic!("{other:?}"),
        }
        assert!(killed.elapsed() < TTL / 2, "nobody was promoted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("served {:?} after the kill", killed.elapsed());
    // The other replica of ours follows for itself.
    while let Err(error) = one.release(&held.key).await {
        assert!(matches!(error, Error::Backend(_)), "{error}");
        assert!(killed.elapsed() < TTL / 2, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(token(&take(&two, "a", TTL).await) > token(&held));
}

/// Moves a slot to another master. How many keys it had.
pub fn move_slot(cluster: &Cluster, slot: &str) -> usize {
    let masters = cluster.masters();
    let from = owner(cluster, slot.parse().unwrap());
    let to = masters.iter().find(|node| node.port() != from.port()).unwrap();
    move_slot_to(cluster, slot, to)
}

/// Moves a slot to a master, its keys one by one, as resharding does. How many they were.
pub fn move_slot_to(cluster: &Cluster, slot: &str, to: &RedisServer) -> usize {
    let from = owner(cluster, slot.parse().unwrap());
    let (from_id, to_id) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));
    to.cli(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id]);
    from.cli(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id]);
    std::thread::sleep(Duration::from_millis(500));
    let mut moved = 0;
    eventually("the slot is empty", Duration::from_secs(60), || {
        let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
        for key in keys.lines().filter(|key| !key.is_empty()) {
            let answer = from.cli(&["MIGRATE", "127.0.0.1", &to.port().to_string(), key, "0", "1000"]);
            moved += usize::from(answer == "OK");
        }
        keys.is_empty().then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
    for node in [to, from] {
        node.cli(&["CLUSTER", "SETSLOT", slot, "NODE", &to_id]);
    }
    moved
}

/// The master that serves a slot.
pub fn owner(cluster: &Cluster, slot: u16) -> &RedisServer {
    cluster.masters().into_iter().find(|node| owns(node, slot)).unwrap()
}

/// Whether a node says that it serves a slot.
pub fn owns(node: &RedisServer, slot: u16) -> bool {
    let nodes = node.cli(&["CLUSTER", "NODES"]);
    let mine = nodes.lines().find(|line| line.contains("myself")).unwrap();
    mine.split_whitespace().skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (first.parse().unwrap_or(1)..=last.parse().unwrap_or(0)).contains(&slot)
    })
}
