//! The messages of a request as they come from the client.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tonic::Status;

use crate::api::status;

thread_local! {
    /// Whether a request's body had nothing to give since this was last cleared.
    static WITHOUT_MESSAGE: Cell<bool> = const { Cell::new(false) };
}

/// What a poll came to, and whether a request's message was missing in it.
pub(super) fn noting<T>(poll: impl FnOnce() -> T) -> (T, bool) {
    WITHOUT_MESSAGE.set(false);
    (poll(), WITHOUT_MESSAGE.get())
}

/// The body of a request. That it breaks off is its client's doing, whatever the reason.
pub(super) struct FromClient {
    body: Incoming,
}

impl FromClient {
    /// The body as hyper reads it.
    pub(super) fn new(body: Incoming) -> Self {
        Self { body }
    }
}

impl Body for FromClient {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending() {
            WITHOUT_MESSAGE.set(true);
        }
        Poll::Ready(ready!(frame).map(|frame| {
            frame.map_err(|error| {
                tracing::debug!(%error, "a request broke off");
                status::broken_off()
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Waits for what stands for a request's message in tests.
#[cfg(test)]
pub(super) async fn until_message(mut comes: tokio::sync::oneshot::Receiver<()>) {
    std::future::poll_fn(|cx| {
        let came = Pin::new(&mut comes).poll(cx);
        WITHOUT_MESSAGE.set(came.is_pending());
        came
    })
    .await
    .expect("it comes");
}
