//! Starts the calls of one connection in the order in which their messages arrived.
//!
//! The task of the connection polls each call once before the next one. A call becomes a task of its own only when it
//! waits for anything other than its message. Therefore nothing between the socket and the first step of a call
//! reorders calls: hundreds that arrive at once reach the store in their order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::request;

/// After which time the connection's task yields to other tasks.
const START_LIMIT: Duration = Duration::from_millis(1);

/// A call on the server.
struct Call {
    run: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Ends a stream from outside.
    cut: Option<CancellationToken>,
}

/// The calls that have arrived and were not started.
#[derive(Default)]
struct QueuedCalls {
    calls: std::collections::VecDeque<Call>,
    /// The token that ends the next call.
    cut: Option<CancellationToken>,
}

/// The executor to which hyper passes the calls of a connection.
#[derive(Clone, Default)]
pub(super) struct CallExecutor(Arc<Mutex<QueuedCalls>>);

impl CallExecutor {
    /// Lets `cut` end the next call that is executed.
    pub(super) fn end_next_by(&self, cut: CancellationToken) {
        self.with(|queued| queued.cut = Some(cut));
    }

    fn with<T>(&self, change: impl FnOnce(&mut QueuedCalls) -> T) -> T {
        change(&mut self.0.lock())
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for CallExecutor {
    fn execute(&self, run: F) {
        let run = Box::pin(run);
        self.with(|queued| {
            let cut = queued.cut.take();
            queued.calls.push_back(Call { run, cut });
        });
    }
}

/// The calls of a connection that have not become tasks of their own.
#[derive(Default)]
pub(super) struct Calls {
    executor: CallExecutor,
    /// The calls whose message has not arrived. A wake-up appends a call to the ready queue, so they continue in the
    /// order in which their messages arrived.
    without_message: FuturesUnordered<AwaitMessage>,
}

impl Calls {
    /// The executor that queues the calls.
    pub(super) fn executor(&self) -> CallExecutor {
        self.executor.clone()
    }

    /// Starts the calls that have arrived, for up to [`START_LIMIT`], and returns whether all have started. If not, the
    /// task is woken again at once. The connection must not be read meanwhile, because the queue would grow without
    /// bound.
    pub(super) fn start(&mut self, cx: &mut Context<'_>) -> bool {
        let began = Instant::now();
        loop {
            while let Poll::Ready(Some(call)) = self.without_message.poll_next_unpin(cx) {
                call.into_iter().for_each(spawn);
            }
            let Some(mut call) = self.executor.with(|queued| queued.calls.pop_front()) else {
                return true;
            };
            // A spawned task is polled again at once and registers its waker then.
            match step(&mut call, &mut Context::from_waker(Waker::noop())) {
                Polled::Ended => {}
                Polled::WithoutMessage => self.without_message.push(AwaitMessage(Some(call))),
                Polled::Waits => spawn(call),
            }
            if began.elapsed() >= START_LIMIT {
                cx.waker().wake_by_ref();
                return false;
            }
        }
    }
}

/// Each call has a clone of the executor, so calls that never started would keep each other alive.
impl Drop for Calls {
    fn drop(&mut self) {
        let left = self.executor.with(|queued| std::mem::take(&mut queued.calls));
        // Dropped outside of `with`, because the drop of a call may use the executor.
        drop(left);
    }
}

/// Polls a call until its message has arrived. Returns the call if it has to continue as a task.
struct AwaitMessage(Option<Call>);

impl Future for AwaitMessage {
    type Output = Option<Call>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Call>> {
        let Some(call) = &mut self.0 else {
            return Poll::Ready(None);
        };
        match step(call, cx) {
            Polled::WithoutMessage => Poll::Pending,
            Polled::Ended => Poll::Ready(None),
            Polled::Waits => Poll::Ready(self.0.take()),
        }
    }
}

/// The result of polling a call.
enum Polled {
    Ended,
    WithoutMessage,
    Waits,
}

fn step(call: &mut Call, cx: &mut Context<'_>) -> Polled {
    // With the cooperative budget of the connection's task, a call could be delayed and overtaken by later ones.
    let mut run = tokio::task::unconstrained(call.run.as_mut());
    let polled = request::poll_noting(|| catch_unwind(AssertUnwindSafe(|| Pin::new(&mut run).poll(cx))));
    match polled {
        // A call that panicked is dropped, which resets its stream. Other calls continue.
        (Ok(Poll::Ready(())) | Err(_), _) => Polled::Ended,
        (Ok(Poll::Pending), true) => Polled::WithoutMessage,
        (Ok(Poll::Pending), false) => Polled::Waits,
    }
}

fn spawn(Call { run, cut }: Call) {
    match cut {
        Some(cut) => drop(tokio::spawn(async move {
            cut.run_until_cancelled(run).await;
        })),
        None => drop(tokio::spawn(run)),
    }
}

#[cfg(test)]
mod tests;
