//! Several replicas of the service.

use std::time::{Duration, Instant};

use crate::bench::{acquire, replica, standalone, take, token};
use crate::servers::{RedisServer, available};

const TTL: Duration = Duration::from_secs(30);

fn scripts_called(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
    let named = |line: &&str| line.starts_with("cmdstat_eval");
    stats.lines().filter(named).filter_map(calls).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_before_five_hundred_waiters_costs_a_few_commands() {
    if !available() {
        return;
    }
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
            let lease = acquire(&locks, "a", TTL, Duration::from_secs(60)).await;
            let _ = granted.send(lease).await;
        });
    }
    crate::servers::eventually("all wait", Duration::from_secs(10), || {
        let locks = replicas[0].clone();
        let name = held.key.lock.name.clone();
        let look = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(locks.look(&name, 1)));
        (look.unwrap().waiter_count == 500).then_some(())
    });
    let before = scripts_called(&server);
    replicas[1].release(&held.key).await.unwrap();
    let next = grants.recv().await.unwrap().unwrap();
    let after = scripts_called(&server);
    assert!(token(&next) > token(&held));
    println!("{} commands", after - before);
    assert!(after - before <= 13, "{}", after - before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_waiters_of_a_dead_replica_leave_the_queue() {
    if !available() {
        return;
    }
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
            let mut waits = Box::pin(acquire(locks, "a", TTL, Duration::from_secs(60)));
            let waited = tokio::time::timeout(Duration::from_millis(500), waits.as_mut()).await;
            assert!(waited.is_err(), "{waited:?}");
            std::mem::forget(waits);
        });
        runtime.shutdown_background();
    });
    dying.join().unwrap();
    assert_eq!(living.look(&name, 10).await.unwrap().waiters.len(), 1);
    let waiter = living.clone();
    let next = tokio::spawn(async move { acquire(&waiter, "a", TTL, Duration::from_secs(30)).await });
    living.release(&held.key).await.unwrap();
    let began = Instant::now();
    let granted = next.await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(token(&granted) > token(&held));
}
