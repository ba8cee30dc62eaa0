//! Waits for the message of a call before the call continues.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::{Body as _, Frame};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;

/// How long the message of a call may take after its headers.
pub(super) const MESSAGE_LIMIT: Duration = Duration::from_secs(5);

/// Waits until the first part of the request's message has arrived, or for [`MESSAGE_LIMIT`].
///
/// # Cancellation safety
/// If dropped, the request is incomplete and must be dropped too.
pub(super) async fn wait_for_first_frame(request: &mut Request<Body>) {
    if request.body().is_end_stream() {
        return;
    }
    let body = request.body_mut();
    let frame = timeout(MESSAGE_LIMIT, poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx))).await;
    if let Ok(Some(first)) = frame {
        let rest = std::mem::take(body);
        let first = Some(first);
        *body = Body::new(Begun { first, rest });
    }
}

/// A body whose first part has been read already.
struct Begun {
    first: Option<Result<Frame<Bytes>, Status>>,
    rest: Body,
}

impl http_body::Body for Begun {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// A body of these parts, after which nothing comes.
    struct Unfinished(Vec<&'static str>);

    impl http_body::Body for Unfinished {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match self.0.pop() {
                Some(part) => Poll::Ready(Some(Ok(Frame::data(part.into())))),
                None => Poll::Pending,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_waited_for_so_long_and_kept_whole() {
        let began = Instant::now();
        let mut request = Request::new(Body::new(Unfinished(vec!["b", "a"])));
        wait_for_first_frame(&mut request).await;
        assert!(began.elapsed().is_zero());
        for expected in ["a", "b"] {
            let frame = poll_fn(|cx| Pin::new(request.body_mut()).poll_frame(cx)).await;
            let data = frame.expect("a frame").expect("no error").into_data();
            assert_eq!(data.expect("data"), expected);
        }
        wait_for_first_frame(&mut request).await;
        assert_eq!(began.elapsed(), MESSAGE_LIMIT);
    }
}
