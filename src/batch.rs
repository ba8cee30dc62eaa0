//! Group commit: what arrives while the store is busy goes together with its next turn.
//!
//! A store's cost is per turn (an fsync, a consensus round, a pipeline), not per operation. So there
//! is no timer here and no added latency for a lone caller: the first question starts a turn at
//! once, and whatever comes while it runs forms the next. The batch knows no store; it is generic
//! over question and answer.
//!
//! Its rules: questions keep their order; each gets its own answer; a caller that went away before
//! its turn began takes its question out; and a turn whose outcome is lost must say so in each
//! answer, for every question is then settled by its own id.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::yield_now;

/// How often a turn lets others go first before it begins, where the one before had several questions:
/// who was answered together asks together, in the next moment.
const GATHER: usize = 4;

/// How much a batch takes at once.
#[derive(Debug, Clone, Copy)]
pub struct BatchBounds {
    /// How many questions a turn takes at most.
    pub batch: usize,
    /// How many turns are under way at once.
    pub in_flight: usize,
    /// How many questions wait for a turn before [`BatchSender::ask`] itself waits.
    pub queue: usize,
}

/// Where callers put their questions. Clones share one line.
pub struct BatchSender<Q, A> {
    line: mpsc::Sender<Pending<Q, A>>,
}

/// The other end of a [`BatchSender`]: makes the turns.
pub struct BatchReceiver<Q, A> {
    line: mpsc::Receiver<Pending<Q, A>>,
    bounds: BatchBounds,
}

struct Pending<Q, A> {
    question: Q,
    answer: oneshot::Sender<A>,
}

/// Nobody makes turns any more; whether the question took effect is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the batch is closed")]
pub struct BatchClosed;

/// Makes a batch and its turns.
pub fn batch<Q, A>(bounds: BatchBounds) -> (BatchSender<Q, A>, BatchReceiver<Q, A>) {
    let (sender, receiver) = mpsc::channel(bounds.queue);
    (BatchSender { line: sender }, BatchReceiver { line: receiver, bounds })
}

impl<Q, A> BatchSender<Q, A> {
    /// Puts a question into the next turn and waits for its answer.
    ///
    /// # Cancellation safety
    /// Dropped before its turn has begun, the question is taken out; dropped later, it takes effect
    /// and the answer is lost.
    ///
    /// # Errors
    /// [`BatchClosed`] when the turns ended, before or while the question was asked.
    pub async fn ask(&self, question: Q) -> Result<A, BatchClosed> {
        let (answer, answered) = oneshot::channel();
        self.line.send(Pending { question, answer }).await.map_err(|_| BatchClosed)?;
        answered.await.map_err(|_| BatchClosed)
    }
}

impl<Q, A> BatchReceiver<Q, A> {
    /// Makes one turn after another, each finished before the next begins, until every [`BatchSender`] is
    /// dropped. The turn answers its questions in their order; it may block if this future runs on
    /// a thread of its own.
    pub async fn run<F>(mut self, mut execute: F)
    where
        F: FnMut(Vec<Q>) -> Vec<A>,
    {
        while let Some((questions, answers)) = self.next(0).await {
            deliver(answers, execute(questions));
        }
    }

    /// Makes up to [`BatchBounds::turns`] turns at once, until every [`BatchSender`] is dropped. Turns begin in
    /// the order of their questions.
    pub async fn run_many<F, T>(mut self, mut execute: F)
    where
        F: FnMut(Vec<Q>) -> T,
        T: Future<Output = Vec<A>> + Send + 'static,
        A: Send + 'static,
    {
        let free = Arc::new(Semaphore::new(self.bounds.in_flight));
        let mut gather = 0;
        loop {
            // First the place, then the questions: while all turns are busy the batch fills up.
            let Ok(place) = free.clone().acquire_owned().await else {
                return;
            };
            let Some((questions, answers)) = self.next(gather).await else {
                return;
            };
            gather = if questions.len() > 1 { GATHER } else { 0 };
            let answered = execute(questions);
            tokio::spawn(async move {
                deliver(answers, answered.await);
                drop(place);
            });
        }
    }

    /// The questions of the next turn, without those whose callers went away. Those that are about to
    /// ask are let go first, so often.
    async fn next(&mut self, gather: usize) -> Option<(Vec<Q>, Vec<oneshot::Sender<A>>)> {
        loop {
            let mut asked = Vec::new();
            if self.line.recv_many(&mut asked, self.bounds.batch).await == 0 {
                return None;
            }
            for _ in 0..gather {
                yield_now().await;
                while asked.len() < self.bounds.batch
                    && let Ok(more) = self.line.try_recv()
                {
                    asked.push(more);
                }
            }
            asked.retain(|asked| !asked.answer.is_closed());
            if !asked.is_empty() {
                return Some(asked.into_iter().map(|asked| (asked.question, asked.answer)).unzip());
            }
        }
    }
}

fn deliver<A>(callers: Vec<oneshot::Sender<A>>, answers: Vec<A>) {
    debug_assert_eq!(callers.len(), answers.len(), "a turn answers every question");
    for (caller, answer) in callers.into_iter().zip(answers) {
        // A caller that went away meanwhile does not want its answer.
        let _ = caller.send(answer);
    }
}

impl<Q, A> Clone for BatchSender<Q, A> {
    fn clone(&self) -> Self {
        Self {
            line: self.line.clone(),
        }
    }
}

impl<Q, A> fmt::Debug for BatchSender<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("free", &self.line.capacity()).finish()
    }
}

impl<Q, A> fmt::Debug for BatchReceiver<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("bounds", &self.bounds).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    const BOUNDS: BatchBounds = BatchBounds {
        batch: 8,
        in_flight: 2,
        queue: 64,
    };

    #[tokio::test(start_paused = true)]
    async fn what_arrives_during_a_turn_goes_with_the_next_in_order() {
        let (batch, turns) = batch::<u32, u32>(BatchBounds { in_flight: 1, ..BOUNDS });
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        tokio::spawn(turns.run_many(move |questions: Vec<u32>| {
            log.lock().unwrap().push(questions.clone());
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                questions.into_iter().map(|question| question * 2).collect()
            }
        }));
        let answers = futures::future::join_all((0..12).map(|n| batch.ask(n))).await;
        assert_eq!(answers, (0..12).map(|n| Ok(n * 2)).collect::<Vec<_>>());
        let turns = seen.lock().unwrap().clone();
        assert_eq!(turns.concat(), (0..12).collect::<Vec<_>>());
        assert!(turns.iter().all(|turn| turn.len() <= BOUNDS.batch), "{turns:?}");
        assert!(turns.len() <= 3, "{turns:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_left_takes_its_question_out() {
        let (batch, turns) = batch::<u32, u32>(BOUNDS);
        {
            let gone = batch.ask(1);
            tokio::pin!(gone);
            assert!(futures::poll!(gone.as_mut()).is_pending());
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        tokio::spawn(turns.run_many(move |questions: Vec<u32>| {
            log.lock().unwrap().extend(questions.clone());
            async move { questions }
        }));
        assert_eq!(batch.ask(2).await, Ok(2));
        assert_eq!(*seen.lock().unwrap(), [2]);
    }

    #[tokio::test]
    async fn without_turns_every_question_is_told_so() {
        let (batch, turns) = batch::<u32, u32>(BOUNDS);
        drop(turns);
        assert_eq!(batch.ask(1).await, Err(BatchClosed));
    }
}
