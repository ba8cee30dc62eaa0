//! Those on their way to the queue of a lock keep the order in which they came here.
//!
//! Etcd orders waiters by the revisions of their keys. Those that go together in one transaction share its revision,
//! so each says when it came. Steps that are sent at the same time may reach etcd in any order; so a call that would
//! wait begins when the one before it has its place, or stands where it goes along with the next turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::name::LockName;

/// How long a call stays behind those before it: a store that is away is to be told of in time.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the module. No more stand in these lines than call.
#[derive(Debug)]
pub struct AdmissionQueue {
    /// From when on places are counted.
    opened: Instant,
    by_lock: Mutex<HashMap<LockName, Arc<Semaphore>>>,
}

/// A call's place among those on their way to one lock, until it is dropped.
#[derive(Debug)]
pub struct AdmissionTicket<'a> {
    arrivals: &'a AdmissionQueue,
    name: &'a LockName,
    line: Arc<Semaphore>,
    /// It is this call's turn. Nothing while it stands in line, and where it lost its patience.
    turn: Option<OwnedSemaphorePermit>,
}

impl Default for AdmissionQueue {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            by_lock: Mutex::default(),
        }
    }
}

impl AdmissionQueue {
    /// The place of a call that came then, among those that are queued in one transaction: they are all of one
    /// replica.
    pub fn place(&self, arrived: Instant) -> u64 {
        let since = arrived.saturating_duration_since(self.opened).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    /// Waits until all that came to this lock before have their places, or cannot have them.
    ///
    /// # Cancellation safety
    /// Dropped, it is out of the line.
    pub async fn acquire<'a>(&'a self, name: &'a LockName) -> AdmissionTicket<'a> {
        let line = Arc::clone(
            self.lines()
                .entry(name.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(1))),
        );
        let mut arrival = AdmissionTicket {
            arrivals: self,
            name,
            line: Arc::clone(&line),
            turn: None,
        };
        arrival.turn = match line.try_acquire_owned() {
            Ok(turn) => Some(turn),
            Err(_) => {
                let turn = timeout(PATIENCE, Arc::clone(&arrival.line).acquire_owned()).await;
                turn.ok().and_then(Result::ok)
            }
        };
        arrival
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<LockName, Arc<Semaphore>>> {
        self.by_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionTicket<'_> {
    /// The store did not answer: lets all go on that stand in line, for each might wait as long.
    pub fn failed(&self) {
        self.line.close();
        self.take_down(true);
    }

    fn take_down(&self, closed: bool) {
        let mut lines = self.arrivals.lines();
        let ours = lines.get(self.name).is_some_and(|line| Arc::ptr_eq(line, &self.line));
        // Two are the table's and this one's.
        if ours && (closed || Arc::strong_count(&self.line) <= 2) {
            lines.remove(self.name);
        }
    }
}

impl Drop for AdmissionTicket<'_> {
    fn drop(&mut self) {
        self.turn = None;
        self.take_down(false);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures::FutureExt;
    use futures::future::join_all;
    use tokio::time::{Instant, sleep};

    use super::*;

    fn lock(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    fn len(arrivals: &AdmissionQueue) -> usize {
        arrivals.lines().len()
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_come_to_one_lock_go_one_after_another_in_their_order() {
        let (arrivals, name, seen) = (AdmissionQueue::default(), lock("a"), RefCell::new(Vec::new()));
        let acquire = |n: u64| {
            let (arrivals, name, seen) = (&arrivals, &name, &seen);
            async move {
                let _arrival = arrivals.acquire(name).await;
                seen.borrow_mut().push((n, true));
                sleep(Duration::from_millis(20 - n)).await;
                seen.borrow_mut().push((n, false));
            }
        };
        join_all((0..20).map(acquire)).await;
        let one_by_one: Vec<_> = (0..20).flat_map(|n| [(n, true), (n, false)]).collect();
        assert_eq!(*seen.borrow(), one_by_one);
        assert_eq!(len(&arrivals), 0, "nothing is left of them");
    }

    #[tokio::test(start_paused = true)]
    async fn other_locks_have_lines_of_their_own() {
        let (arrivals, names) = (AdmissionQueue::default(), [lock("a"), lock("b")]);
        let first = arrivals.acquire(&names[0]).await;
        let other = arrivals.acquire(&names[1]).now_or_never().expect("nobody is before it");
        assert!(arrivals.acquire(&names[0]).now_or_never().is_none());
        drop((first, other));
        assert_eq!(len(&arrivals), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_leaves_the_line_holds_nobody_up() {
        let (arrivals, name) = (AdmissionQueue::default(), lock("a"));
        let first = arrivals.acquire(&name).await;
        let (mut leaves, mut stays) = (Box::pin(arrivals.acquire(&name)), Box::pin(arrivals.acquire(&name)));
        assert!(futures::poll!(&mut leaves).is_pending());
        assert!(futures::poll!(&mut stays).is_pending());
        drop(first);
        // Its turn has come, and it never learns of it.
        drop(leaves);
        assert!(stays.await.turn.is_some());
        assert_eq!(len(&arrivals), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_stands_in_line_behind_a_store_that_does_not_answer() {
        let (arrivals, name) = (AdmissionQueue::default(), lock("a"));
        let first = arrivals.acquire(&name).await;
        let came = Instant::now();
        let arrival = arrivals.acquire(&name).await;
        assert!(arrival.turn.is_none() && came.elapsed() >= PATIENCE);
        let rest = async {
            let all = join_all([arrivals.acquire(&name), arrivals.acquire(&name)]).await;
            all.iter().all(|arrival| arrival.turn.is_none())
        };
        let fails = async { first.failed() };
        let (all_went, ()) = tokio::join!(rest, fails);
        assert!(all_went && came.elapsed() < PATIENCE + Duration::from_secs(1));
        assert!(arrivals.acquire(&name).await.turn.is_some(), "the next begin a new line");
        drop((first, arrival));
        assert_eq!(len(&arrivals), 0);
    }
}
