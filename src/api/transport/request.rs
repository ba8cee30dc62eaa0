//! The body of a request, as received from the client.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::Status;

use crate::api::capacity::ReceivedBytes;
use crate::api::concurrency_limit::{Kind, MessageBounds};
use crate::api::status;

/// How long an answer waits for the rest of its request.
const REST_PATIENCE: Duration = Duration::from_secs(1);

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
    /// Absent after the drop.
    body: Option<Incoming>,
    /// Takes the rest, if somebody wants it.
    rest: Option<oneshot::Sender<Incoming>>,
    /// What has arrived.
    received: ReceivedBytes,
    size: Size,
}

/// How much of a body is kept until a message is complete.
enum Size {
    /// All that has arrived.
    Whole(usize),
    /// The largest message so far of a stream in gRPC, whose buffer keeps its size. Larger ones than this limit count
    /// elsewhere.
    Largest(MessageBounds, usize),
}

impl Size {
    fn after(&mut self, data: &[u8]) -> usize {
        match self {
            Self::Whole(bytes) => {
                *bytes += data.len();
                *bytes
            }
            Self::Largest(bounds, limit) => bounds.largest_begun(data).min(*limit),
        }
    }
}

/// What the service leaves unread of a request.
pub(super) struct Rest(oneshot::Receiver<Incoming>);

impl FromClient {
    /// The body that hyper reads for a call of this kind. What has arrived counts as `received`; the messages of a stream
    /// may have `request_bytes`.
    pub(super) fn new(body: Incoming, kind: Kind, received: ReceivedBytes, request_bytes: usize) -> Self {
        let size = if kind.takes_stream() {
            Size::Largest(MessageBounds::default(), request_bytes)
        } else {
            Size::Whole(0)
        };
        Self {
            body: Some(body),
            rest: None,
            received,
            size,
        }
    }

    /// What the service will leave unread of it.
    pub(super) fn rest(&mut self) -> Rest {
        let (rest, unread) = oneshot::channel();
        self.rest = Some(rest);
        Rest(unread)
    }
}

impl Drop for FromClient {
    fn drop(&mut self) {
        let unread = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(unread), Some(rest)) = (unread, self.rest.take()) {
            // Without a receiver, nobody wants the rest.
            drop(rest.send(unread));
        }
    }
}

impl Body for FromClient {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(body).poll_frame(cx);
        if frame.is_pending() {
            WITHOUT_MESSAGE.set(true);
        }
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            let kept = self.size.after(data);
            self.received.raise(kept).map_err(status::of)?;
        }
        Poll::Ready(ready!(frame).map(|frame| {
            frame.map_err(|error| {
                tracing::debug!(%error, "a request is incomplete");
                status::broken_off()
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Rest {
    /// Reads at most `limit` bytes once the service has dropped the request, for at most [`REST_PATIENCE`].
    ///
    /// Without this, an answer that needs no message resets the stream while the client sends one. HTTP/2 lets a client
    /// go on without an error (RFC 9113, 8.1), but curl before 8.0 reports one.
    pub(super) async fn read(self, limit: usize) {
        let reading = async {
            let Ok(mut body) = self.0.await else { return };
            let mut bytes = 0;
            while let Some(Ok(frame)) = body.frame().await {
                bytes += frame.data_ref().map_or(0, Bytes::len);
                if bytes > limit {
                    return;
                }
            }
        };
        // A client that does not finish its request gets the answer nevertheless.
        timeout(REST_PATIENCE, reading).await.unwrap_or_default();
    }
}

/// Waits for a channel that represents a request's message in tests.
#[cfg(test)]
pub(super) async fn until_message(mut message: oneshot::Receiver<()>) {
    std::future::poll_fn(|cx| {
        let received = Pin::new(&mut message).poll(cx);
        WITHOUT_MESSAGE.set(received.is_pending());
        received
    })
    .await
    .expect("the message arrives");
}

#[cfg(test)]
mod tests {
    use super::*;

    // G194
    #[test]
    fn what_is_kept_of_a_body_is_all_of_it_or_the_largest_message_of_a_stream() {
        let mut whole = Size::Whole(0);
        assert_eq!([3, 0, 4].map(|bytes| whole.after(&vec![0; bytes])), [3, 3, 7]);
        let message = |bytes: u8| [vec![0, 0, 0, 0, bytes], vec![0; bytes.into()]].concat();
        let mut largest = Size::Largest(MessageBounds::default(), 50);
        let kept = [10, 40, 5, 200].map(|bytes| largest.after(&message(bytes)));
        assert_eq!(kept, [10, 40, 5, 50], "the count is only raised");
    }
}
