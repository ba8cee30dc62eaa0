//! Panics in the background tasks of a store.

use std::time::Duration;

use fencepost::backend::Health;
use fencepost::supervisor::failpoint;
use tokio::time::{Instant, timeout};

use crate::claims::claim;
use crate::fixture::Fixture;

/// How long the tasks may take to begin again, on a busy machine.
const AGAIN: Duration = Duration::from_secs(30);
/// Longer than the pause before a task begins again.
const PAUSE: Duration = Duration::from_millis(500);
/// The tasks of each part that a store has, while it has any of them.
const TASKS: [&[&str]; 6] = [
    &["embedded: expiry"],
    &[
        "record: beat",
        "record: due locks",
        "record: messages",
        "record: sweep",
        "record: tidy",
    ],
    &["redis: messages", "redis: server"],
    &[
        "redlock: expiry",
        "redlock: health",
        "redlock: messages",
        "redlock: unused names",
    ],
    &["sql: batches", "sql: watch"],
    &[
        "tree: clean-up",
        "tree: commits",
        "tree: connections",
        "tree: expiry",
        "tree: history",
        "tree: watches",
    ],
];

/// Makes all tasks panic, and waits until each has.
async fn all_panic(fixture: &Fixture) {
    let before = failpoint::panicked();
    failpoint::panic_all();
    let end = Instant::now() + AGAIN;
    let has = |task: &str| failpoint::panicked().get(task) > before.get(task);
    let part = |task: &&str| task.split_once(':').map(|(part, _)| part.to_owned());
    let of_store = || {
        let seen: Vec<_> = failpoint::panicked().keys().filter_map(part).collect();
        let parts = TASKS
            .iter()
            .filter(|tasks| part(&tasks[0]).is_some_and(|part| seen.contains(&part)));
        parts.copied().flatten().collect::<Vec<_>>()
    };
    while of_store().is_empty() || !of_store().into_iter().all(|task| has(task)) {
        assert!(Instant::now() < end, "{:?} of {:?}", failpoint::panicked(), of_store());
        fixture.sleep(Duration::from_millis(20)).await;
    }
    fixture.sleep(PAUSE).await;
}

// G188
pub async fn tasks_that_panic_begin_again_and_waiters_are_notified(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let a = fixture.there().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    notifications.all().await;
    // Those that have begun again panic again.
    for _ in 0..2 {
        all_panic(fixture).await;
    }
    for replica in [&fixture.first, &fixture.second] {
        let mut health = replica.health();
        let served = timeout(AGAIN, health.wait_for(|health| *health == Health::Serving)).await;
        served.expect("it serves in time").expect("it says how it is");
    }
    notifications.all().await;
    fixture.there().release(&a).await;
    notifications.until(fixture.here().name(), &b).await;
    fixture.here().take(&b).await;
}
