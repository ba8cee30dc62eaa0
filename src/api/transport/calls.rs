//! The calls of one connection, begun in the order in which their messages came.
//!
//! Each call is polled once where its connection is read, before the next one, and becomes a task only when it
//! waits for something else than its own message. So nothing between the socket and the first step of a call
//! reorders calls: hundreds that come in one moment ask the store in their order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::stream::{FuturesUnordered, StreamExt};
use hyper::rt::Executor;
use tokio_util::sync::CancellationToken;

use super::request;

/// How many calls begin before the connection lets others run.
const AT_ONCE: usize = 256;

/// A call that has begun to be.
struct Call {
    run: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Ends it from outside, where anything does.
    cut: Option<CancellationToken>,
}

/// The calls that came and were not begun.
#[derive(Default)]
struct QueuedCalls {
    calls: std::collections::VecDeque<Call>,
    /// What ends the next one.
    cut: Option<CancellationToken>,
}

/// What hyper hands the calls of a connection to.
#[derive(Clone, Default)]
pub(super) struct CallExecutor(Arc<Mutex<QueuedCalls>>);

impl CallExecutor {
    /// The call that comes next ends with `cut`.
    pub(super) fn ended_by(&self, cut: CancellationToken) {
        self.with(|came| came.cut = Some(cut));
    }

    fn with<T>(&self, change: impl FnOnce(&mut QueuedCalls) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for CallExecutor {
    fn execute(&self, run: F) {
        let run = Box::pin(run);
        self.with(|came| {
            let cut = came.cut.take();
            came.calls.push_back(Call { run, cut });
        });
    }
}

/// The calls of a connection that have not become tasks.
#[derive(Default)]
pub(super) struct Calls {
    came: CallExecutor,
    /// Those whose message is not there yet. What wakes one puts it at the end of a line, so they go on in the
    /// order in which their messages came.
    without_message: FuturesUnordered<AwaitMessage>,
}

impl Calls {
    /// Where they come in.
    pub(super) fn beginning(&self) -> CallExecutor {
        self.came.clone()
    }

    /// Begins what came since the last time. Whether all of it has begun; otherwise it is woken at once, and its
    /// connection has to wait: what it would read meanwhile has no bound.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..AT_ONCE {
            while let Poll::Ready(Some(call)) = self.without_message.poll_next_unpin(cx) {
                call.into_iter().for_each(spawn);
            }
            let Some(mut call) = self.came.with(|came| came.calls.pop_front()) else {
                return true;
            };
            // As a task it is polled again at once, and says then what wakes it.
            match step(&mut call, &mut Context::from_waker(Waker::noop())) {
                Polled::Ended => {}
                Polled::WithoutMessage => self.without_message.push(AwaitMessage(Some(call))),
                Polled::Waits => spawn(call),
            }
        }
        cx.waker().wake_by_ref();
        false
    }
}

/// A call knows what hyper hands further work to, so those that never began would keep each other.
impl Drop for Calls {
    fn drop(&mut self) {
        let left = self.came.with(|came| std::mem::take(&mut came.calls));
        // What ends with a call may ask for more.
        drop(left);
    }
}

/// A call until its message is there, and the call again where it has more to do then.
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

/// What a poll of a call came to.
enum Polled {
    Ended,
    WithoutMessage,
    Waits,
}

fn step(call: &mut Call, cx: &mut Context<'_>) -> Polled {
    // With the budget of its connection's task, one of many calls would wait for its turn, and lose its place.
    let mut run = tokio::task::unconstrained(call.run.as_mut());
    let polled = request::noting(|| catch_unwind(AssertUnwindSafe(|| Pin::new(&mut run).poll(cx))));
    match polled {
        // One that panicked is dropped, which resets it; the others go on.
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
