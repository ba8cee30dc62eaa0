//! The body of a request, as received from the client.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tonic::Status;

use crate::api::layer::as_inner_body;
use crate::api::status;

thread_local! {
    /// Whether a request's body was polled without data since this flag was last cleared.
    static WITHOUT_MESSAGE: Cell<bool> = const { Cell::new(false) };
}

/// Polls a call. The flag is set if the call waits for a request's message.
pub(super) fn poll_noting<T>(poll: impl FnOnce() -> T) -> (T, bool) {
    WITHOUT_MESSAGE.set(false);
    (poll(), WITHOUT_MESSAGE.get())
}

/// The body of a request. An incomplete body is an error of the client, whatever the cause.
pub(super) struct FromClient {
    body: Incoming,
}

impl FromClient {
    /// Wraps the body that hyper reads.
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
                tracing::debug!(%error, "a request is incomplete");
                status::broken_off()
            })
        }))
    }

    as_inner_body!();
}

/// Waits for a channel that represents a request's message in tests.
#[cfg(test)]
pub(super) async fn until_message(mut message: tokio::sync::oneshot::Receiver<()>) {
    std::future::poll_fn(|cx| {
        let received = Pin::new(&mut message).poll(cx);
        WITHOUT_MESSAGE.set(received.is_pending());
        received
    })
    .await
    .expect("the message arrives");
}
