//! Group commit: requests that arrive while the store is busy form its next batch.
//!
//! A store's cost is per batch (an fsync, a consensus round, a pipeline), not per request. There is therefore no timer
//! and no added latency for a single caller: the first request starts a batch at once, and requests that arrive
//! meanwhile form the next one. The module is generic over request and response and knows no store.
//!
//! Requests keep their order, and each gets its own response. A request whose caller was dropped before its batch began
//! is discarded. A batch whose outcome is lost must report that in every response, because each request is then settled
//! by its own id.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::yield_now;

/// How many times a batch yields before it begins if the previous one had several requests: callers that were answered
/// together send their next requests together.
const GATHER: usize = 4;

/// The limits of a batch queue.
#[derive(Debug, Clone, Copy)]
pub struct BatchBounds {
    /// The maximum number of requests in a batch.
    pub batch: usize,
    /// The maximum number of batches in flight.
    pub in_flight: usize,
    /// The maximum number of queued requests; beyond it [`BatchSender::ask`] waits for a free slot.
    pub queue: usize,
}

/// Sends requests. Clones share one queue.
pub struct BatchSender<Q, A> {
    queue: mpsc::Sender<Pending<Q, A>>,
}

/// Receives the requests of a [`BatchSender`] and executes them in batches.
pub struct BatchReceiver<Q, A> {
    queue: mpsc::Receiver<Pending<Q, A>>,
    bounds: BatchBounds,
}

struct Pending<Q, A> {
    request: Q,
    respond_to: oneshot::Sender<A>,
}

/// The receiver is gone. Whether the request took effect is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the batch is closed")]
pub struct BatchClosed;

/// Creates a batch queue.
pub fn batch<Q, A>(bounds: BatchBounds) -> (BatchSender<Q, A>, BatchReceiver<Q, A>) {
    let (sender, receiver) = mpsc::channel(bounds.queue);
    (
        BatchSender { queue: sender },
        BatchReceiver {
            queue: receiver,
            bounds,
        },
    )
}

impl<Q, A> BatchSender<Q, A> {
    /// Puts a request into the next batch and waits for its response.
    ///
    /// # Cancellation safety
    /// A call dropped before its batch has begun has no effect. Dropped later, the request takes effect and its
    /// response is lost.
    ///
    /// # Errors
    /// [`BatchClosed`] when the receiver was dropped before it responded.
    pub async fn ask(&self, request: Q) -> Result<A, BatchClosed> {
        let (respond_to, response) = oneshot::channel();
        self.queue
            .send(Pending { request, respond_to })
            .await
            .map_err(|_| BatchClosed)?;
        response.await.map_err(|_| BatchClosed)
    }
}

impl<Q, A> BatchReceiver<Q, A> {
    /// Executes one batch at a time until every [`BatchSender`] is dropped. `execute` returns the responses in the
    /// order of the requests. It may block if this future runs on a thread of its own.
    pub async fn run<F>(&mut self, mut execute: F)
    where
        F: FnMut(Vec<Q>) -> Vec<A>,
    {
        while let Some((requests, responses)) = self.next(0).await {
            deliver(responses, execute(requests));
        }
    }

    /// Executes up to [`BatchBounds::in_flight`] batches at once until every [`BatchSender`] is dropped. Batches begin
    /// in the order of their requests.
    pub async fn run_many<F, T>(&mut self, mut execute: F)
    where
        F: FnMut(Vec<Q>) -> T,
        T: Future<Output = Vec<A>> + Send + 'static,
        A: Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(self.bounds.in_flight));
        let mut gather = 0;
        loop {
            // The permit first, then the requests: the next batch fills up while no permit is free.
            let Ok(permit) = permits.clone().acquire_owned().await else {
                return;
            };
            let Some((requests, responses)) = self.next(gather).await else {
                return;
            };
            gather = if requests.len() > 1 { GATHER } else { 0 };
            let response = execute(requests);
            tokio::spawn(async move {
                deliver(responses, response.await);
                drop(permit);
            });
        }
    }

    /// The requests of the next batch, without those whose callers were dropped. Yields `gather` times first, so that
    /// more requests can join.
    async fn next(&mut self, gather: usize) -> Option<(Vec<Q>, Vec<oneshot::Sender<A>>)> {
        loop {
            let mut pending = Vec::new();
            if self.queue.recv_many(&mut pending, self.bounds.batch).await == 0 {
                return None;
            }
            for _ in 0..gather {
                yield_now().await;
                while pending.len() < self.bounds.batch
                    && let Ok(more) = self.queue.try_recv()
                {
                    pending.push(more);
                }
            }
            pending.retain(|pending| !pending.respond_to.is_closed());
            if !pending.is_empty() {
                return Some(
                    pending
                        .into_iter()
                        .map(|pending| (pending.request, pending.respond_to))
                        .unzip(),
                );
            }
        }
    }
}

fn deliver<A>(callers: Vec<oneshot::Sender<A>>, responses: Vec<A>) {
    debug_assert_eq!(callers.len(), responses.len(), "a batch answers every request");
    for (caller, respond_to) in callers.into_iter().zip(responses) {
        // The caller may have been dropped meanwhile.
        let _ = caller.send(respond_to);
    }
}

impl<Q, A> Clone for BatchSender<Q, A> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
        }
    }
}

impl<Q, A> fmt::Debug for BatchSender<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchSender")
            .field("free_slots", &self.queue.capacity())
            .finish()
    }
}

impl<Q, A> fmt::Debug for BatchReceiver<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchReceiver").field("bounds", &self.bounds).finish()
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
    async fn requests_that_arrive_during_a_batch_form_the_next_one_in_order() {
        let (batch, mut batches) = batch::<u32, u32>(BatchBounds { in_flight: 1, ..BOUNDS });
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let execute = move |requests: Vec<u32>| {
            log.lock().unwrap().push(requests.clone());
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                requests.into_iter().map(|request| request * 2).collect()
            }
        };
        tokio::spawn(async move { batches.run_many(execute).await });
        let responses = futures::future::join_all((0..12).map(|n| batch.ask(n))).await;
        assert_eq!(responses, (0..12).map(|n| Ok(n * 2)).collect::<Vec<_>>());
        let batches = seen.lock().unwrap().clone();
        assert_eq!(batches.concat(), (0..12).collect::<Vec<_>>());
        assert!(batches.iter().all(|batch| batch.len() <= BOUNDS.batch), "{batches:?}");
        assert!(batches.len() <= 3, "{batches:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_request_of_a_dropped_caller_is_discarded() {
        let (batch, mut batches) = batch::<u32, u32>(BOUNDS);
        {
            let gone = batch.ask(1);
            tokio::pin!(gone);
            assert!(futures::poll!(gone.as_mut()).is_pending());
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let execute = move |requests: Vec<u32>| {
            log.lock().unwrap().extend(requests.clone());
            async move { requests }
        };
        tokio::spawn(async move { batches.run_many(execute).await });
        assert_eq!(batch.ask(2).await, Ok(2));
        assert_eq!(*seen.lock().unwrap(), [2]);
    }

    #[tokio::test]
    async fn without_a_receiver_requests_fail_as_closed() {
        let (batch, batches) = batch::<u32, u32>(BOUNDS);
        drop(batches);
        assert_eq!(batch.ask(1).await, Err(BatchClosed));
    }
}
