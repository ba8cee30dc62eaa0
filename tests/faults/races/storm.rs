//! Waiters that go at random moments, while releases hand their lock on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Ask, Caller, until, why};
use crate::rounds;
use crate::server::{Home, Server};

/// A grant that was handed to a call which was just dropped lives until its TTL: a short one.
const CONFIG: &str = "[namespaces.default]\nttl_min = '10ms'\n";
const TTL: Duration = Duration::from_millis(50);
const WAIT: Duration = Duration::from_secs(30);
const WAITERS: usize = 64;

/// What the waiters met.
#[derive(Debug, Default)]
struct Tally {
    granted: AtomicUsize,
    dropped: AtomicUsize,
}

/// Comes, waits for a while that differs each time (now and then until it is served), and gives back
/// at once what it gets.
async fn come_and_go(caller: Caller, seed: u64, until: Instant, tally: Arc<Tally>) {
    let mut patience = seed;
    while Instant::now() < until {
        patience = (patience * 31 + 17) % 20_011;
        let wait = match patience % 4 {
            0 => WAIT,
            _ => Duration::from_micros(patience),
        };
        let asked = caller.acquire("lock", Ask::once(TTL).waiting(WAIT));
        match tokio::time::timeout(wait, asked).await {
            Err(_) => drop(tally.dropped.fetch_add(1, Ordering::Relaxed)),
            Ok(Err(status)) => panic!("{status:?}"),
            Ok(Ok(held)) => {
                tally.granted.fetch_add(1, Ordering::Relaxed);
                match caller.release(&held).await {
                    Ok(()) => {}
                    Err(status) => assert_eq!(why(&status), "LEASE_LOST", "{status:?}"),
                }
            }
        }
    }
}

/// Waits until nobody holds or waits any more, then takes the lock.
async fn is_clean(caller: &Caller) {
    until("the queue is empty", async || {
        let lock = caller.look("lock").await;
        (lock.waiter_count == 0 && lock.holder_count == 0).then_some(())
    })
    .await;
    caller.take("lock", TTL).await;
}

fn storm(server: &Server, connections: usize, end: Instant, tally: &Arc<Tally>) -> Vec<tokio::task::JoinHandle<()>> {
    let callers: Vec<_> = (0..connections).map(|_| Caller::of(server)).collect();
    let waiters = (0..WAITERS).map(|number| {
        let caller = callers[number % connections].clone();
        tokio::spawn(come_and_go(caller, 7919 * number as u64, end, Arc::clone(tally)))
    });
    waiters.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_dropped_waiters_leaves_an_empty_queue_and_a_free_lock() {
    let home = Home::with_config(CONFIG);
    let server = home.start();
    let tally = Arc::<Tally>::default();
    let end = Instant::now() + Duration::from_secs(rounds(4, 120) as u64);
    for waiter in storm(&server, 4, end, &tally) {
        waiter.await.expect("no panic");
    }
    is_clean(&Caller::of(&server)).await;
    println!("{tally:?}");
    assert!(tally.granted.load(Ordering::Relaxed) > WAITERS, "{tally:?}");
    assert!(tally.dropped.load(Ordering::Relaxed) > WAITERS, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_take_their_waiters_with_them() {
    let home = Home::with_config(CONFIG);
    let server = home.start();
    let watcher = Caller::of(&server);
    for round in 0..rounds(10, 200) {
        let held = watcher.take("lock", Duration::from_secs(60)).await;
        let gone = Caller::of(&server);
        let asks = (0..WAITERS).map(|_| {
            let caller = gone.clone();
            tokio::spawn(async move { caller.acquire("lock", Ask::once(TTL).waiting(WAIT)).await })
        });
        let asks: Vec<_> = asks.collect();
        until("all wait", async || {
            (watcher.look("lock").await.waiter_count as usize == WAITERS).then_some(())
        })
        .await;
        // The last one to have the connection closes it, in the midst of a hand-off.
        asks.iter().for_each(|ask| ask.abort());
        drop((gone, asks));
        tokio::time::sleep(Duration::from_micros(round as u64 * 100)).await;
        watcher.release(&held).await.expect("it is released");
        is_clean(&watcher).await;
        until("it ends", async || watcher.in_use().await.is_empty().then_some(())).await;
    }
}
