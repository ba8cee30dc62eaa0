//! Several replicas of the service.

use std::time::{Duration, Instant};

use common::clients::spawn_acquire;
use fencepost::locks::Locks;

use crate::faults_redis::harness::{acquire, best_of_three, replica, standalone, take, token, until_waiting};
use crate::faults_redis::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(120);

/// How many commands of ours have reached a server; what scripts call does not count.
fn commands(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
    let ours = |line: &&str| {
        let ours = ["cmdstat_eval", "cmdstat_fcall", "cmdstat_zadd"];
        ours.iter().any(|command| line.starts_with(command))
    };
    stats.lines().filter(ours).filter_map(calls).sum()
}

/// Waits until what came before has come to rest, and says how many commands reach the server within
/// a time then: the watchers and the heartbeats still call.
fn at_rest(server: &RedisServer, within: Duration) -> u64 {
    let count = || {
        let before = commands(server);
        std::thread::sleep(within);
        commands(server) - before
    };
    let mut last = count();
    eventually("a server at rest", TTL / 2, || {
        let now = count();
        let steady = now <= last + last / 2 + 2;
        last = last.min(now);
        steady.then_some(now)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_before_five_hundred_waiters_costs_a_few_commands() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    let replicas = [
        replica(&settings).await,
        replica(&settings).await,
        replica(&settings).await,
    ];
    let held = take(&replicas[0], "a", TTL).await;
    let (granted, mut grants) = tokio::sync::mpsc::channel(500);
    for n in 0..500 {
        let (locks, granted) = (replicas[n % 3].clone(), granted.clone());
        tokio::spawn(async move {
            let lease = acquire(&locks, "a", TTL, TTL).await;
            let _ = granted.send(lease).await;
        });
    }
    for locks in &replicas {
        until_waiting(locks, "a", 500).await;
    }
    let second = Duration::from_secs(1);
    let background = tokio::task::block_in_place(|| at_rest(&server, second));
    let (before, released) = (commands(&server), Instant::now());
    replicas[1].release(&held.key).await.unwrap();
    let next = grants.recv().await.unwrap().unwrap();
    // A herd would come now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = commands(&server);
    assert!(token(&next) > token(&held));
    let beside = background * 2 * (released.elapsed().as_secs() + 1);
    println!("{} commands, beside up to {beside}", after - before);
    assert!(after - before <= 5 + beside, "{}", after - before);
    assert!(beside < 100, "{beside} commands come from nothing");
}

/// What the watchers and the heartbeats of so many replicas may call meanwhile.
fn beside(replicas: u64, since: Instant) -> u64 {
    replicas * 3 * (since.elapsed().as_secs() + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_lock_costs_one_round_trip_to_take_and_one_to_give_back() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    // The first use of a name also puts it into the index.
    let first = take(&locks, "a", TTL).await;
    locks.release(&first.key).await.unwrap();
    let (began, mut taking, mut giving) = (Instant::now(), 0, 0);
    for _ in 0..100 {
        let before = commands(&server);
        let lease = take(&locks, "a", TTL).await;
        let between = commands(&server);
        locks.release(&lease.key).await.unwrap();
        taking += between - before;
        giving += commands(&server) - between;
    }
    let beside = beside(1, began);
    println!("{taking} and {giving} commands, beside up to {beside}");
    assert!((100..=100 + beside).contains(&taking), "{taking}");
    assert!((100..=100 + beside).contains(&giving), "{giving}");
}

/// The commands of a hundred hand-offs from `from` to `to`, without those that queued the waiters,
/// and how many others there may be among them.
async fn hand_offs(server: &RedisServer, from: &Locks, to: &Locks) -> (u64, u64) {
    let (began, mut cost) = (Instant::now(), 0);
    for _ in 0..100 {
        let held = take(from, "a", TTL).await;
        let waiting = spawn_acquire(to, "a", TTL, TTL);
        until_waiting(to, "a", 1).await;
        // Its call has taken the answer in, too: only then it can be named as the next.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let before = commands(server);
        from.release(&held.key).await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        cost += commands(server) - before;
        assert!(token(&next) > token(&held));
        to.release(&next.key).await.unwrap();
    }
    (cost, beside(2, began))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_takes_one_round_trip_in_a_replica_and_at_most_four_between_two() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    let (one, two) = (replica(&settings).await, replica(&settings).await);
    let (within, beside) = hand_offs(&server, &one, &one).await;
    println!("{within} commands within a replica, beside up to {beside}");
    // A few calls may not have got so far on a slow machine.
    assert!((100..=120 + beside).contains(&within), "{within}");
    let (between, beside) = hand_offs(&server, &one, &two).await;
    println!("{between} commands between two, beside up to {beside}");
    // Each of the two finds first what the other one has written.
    assert!((200..=420 + beside).contains(&between), "{between}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_waiters_of_a_dead_replica_leave_the_queue() {
    common::skip_unless!(available());
    best_of_three(Duration::from_secs(10), outlive_a_dead_replica).await;
}

/// How long a waiter of a dead replica holds up one who waits behind it.
async fn outlive_a_dead_replica() -> Duration {
    let server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    let living = replica(&settings).await;
    let held = take(&living, "a", TTL).await;
    let name = held.key.lock.name.clone();
    // A replica of its own runtime, which ends without a word.
    let dying = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let locks = Box::leak(Box::new(replica(&settings).await));
            let mut waits = Box::pin(acquire(locks, "a", TTL, TTL));
            tokio::select! {
                biased;
                ended = waits.as_mut() => panic!("{ended:?}"),
                () = until_waiting(locks, "a", 1) => {}
            }
            std::mem::forget(waits);
        });
        runtime.shutdown_background();
    });
    dying.join().unwrap();
    assert_eq!(living.inspect(&name, 10).await.unwrap().waiters.len(), 1);
    let next = spawn_acquire(&living, "a", TTL, TTL);
    until_waiting(&living, "a", 2).await;
    living.release(&held.key).await.unwrap();
    let began = Instant::now();
    let granted = next.await.unwrap().unwrap();
    let took = began.elapsed();
    assert!(token(&granted) > token(&held));
    took
}
