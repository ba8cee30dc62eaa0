//! Those on their way to the queue of a lock keep the order in which they came here.
//!
//! Etcd orders waiters by the revisions of their keys. Those that go together in one transaction share its revision,
//! so each says when it came. Steps that are sent at the same time may reach etcd in any order; so a call that would
//! wait begins when the one before it has its place, or stands where it goes along with the next turn. Readers that
//! may be granted at once go side by side: they take nothing from each other.

use std::collections::{BTreeMap, HashMap};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::cluster_client::Failure;
use crate::name::LockName;

/// How many readers go side by side at most.
const TOGETHER: usize = 64;

/// See the module. No more stand in these lines than call.
#[derive(Debug)]
pub struct AdmissionQueue {
    /// From when on places are counted.
    opened: Instant,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    /// How many have come.
    came: u64,
    /// In the order in which they came.
    by_lock: HashMap<LockName, BTreeMap<u64, Member>>,
}

/// A call in a line.
#[derive(Debug)]
struct Member {
    together: bool,
    /// What tells it that its turn has come; nothing once it has.
    waits: Option<oneshot::Sender<Turn>>,
}

/// Its turn has come, or the store does not answer.
type Turn = Result<(), Failure>;

/// A call's place among those on their way to one lock, until it is dropped.
#[derive(Debug)]
pub struct AdmissionTicket<'a> {
    arrivals: &'a AdmissionQueue,
    name: &'a LockName,
    number: u64,
    /// It goes beside others.
    pub together: bool,
}

impl Default for AdmissionQueue {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            lines: Mutex::default(),
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

    /// Waits until all that came to this lock before have their places, or cannot have them. Those that go together
    /// wait only for the others.
    ///
    /// # Errors
    /// [`Failure::NotSent`] when the store did not answer one before it: it is told so as soon as that one.
    ///
    /// # Cancellation safety
    /// Dropped, it is out of the line.
    pub async fn acquire<'a>(&'a self, name: &'a LockName, together: bool) -> Result<AdmissionTicket<'a>, Failure> {
        let (number, turn) = {
            let mut lines = self.lines();
            lines.came += 1;
            let number = lines.came;
            let line = lines.by_lock.entry(name.clone()).or_default();
            (number, wait_in(line, number, together))
        };
        let arrival = AdmissionTicket {
            arrivals: self,
            name,
            number,
            together,
        };
        arrival.wait(turn).await?;
        Ok(arrival)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock()
    }
}

impl AdmissionTicket<'_> {
    /// From now on it goes alone: waits, at its old place, until all that came before have theirs.
    ///
    /// # Errors
    /// As [`AdmissionQueue::acquire`].
    pub async fn go_alone(&mut self) -> Result<(), Failure> {
        self.together = false;
        let turn = {
            let mut lines = self.arrivals.lines();
            let line = lines.by_lock.entry(self.name.clone()).or_default();
            wait_in(line, self.number, false)
        };
        self.wait(turn).await
    }

    async fn wait(&self, turn: oneshot::Receiver<Turn>) -> Result<(), Failure> {
        let lost = || Err(Failure::NotSent("etcd: a place in a line was lost".into()));
        turn.await.unwrap_or_else(|_| lost())
    }

    /// The store did not answer: all that stand in line behind hear of it now, for each might wait as long.
    pub fn failed(&self, failure: &Failure) {
        let mut lines = self.arrivals.lines();
        let line = lines.by_lock.get_mut(self.name);
        let behind = line.into_iter().flat_map(|line| line.range_mut(self.number..));
        for told in behind.filter_map(|(_, member)| member.waits.take()) {
            let _ = told.send(Err(failure.clone().unsent()));
        }
    }
}

impl Drop for AdmissionTicket<'_> {
    fn drop(&mut self) {
        let mut lines = self.arrivals.lines();
        if let Some(line) = lines.by_lock.get_mut(self.name) {
            line.remove(&self.number);
            advance(line);
            if line.is_empty() {
                lines.by_lock.remove(self.name);
            }
        }
    }
}

/// Puts a call into a line, or to its end of those that go together; what tells it that its turn has come.
fn wait_in(line: &mut BTreeMap<u64, Member>, number: u64, together: bool) -> oneshot::Receiver<Turn> {
    let (tell, turn) = oneshot::channel();
    let waits = Some(tell);
    line.insert(number, Member { together, waits });
    advance(line);
    turn
}

/// Lets those go whose turn has come.
fn advance(line: &mut BTreeMap<u64, Member>) {
    for (ahead, member) in line.values_mut().enumerate() {
        let may_go = ahead == 0 || (member.together && ahead < TOGETHER);
        if !may_go {
            return;
        }
        if let Some(told) = member.waits.take() {
            // One that was dropped meanwhile is about to leave the line.
            let _ = told.send(Ok(()));
        }
        if !member.together {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use futures::FutureExt;
    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    fn lock(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    fn len(arrivals: &AdmissionQueue) -> usize {
        arrivals.lines().by_lock.len()
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_come_to_one_lock_go_one_after_another_in_their_order() {
        let (arrivals, name, seen) = (AdmissionQueue::default(), lock("a"), RefCell::new(Vec::new()));
        let acquire = |n: u64| {
            let (arrivals, name, seen) = (&arrivals, &name, &seen);
            async move {
                let _arrival = arrivals.acquire(name, false).await.unwrap();
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

    #[tokio::test]
    async fn readers_go_side_by_side_and_pass_nobody_who_came_before_them() {
        let (arrivals, name) = (AdmissionQueue::default(), lock("a"));
        let acquire = |together| Box::pin(arrivals.acquire(&name, together));
        let (first, mut second) = (acquire(true).await.unwrap(), acquire(true).await.unwrap());
        let (mut writer, mut later) = (acquire(false), acquire(true));
        assert!(futures::poll!(&mut writer).is_pending());
        assert!(futures::poll!(&mut later).is_pending(), "a writer is before it");
        // It cannot be granted at once, and keeps its place.
        {
            let mut alone = Box::pin(second.go_alone());
            assert!(futures::poll!(&mut alone).is_pending(), "one is before it still");
            drop(first);
            assert!(alone.await.is_ok());
        }
        assert!(futures::poll!(&mut writer).is_pending());
        drop(second);
        let writer = writer.await.unwrap();
        assert!(futures::poll!(&mut later).is_pending());
        drop(writer);
        assert!(later.await.unwrap().together);
        assert_eq!(len(&arrivals), 0);
    }

    #[tokio::test]
    async fn so_many_readers_go_side_by_side_and_the_next_one_when_one_of_them_is_through() {
        let (arrivals, name) = (AdmissionQueue::default(), lock("a"));
        let mut all = join_all((0..TOGETHER).map(|_| arrivals.acquire(&name, true))).await;
        let mut next = Box::pin(arrivals.acquire(&name, true));
        assert!(futures::poll!(&mut next).is_pending());
        all.pop();
        assert!(next.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn other_locks_have_lines_of_their_own() {
        let (arrivals, names) = (AdmissionQueue::default(), [lock("a"), lock("b")]);
        let first = arrivals.acquire(&names[0], false).await;
        let other = arrivals.acquire(&names[1], false).now_or_never();
        let other = other.expect("nobody is before it");
        assert!(arrivals.acquire(&names[0], false).now_or_never().is_none());
        drop((first, other));
        assert_eq!(len(&arrivals), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_leaves_the_line_holds_nobody_up() {
        let (arrivals, name) = (AdmissionQueue::default(), lock("a"));
        let first = arrivals.acquire(&name, false).await;
        let (mut leaves, mut stays) = (
            Box::pin(arrivals.acquire(&name, false)),
            Box::pin(arrivals.acquire(&name, false)),
        );
        assert!(futures::poll!(&mut leaves).is_pending());
        assert!(futures::poll!(&mut stays).is_pending());
        drop(first);
        // Its turn has come, and it never learns of it.
        drop(leaves);
        assert!(stays.await.is_ok());
        assert_eq!(len(&arrivals), 0);
    }

    #[tokio::test]
    async fn all_that_stand_behind_a_call_which_the_store_does_not_answer_hear_of_that_with_it() {
        let (arrivals, name) = (AdmissionQueue::default(), lock("a"));
        let first = arrivals.acquire(&name, false).await.unwrap();
        let mut behind = [
            Box::pin(arrivals.acquire(&name, false)),
            Box::pin(arrivals.acquire(&name, true)),
        ];
        for behind in &mut behind {
            assert!(futures::poll!(behind).is_pending());
        }
        first.failed(&Failure::Unavailable("it is away".into()));
        for behind in join_all(behind).await {
            assert!(matches!(behind, Err(Failure::NotSent(reason)) if reason.contains("away")));
        }
        drop(first);
        assert!(
            arrivals.acquire(&name, false).await.is_ok(),
            "the next begin a new line"
        );
        assert_eq!(len(&arrivals), 0);
    }
}
