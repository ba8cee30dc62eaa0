//! SIGKILL under load: many clients on several locks, and everything that they were answered is
//! judged afterwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::dice::Dice;

use crate::client::{Client, ask, living, waiting};
use crate::history::{Held, History};
use crate::server::{Home, PATIENCE};

const KILLS: u64 = if cfg!(feature = "soak") { 200 } else { 12 };
const WORKERS: u64 = 24;
/// How many locks a round uses; half of them were used in the round before, and may still be held.
const LOCKS: u64 = 6;
/// How long an abandoned lease blocks its lock.
const TTL: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(3);
/// The longest life of a server.
const LIFE: Duration = Duration::from_millis(600);

/// One that takes and gives back the locks from a number on until its server is gone: what it held.
async fn work(client: Client, first: u64, owner: String, mut dice: Dice, grants: Arc<AtomicU64>) -> Vec<Held> {
    let mut seen = Vec::new();
    loop {
        let lock = format!("lock {}", first + dice.below(LOCKS));
        let sent = Instant::now();
        let ask = waiting(WAIT, living(TTL, ask(&lock, &owner)));
        match client.try_acquire(ask).await {
            Ok(lease) => {
                seen.push(Held::new(lease, sent));
                grants.fetch_add(1, Ordering::Relaxed);
            }
            Err(status) if status.code() == tonic::Code::Aborted => continue,
            Err(_) => return seen,
        }
        tokio::time::sleep(dice.time(Duration::from_millis(5))).await;
        let held = seen.last_mut().expect("one was just noted");
        held.gives_up();
        held.released = client.try_release(&held.lease).await.is_ok();
        if !held.released {
            return seen;
        }
    }
}

/// A round's workers; each notes what it held when it ends.
async fn run_until_killed(home: &Home, round: u64, mut dice: Dice) -> Vec<Held> {
    let server = home.start().await;
    let (seen, grants) = (Arc::<Mutex<Vec<Held>>>::default(), Arc::<AtomicU64>::default());
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..WORKERS {
        let (client, seen, grants) = (server.another_client().await, Arc::clone(&seen), Arc::clone(&grants));
        let dice = Dice::new(round * WORKERS + worker);
        workers.spawn(async move {
            let held = work(client, round * LOCKS / 2, format!("worker {worker}"), dice, grants).await;
            seen.lock().expect("no panic").extend(held);
        });
    }
    tokio::time::sleep(LIFE / 4 + dice.time(LIFE)).await;
    // Leases of the round before may still block all of its locks.
    let began = Instant::now();
    while grants.load(Ordering::Relaxed) <= LOCKS {
        assert!(began.elapsed() < PATIENCE, "nothing is granted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.kill();
    while let Some(ended) = workers.join_next().await {
        ended.expect("no panic");
    }
    std::mem::take(&mut *seen.lock().expect("no panic"))
}

/// Asserts on the restarted server that each release that was answered stays, and each lease that
/// was not given back too.
async fn check(home: &Home, seen: &[Held]) {
    let server = home.start().await;
    let client = server.client();
    for held in seen {
        let holds = client.holds(&held.lease).await;
        assert!(!(held.released && holds), "a released lease came back: {held:#?}");
        assert!(holds || !held.is_sure(), "a sure holder lost its lease: {held:#?}");
    }
    server.kill();
}

// G83
#[tokio::test(flavor = "multi_thread")]
async fn nothing_answered_is_lost_by_a_kill_under_load() {
    let (home, mut history) = (Home::with_file(), History::default());
    for round in 0..KILLS {
        let seen = run_until_killed(&home, round, Dice::new(round)).await;
        check(&home, &seen).await;
        seen.into_iter().for_each(|held| history.note(held));
        history.judge();
    }
    println!("{KILLS} kills under load: {} leases judged", history.all().count());
    assert!(history.all().count() > LOCKS as usize * KILLS as usize);
}
