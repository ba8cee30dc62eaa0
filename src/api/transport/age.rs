//! The maximum age of a connection. Clients connect again, so that a balancer of connections spreads them anew.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

use crate::backoff::jitter;

/// The age of one connection.
pub(super) struct Age {
    timer: Pin<Box<Sleep>>,
    /// How long its calls may take once it is too old; absent when that time has begun.
    grace: Option<Duration>,
    ending: CancellationToken,
}

impl Age {
    /// A connection that begins now. Its age is 90 to 110 % of `max`, so that connections that began together do not end
    /// together; after `grace` more, `ending` is cancelled.
    pub(super) fn new(max: Duration, grace: Duration, ending: CancellationToken) -> Self {
        Self {
            timer: Box::pin(sleep(max * 7 / 10 + jitter(max * 4 / 10))),
            grace: Some(grace),
            ending,
        }
    }

    /// Ready once, when the connection is too old: the client is to be told so.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ending.is_cancelled() {
            return Poll::Pending;
        }
        ready!(self.timer.as_mut().poll(cx));
        let Some(grace) = self.grace.take() else {
            self.ending.cancel();
            return Poll::Pending;
        };
        self.timer = Box::pin(sleep(grace));
        // Polled again, the timer wakes the connection at its end.
        cx.waker().wake_by_ref();
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_of_one_age_end_at_times_of_their_own_and_their_calls_after_the_grace() {
        let (max, grace) = (Duration::from_secs(100), Duration::from_secs(7));
        let mut ends = Vec::new();
        for _ in 0..50 {
            let (began, ending) = (Instant::now(), CancellationToken::new());
            let mut age = Age::new(max, grace, ending.clone());
            poll_fn(|cx| age.poll_over(cx)).await;
            let over = began.elapsed();
            assert!((90..=110).contains(&over.as_secs()), "{over:?}");
            tokio::select! {
                () = poll_fn(|cx| age.poll_over(cx)) => panic!("it is too old once"),
                () = ending.cancelled() => assert_eq!((began.elapsed() - over).as_secs(), grace.as_secs()),
            }
            ends.push(over.as_secs() / 5);
        }
        ends.sort_unstable();
        ends.dedup();
        assert!(ends.len() > 2, "{ends:?}");
    }
}
