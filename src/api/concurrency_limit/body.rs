//! The two sides of a call that was let in: its message has to come soon, its place is free when its answer
//! ends, and a stream ends when the server drains.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body as RequestBody;

use super::permits::Permit;
use crate::api::capacity::{ChargeTo, Charged};
use crate::api::status;
use crate::error::Error;
use crate::name::InvalidField;

/// How long the message of a call may take after its head.
const MESSAGE_TIME: Duration = Duration::from_secs(5);

/// When a stream has to end, whatever it still has to say.
type Until = Pin<Box<WaitForCancellationFutureOwned>>;

fn at(drain: &CancellationToken) -> Until {
    Box::pin(drain.clone().cancelled_owned())
}

/// A place behind the gate.
#[derive(Debug)]
pub(in crate::api) struct CallPermit {
    until: Option<Until>,
    _permit: Permit,
}

impl CallPermit {
    /// A place that a stream leaves when `until` is cancelled, and any other call with its answer.
    pub(super) fn new(permit: Permit, until: Option<&CancellationToken>) -> Self {
        Self {
            until: until.map(at),
            _permit: permit,
        }
    }

    /// Whether the place is kept while the body goes on.
    pub(super) fn is_of_stream(&self) -> bool {
        self.until.is_some()
    }
}

/// A request whose messages end when the server drains. Without that, a handler that still listens would
/// keep its connection open after its answer has ended.
pub(super) fn until_drain(request: Request<RequestBody>, drain: &CancellationToken) -> Request<RequestBody> {
    request.map(|body| RequestBody::new(EndOnDrain { body, until: at(drain) }))
}

/// A request with a single message, which has to come soon.
pub(super) fn soon(request: Request<RequestBody>) -> Request<RequestBody> {
    if request.body().is_end_stream() {
        return request;
    }
    request.map(|body| RequestBody::new(MessageTimeout { body, timeout: None }))
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

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request's body that fails when it takes too long to come. Nobody asks for more of it once its end was
/// seen, so the call itself may go on.
struct MessageTimeout {
    body: RequestBody,
    /// From the first time that there was nothing yet.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl Body for MessageTimeout {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            return frame;
        }
        let timeout = self.timeout.get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIME)));
        ready!(timeout.as_mut().poll(cx));
        let problem = format!("must have come whole within {MESSAGE_TIME:?}");
        Poll::Ready(Some(Err(status::of(InvalidField::new("request", problem)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a call that was let in. Its bytes count as unsent until the transport has written them. A stream
/// keeps its place until it ends, which it does with DRAINING when the server drains.
#[derive(Debug, Default)]
pub(in crate::api) struct PermitBody<B> {
    body: B,
    stay: Option<CallPermit>,
    charge_to: Option<ChargeTo>,
}

impl<B> PermitBody<B> {
    /// The body of the stream that has this place, or of a call that has left it, with whom its bytes count for.
    pub(super) fn new(body: B, stay: Option<CallPermit>, charge_to: Option<ChargeTo>) -> Self {
        Self { body, stay, charge_to }
    }
}

impl<B: Body<Error = Status> + Unpin> PermitBody<B> {
    /// A frame of the body; OVERLOADED in its stead when too many bytes are unsent already.
    fn charged(&self, frame: Frame<B::Data>) -> Result<Frame<Charged<B::Data>>, Status> {
        match frame.into_data() {
            Ok(data) => match Charged::new(data, self.charge_to.as_ref()) {
                Ok(data) => Ok(Frame::data(data)),
                Err(overloaded) => trailers(&status::of(overloaded)),
            },
            Err(frame) => Ok(frame.map_data(|_| unreachable!("it is no data"))),
        }
    }
}

impl<B: Body<Error = Status> + Unpin> Body for PermitBody<B> {
    type Data = Charged<B::Data>;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        // The stream itself comes first: it may have a last word of its own.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.and_then(|frame| self.charged(frame))));
        }
        let until = self.stay.as_mut().and_then(|stay| stay.until.as_mut());
        let Some(Poll::Ready(())) = until.map(|until| until.as_mut().poll(cx)) else {
            return Poll::Pending;
        };
        self.stay = None;
        Poll::Ready(Some(trailers(&status::of(Error::Draining))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn trailers<D>(status: &Status) -> Result<Frame<D>, Status> {
    let mut headers = HeaderMap::new();
    status.add_header(&mut headers)?;
    Ok(Frame::trailers(headers))
}
