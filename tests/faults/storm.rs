//! Waiters that leave at random while the lock goes from hand to hand.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::dice::Dice;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Client, ask, living, waiting};
use crate::history::{Held, History};
use crate::server::Home;

const WAITERS: u64 = 200;
const LASTS: Duration = Duration::from_secs(if cfg!(feature = "soak") { 120 } else { 4 });
const LOCK: &str = "lock";
/// Short: a lease that reached a caller just as it left lives for this long.
const TTL: Duration = Duration::from_millis(200);
const WAIT: Duration = Duration::from_secs(30);
/// The longest that an impatient waiter waits before it leaves; the others stay.
const PATIENCE: Duration = Duration::from_millis(100);
/// The longest that a holder holds.
const HOLDS: Duration = Duration::from_millis(1);

/// What the waiters of a storm did.
#[derive(Debug, Default)]
struct StormResult {
    history: History,
    left: u64,
}

/// One that comes and goes until the storm is over.
async fn come_and_go(client: Client, number: u64, end: Instant, seen: Arc<Mutex<StormResult>>) {
    let mut dice = Dice::new(number);
    while Instant::now() < end {
        let ask = waiting(WAIT, living(TTL, ask(LOCK, &format!("waiter {number}"))));
        let patience = if dice.heads() { WAIT } else { dice.time(PATIENCE) };
        let sent = Instant::now();
        let Ok(answer) = timeout(patience, client.try_acquire(ask)).await else {
            seen.lock().expect("no panic").left += 1;
            continue;
        };
        let mut held = Held::new(answer.expect("granted"), sent);
        tokio::time::sleep(dice.time(HOLDS)).await;
        held.gives_up();
        // A holder who was kept from running may have lost it.
        held.released = client.try_release(&held.lease).await.is_ok();
        seen.lock().expect("no panic").history.note(held);
    }
}

/// Asserts that nobody waits or holds once the last lease that reached nobody has run out.
async fn is_calm(client: &Client) {
    client.until_waiting(LOCK, 0).await;
    client.until(LOCK, |lock| lock.holder_count == 0).await;
    let lease = client.acquire(ask(LOCK, "the next")).await;
    client.release(&lease).await;
}

async fn storm(home: &Home, kind: &str) {
    let server = home.start().await;
    let (end, seen) = (Instant::now() + LASTS, Arc::<Mutex<StormResult>>::default());
    let mut waiters = JoinSet::new();
    let clients = [server.client(), server.another_client().await];
    for number in 0..WAITERS {
        let client = clients[usize::from(number % 2 == 0)].clone();
        waiters.spawn(come_and_go(client, number, end, Arc::clone(&seen)));
    }
    while let Some(ended) = waiters.join_next().await {
        ended.expect("no panic");
    }
    let over = Instant::now();
    is_calm(&server.client()).await;
    let calm = over.elapsed();
    let seen = seen.lock().expect("no panic");
    seen.history.judge();
    let granted = seen.history.all().count();
    println!(
        "{granted} grants and {} departures, {kind}; calm after {calm:?}",
        seen.left
    );
    assert!(granted > 0 && seen.left > WAITERS, "it was no storm: {granted} grants");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_left_behind_when_waiters_leave_in_memory() {
    storm(&Home::in_memory(), "in memory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_left_behind_when_waiters_leave_in_a_file() {
    storm(&Home::with_file(), "in a file").await;
}
