//! The request and response bodies of an admitted call: limits the time for the message, returns a stream's permit at
//! its end, and ends streams when the server drains.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::stream::StreamExt;
use http::{HeaderMap, Request};
use http_body::{Body, Frame};
use http_body_util::{BodyStream, StreamBody};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body as RequestBody;

use super::permits::Permit;
use crate::api::capacity::{ByteCounters, CountedData};
use crate::api::first_frame::MESSAGE_LIMIT;
use crate::api::grant_delivery::{GrantBytes, Undelivered};
use crate::api::request_log;
use crate::api::service::as_inner_body;
use crate::api::status;
use crate::error::Error;
use crate::name::InvalidField;

/// The permit of an admitted call.
#[derive(Debug)]
pub(in crate::api) struct CallPermit {
    is_of_stream: bool,
    /// Ready when the stream has to end.
    until: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    _permit: Permit,
}

impl CallPermit {
    /// A permit for a stream or another call. A stream ends when `until` is cancelled.
    pub(super) fn new(permit: Permit, is_of_stream: bool, until: Option<&CancellationToken>) -> Self {
        Self {
            is_of_stream,
            until: until.map(|drain| Box::pin(drain.clone().cancelled_owned())),
            _permit: permit,
        }
    }
}

/// What the answer of an admitted call keeps.
#[derive(Debug, Default)]
pub(in crate::api) struct CallTerms {
    pub(super) permit: Option<CallPermit>,
    /// For whom its bytes count.
    pub(super) byte_counters: Option<ByteCounters>,
}

/// Ends the messages of a request when the server drains. Otherwise a handler that still waits for messages would keep
/// the connection open after the end of its answer.
pub(super) fn until_drain(request: Request<RequestBody>, drain: &CancellationToken) -> Request<RequestBody> {
    let until = drain.clone().cancelled_owned();
    request.map(|body| RequestBody::new(StreamBody::new(BodyStream::new(body).take_until(until))))
}

/// Fails the body of a request if its single message takes longer than [`MESSAGE_LIMIT`].
pub(super) fn with_message_timeout(request: Request<RequestBody>) -> Request<RequestBody> {
    if request.body().is_end_stream() {
        return request;
    }
    request.map(|body| RequestBody::new(MessageTimeout { body, limit: None }))
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

/// The response body of a call. Its bytes count as unsent until the transport has written them, and carry the grants in
/// them. A stream keeps its permit until its end, and ends with DRAINING when the server drains. Its trailers have the
/// status for the log.
#[derive(Debug, Default)]
pub(in crate::api) struct CallBody<B> {
    body: B,
    undelivered: Option<Undelivered>,
    terms: CallTerms,
    log: Option<request_log::Call>,
}

impl<B> CallBody<B> {
    /// The body of an answer with these grants on these terms, and its entry in the log. Only a stream keeps its permit: a
    /// client that reads its answer late does not block other calls.
    pub(in crate::api) fn new(
        body: B,
        undelivered: Option<Undelivered>,
        mut terms: CallTerms,
        log: Option<request_log::Call>,
    ) -> Self {
        terms.permit = terms.permit.filter(|permit| permit.is_of_stream);
        Self {
            body,
            undelivered,
            terms,
            log,
        }
    }
}

/// A frame whose bytes count as unsent.
type CountedFrame = Result<Frame<CountedData<GrantBytes>>, Status>;

impl<B: Body<Data = Bytes, Error = Status> + Unpin> CallBody<B> {
    /// A frame of the body, or the error OVERLOADED if a limit of unsent bytes has been reached.
    fn charged(&self, frame: Frame<Bytes>) -> CountedFrame {
        match frame.into_data() {
            Ok(data) => {
                let data = GrantBytes::new(data, self.undelivered.as_ref());
                match CountedData::new(data, self.terms.byte_counters.as_ref()) {
                    Ok(data) => Ok(Frame::data(data)),
                    Err(overloaded) => trailers(&status::of(overloaded)),
                }
            }
            Err(frame) => Ok(frame.map_data(|_| unreachable!("not a data frame"))),
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<CountedFrame>> {
        // The inner body is polled first, because it may end with its own status.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.and_then(|frame| self.charged(frame))));
        }
        let until = self.terms.permit.as_mut().and_then(|permit| permit.until.as_mut());
        ready!(until.map_or(Poll::Pending, |until| until.as_mut().poll(cx)));
        self.terms.permit = None;
        Poll::Ready(Some(trailers(&status::of(Error::Draining))))
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for CallBody<B> {
    type Data = CountedData<GrantBytes>;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let frame = ready!(self.poll_next(cx));
        let trailers = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.trailers_ref());
        if let (Some(trailers), Some(log)) = (trailers, &mut self.log) {
            log.read_trailers(trailers);
        }
        Poll::Ready(frame)
    }

    as_inner_body!();
}

fn trailers(status: &Status) -> CountedFrame {
    let mut headers = HeaderMap::new();
    status.add_header(&mut headers)?;
    Ok(Frame::trailers(headers))
}
