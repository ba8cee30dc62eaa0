//! The hand-over of a grant: it is kept when its answer goes out, and taken back when it cannot.
//!
//! The end of a handler is too early to call a grant delivered: its call may end before the
//! transport asks for the answer. So the handler puts the [`Granted`] into the response's
//! extensions, this layer moves it into the response's body, and the body's first data frame
//! settles it. A body that is dropped before drops the grant, which undoes it.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tower::Service;

use crate::locks::Granted;

/// A grant on its way to the response's body.
///
/// Extensions demand `Clone`; all clones are one grant, and whoever is first takes it.
#[derive(Debug, Clone)]
pub(super) struct Undelivered(Arc<Mutex<Option<Granted>>>);

impl Undelivered {
    /// A grant to be handed over.
    pub(super) fn new(granted: Granted) -> Self {
        Self(Arc::new(Mutex::new(Some(granted))))
    }

    fn take_from(extensions: &mut Extensions) -> Option<Granted> {
        let Self(slot) = extensions.remove()?;
        // A panic cannot have happened under this lock: nothing is done there but to take.
        slot.lock().ok()?.take()
    }
}

/// Settles the grants in the responses of `inner`.
#[derive(Debug, Clone)]
pub(super) struct Handover<S>(pub S);

impl<S, R, B> Service<Request<R>> for Handover<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Unpin,
{
    type Response = Response<Handing<B>>;
    type Error = S::Error;
    type Future = HandoverFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        HandoverFuture(self.0.call(request))
    }
}

/// A call that may be granted.
#[derive(Debug)]
pub(super) struct HandoverFuture<F>(F);

impl<F, B, E> Future for HandoverFuture<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
{
    type Output = Result<Response<Handing<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answered = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(answered.map(|mut response| {
            let granted = Undelivered::take_from(response.extensions_mut());
            response.map(|body| Handing { body, granted })
        }))
    }
}

/// A body that hands a grant over with its first data frame.
#[derive(Debug, Default)]
pub(super) struct Handing<B> {
    body: B,
    granted: Option<Granted>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Handing<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame
            .as_ref()
            .is_some_and(|frame| frame.as_ref().is_ok_and(Frame::is_data))
        {
            self.granted.take().map(Granted::delivered);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
