//! The two sides of a call that was let in: its place is free when its answer ends, and a stream
//! ends when the server drains.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body as Asked;

use crate::api::status;
use crate::error::Error;

/// When a stream has to end, whatever it still has to say.
type Until = Pin<Box<WaitForCancellationFutureOwned>>;

fn at(drain: &CancellationToken) -> Until {
    Box::pin(drain.clone().cancelled_owned())
}

/// A place behind the gate.
#[derive(Debug)]
pub(in crate::api) struct Stay {
    until: Option<Until>,
    _permit: OwnedSemaphorePermit,
}

impl Stay {
    /// A place that a stream leaves when `until` is cancelled.
    pub(super) fn new(permit: OwnedSemaphorePermit, until: Option<&CancellationToken>) -> Self {
        Self {
            until: until.map(at),
            _permit: permit,
        }
    }
}

/// A request whose messages end when `until` is cancelled. Without that, a handler that still
/// listens would keep its connection open after its answer has ended.
pub(super) fn asked(request: Request<Asked>, until: Option<&CancellationToken>) -> Request<Asked> {
    match until {
        None => request,
        Some(drain) => request.map(|body| Asked::new(Ending { body, until: at(drain) })),
    }
}

/// A request's body that ends when the server drains.
struct Ending {
    body: Asked,
    until: Until,
}

impl Body for Ending {
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

/// The body of a call that was let in: its place is free again when it ends, and a stream ends with
/// DRAINING when the server drains.
#[derive(Debug, Default)]
pub(in crate::api) struct Passed<B> {
    body: B,
    stay: Option<Stay>,
}

impl<B> Passed<B> {
    /// The body of the call that has this place.
    pub(super) fn new(body: B, stay: Option<Stay>) -> Self {
        Self { body, stay }
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for Passed<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // The stream itself comes first: it may have a last word of its own.
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            return frame;
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

fn trailers(status: &Status) -> Result<Frame<Bytes>, Status> {
    let mut headers = HeaderMap::new();
    status.add_header(&mut headers)?;
    Ok(Frame::trailers(headers))
}
