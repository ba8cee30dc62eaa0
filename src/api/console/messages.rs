//! The messages in the body of a gRPC answer, and the body of a gRPC request.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::api::status;

/// The length of the prefix of a message: a flag and the message's length.
const PREFIX: usize = 5;

/// The body of a request with one message.
pub(super) struct OneMessage(Option<Bytes>);

impl OneMessage {
    /// A request with this encoded message.
    pub(super) fn new(message: &[u8]) -> Self {
        let mut body = BytesMut::with_capacity(PREFIX + message.len());
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        body.put_slice(message);
        Self(Some(body.freeze()))
    }
}

impl Body for OneMessage {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|body| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |body| body.len() as u64))
    }
}

/// The messages of an answer.
pub(super) struct Messages<B> {
    body: Pin<Box<B>>,
    buffer: BytesMut,
}

impl<B> Messages<B>
where
    B: Body<Error = Status>,
{
    /// The messages of this answer.
    ///
    /// # Errors
    /// The status of a call that failed before its first message.
    pub(super) fn of(answer: Response<B>) -> Result<Self, Status> {
        failure(answer.headers())?;
        Ok(Self {
            body: Box::pin(answer.into_body()),
            buffer: BytesMut::new(),
        })
    }

    /// The next message; `None` at the end of a successful call.
    ///
    /// # Errors
    /// The status with which the call ended.
    ///
    /// # Cancellation safety
    /// If dropped, no message is lost.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.take() {
                return Ok(Some(message));
            }
            let Some(frame) = poll_fn(|cx| self.body.as_mut().poll_frame(cx)).await else {
                return Ok(None);
            };
            match frame?.into_data() {
                Ok(data) => self.buffer.put(data),
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        failure(&trailers)?;
                    }
                }
            }
        }
    }

    /// A complete message of the buffer. Messages are not compressed, because no request accepts that.
    fn take(&mut self) -> Option<Bytes> {
        let mut prefix = self.buffer.get(1..PREFIX)?;
        let length = prefix.get_u32() as usize;
        if self.buffer.len() < PREFIX + length {
            return None;
        }
        self.buffer.advance(PREFIX);
        Some(self.buffer.split_to(length).freeze())
    }
}

fn failure(headers: &HeaderMap) -> Result<(), Status> {
    match status::of_headers(headers) {
        Some(failed) => Err(failed),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A body of these frames.
    #[derive(Debug)]
    struct Frames(VecDeque<Frame<Bytes>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    fn framed(message: &[u8]) -> Bytes {
        OneMessage::new(message).0.expect("a body")
    }

    #[tokio::test]
    async fn messages_are_found_however_the_body_is_divided() {
        let whole = [framed(b"one"), framed(b""), framed(&[7; 300])].concat();
        for size in [1, 2, 5, 6, 100, whole.len()] {
            let frames = whole.chunks(size).map(|part| Frame::data(Bytes::copy_from_slice(part)));
            let answer = Response::new(Frames(frames.collect()));
            let mut messages = Messages::of(answer).unwrap_or_else(|_| panic!("no failure"));
            let mut found = Vec::new();
            while let Some(message) = messages.next().await.unwrap() {
                found.push(message.to_vec());
            }
            assert_eq!(found, [b"one".to_vec(), Vec::new(), vec![7; 300]], "{size}");
        }
    }

    #[tokio::test]
    async fn a_failure_is_found_in_headers_and_in_trailers() {
        let failed = status::unknown_method().into_http::<tonic::body::Body>();
        let trailers = failed.headers().clone();
        assert!(Messages::of(failed).is_err());
        let frames = [Frame::data(framed(b"one")), Frame::trailers(trailers)];
        let mut messages = Messages::of(Response::new(Frames(frames.into()))).unwrap_or_else(|_| panic!("no failure"));
        assert_eq!(messages.next().await.unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(messages.next().await.unwrap_err().code(), tonic::Code::Unimplemented);
    }
}
