//! Waits for the message of a call before the call continues.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use http::Request;
use http_body::Body as _;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use tokio::time::timeout;
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
    if let Ok(Some(first)) = timeout(MESSAGE_LIMIT, body.frame()).await {
        let rest = BodyStream::new(std::mem::take(body));
        *body = Body::new(StreamBody::new(stream::iter([first]).chain(rest)));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use http_body::Frame;
    use tokio::time::Instant;
    use tonic::Status;

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
            let frame = request.body_mut().frame().await;
            let data = frame.expect("a frame").expect("no error").into_data();
            assert_eq!(data.expect("data"), expected);
        }
        wait_for_first_frame(&mut request).await;
        assert_eq!(began.elapsed(), MESSAGE_LIMIT);
    }
}
