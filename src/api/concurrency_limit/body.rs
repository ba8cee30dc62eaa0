//! The request and response bodies of an admitted call: limits the time for the message, returns a stream's permit at
//! its end, and ends streams when the server drains.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body as RequestBody;

use super::permits::Permit;
use crate::api::capacity::{ByteCounters, CountedData};
use crate::api::first_frame::MESSAGE_LIMIT;
use crate::api::layer::as_inner_body;
use crate::api::status;
use crate::error::Error;
use crate::name::InvalidField;

/// Ready when a stream has to end.
type Until = Pin<Box<WaitForCancellationFutureOwned>>;

fn at(drain: &CancellationToken) -> Until {
    Box::pin(drain.clone().cancelled_owned())
}

/// The permit of an admitted call.
#[derive(Debug)]
pub(in crate::api) struct CallPermit {
    is_of_stream: bool,
    until: Option<Until>,
    _permit: Permit,
}

impl CallPermit {
    /// A permit for a stream or another call. A stream ends when `until` is cancelled.
    pub(super) fn new(permit: Permit, is_of_stream: bool, until: Option<&CancellationToken>) -> Self {
        Self {
            is_of_stream,
            until: until.map(at),
            _permit: permit,
        }
    }

    /// Whether the permit is kept until the body ends.
    pub(super) fn is_of_stream(&self) -> bool {
        self.is_of_stream
    }
}

/// Ends the messages of a request when the server drains. Otherwise a handler that still waits for messages would keep
/// the connection open after the end of its answer.
pub(super) fn until_drain(request: Request<RequestBody>, drain: &CancellationToken) -> Request<RequestBody> {
    request.map(|body| RequestBody::new(EndOnDrain { body, until: at(drain) }))
}

/// Fails the body of a request if its single message takes longer than [`MESSAGE_LIMIT`].
pub(super) fn with_message_timeout(request: Request<RequestBody>) -> Request<RequestBody> {
    if request.body().is_end_stream() {
        return request;
    }
    request.map(|body| RequestBody::new(MessageTimeout { body, limit: None }))
}

/// A request's body that ends when the server drains.
struct EndOnDrain {
    body: RequestBody,
    until: Until,
}

impl Body for EndOnDrain {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending() && self.until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        frame
    }

    as_inner_body!();
}

/// A request's body that fails after [`MESSAGE_LIMIT`]. The body is not polled after its end, so the call itself may
/// last longer.
struct MessageTimeout {
    body: RequestBody,
    /// Starts at the first poll without data.
    limit: Option<Pin<Box<Sleep>>>,
}

impl Body for MessageTimeout {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            return frame;
        }
        let limit = self.limit.get_or_insert_with(|| Box::pin(sleep(MESSAGE_LIMIT)));
        ready!(limit.as_mut().poll(cx));
        let problem = format!("must arrive completely within {MESSAGE_LIMIT:?}");
        Poll::Ready(Some(Err(status::of(InvalidField::new("request", problem)))))
    }

    as_inner_body!();
}

/// The response body of an admitted call. Its bytes count as unsent until the transport has written them. A stream
/// keeps its permit until its end, and ends with DRAINING when the server drains.
#[derive(Debug, Default)]
pub(in crate::api) struct PermitBody<B> {
    body: B,
    permit: Option<CallPermit>,
    byte_counters: Option<ByteCounters>,
}

impl<B> PermitBody<B> {
    /// The body of a stream with its permit, or of another call without one, and for whom its bytes count.
    pub(super) fn new(body: B, permit: Option<CallPermit>, byte_counters: Option<ByteCounters>) -> Self {
        Self {
            body,
            permit,
            byte_counters,
        }
    }
}

impl<B: Body<Error = Status> + Unpin> PermitBody<B> {
    /// A frame of the body, or the error OVERLOADED if a limit of unsent bytes has been reached.
    fn charged(&self, frame: Frame<B::Data>) -> Result<Frame<CountedData<B::Data>>, Status> {
        match frame.into_data() {
            Ok(data) => match CountedData::new(data, self.byte_counters.as_ref()) {
                Ok(data) => Ok(Frame::data(data)),
                Err(overloaded) => trailers(&status::of(overloaded)),
            },
            Err(frame) => Ok(frame.map_data(|_| unreachable!("not a data frame"))),
        }
    }
}

impl<B: Body<Error = Status> + Unpin> Body for PermitBody<B> {
    type Data = CountedData<B::Data>;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        // The inner body is polled first, because it may end with its own status.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.and_then(|frame| self.charged(frame))));
        }
        let until = self.permit.as_mut().and_then(|permit| permit.until.as_mut());
        let Some(Poll::Ready(())) = until.map(|until| until.as_mut().poll(cx)) else {
            return Poll::Pending;
        };
        self.permit = None;
        Poll::Ready(Some(trailers(&status::of(Error::Draining))))
    }

    as_inner_body!();
}

fn trailers<D>(status: &Status) -> Result<Frame<D>, Status> {
    let mut headers = HeaderMap::new();
    status.add_header(&mut headers)?;
    Ok(Frame::trailers(headers))
}
