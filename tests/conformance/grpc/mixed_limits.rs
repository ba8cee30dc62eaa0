//! Semaphore claims of different limits, as clients of a service use them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{sleep, timeout};

use super::refused::invalid;
use super::service::{Service, acquire, named, semaphore, waiting};
use crate::fixture::{Fixture, NAMESPACE};

pub async fn a_larger_limit_is_granted_behind_smaller_ones(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(semaphore(1, 2, acquire("a"))).await;
    let b = service.acquire(semaphore(1, 2, acquire("b"))).await;
    let two = service.wait_for(waiting(60, semaphore(2, 5, acquire("two"))), 1).await;
    let one = service.wait_for(waiting(60, semaphore(1, 2, acquire("one"))), 2).await;
    service.release(&a).await;
    let queue = service.inspect().await;
    assert_eq!((queue.holder_count, queue.waiter_count), (1, 2));
    service.release(&b).await;
    let two = two.await.expect("no panic").expect("granted");
    service.until(NAMESPACE, "lock", |lock| lock.waiter_count == 1).await;
    service.release(&two).await;
    let one = one.await.expect("no panic").expect("granted");
    assert_eq!(service.inspect().await.holders[0].fencing_token, one.fencing_token);
}

// G3
/// Claims of one permit, and one of three, change from a limit of five to three and back, one after the other.
pub async fn a_limit_that_is_changed_under_load_is_never_exceeded(fixture: &Fixture) {
    const WORKERS: usize = 8;
    const ROUNDS: usize = 12;
    let service = Service::start(fixture).await;
    // What is noted between the grant and the release is a part of what holds.
    let held = Arc::<Mutex<Vec<(u32, u32)>>>::default();
    let workers = (0..=WORKERS).map(|worker| {
        let (calls, held) = ((*service).clone(), Arc::clone(&held));
        tokio::spawn(async move {
            let permits = if worker == WORKERS { 3 } else { 1 };
            let mut limits = Vec::new();
            for round in 0..ROUNDS {
                let is_changed = (worker / 2 + 3..worker / 2 + 7).contains(&round);
                let mine = (permits, if is_changed { 3 } else { 5 });
                let ask = semaphore(mine.0, mine.1, acquire(&format!("worker {worker}")));
                let lease = calls.acquire(waiting(60, ask)).await;
                {
                    let mut held = held.lock().expect("no panic");
                    held.push(mine);
                    let used: u32 = held.iter().map(|(permits, _)| permits).sum();
                    let limit = held.iter().map(|(_, limit)| *limit).min();
                    assert!(Some(used) <= limit, "unsafe: {held:?}");
                    limits.extend(held.iter().map(|(_, limit)| *limit));
                }
                sleep(Duration::from_millis(3)).await;
                {
                    let mut held = held.lock().expect("no panic");
                    let at = held.iter().position(|there| *there == mine);
                    held.swap_remove(at.expect("it is noted"));
                }
                calls.release(&lease).await;
            }
            limits
        })
    });
    let workers = timeout(Duration::from_secs(120), join_all(workers.collect::<Vec<_>>()));
    let limits = workers.await.expect("nobody starves");
    let limits: Vec<_> = limits.into_iter().flat_map(|seen| seen.expect("no panic")).collect();
    assert!(limits.contains(&3) && limits.contains(&5));
    let queue = service.inspect().await;
    assert_eq!((queue.holder_count, queue.waiter_count), (0, 0));
}

pub async fn invalid_field_answers_a_retry_with_another_limit(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(named("request", semaphore(1, 5, acquire("a")))).await;
    let other = named("request", semaphore(1, 3, acquire("a")));
    invalid(service.try_acquire(other).await, "mode");
}
