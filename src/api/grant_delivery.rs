//! The hand-over of a grant: it is kept when its answer goes out, and taken back when it cannot.
//!
//! The end of a handler is too early to call a grant delivered: its call may end before the
//! transport asks for the answer. So the handler puts the [`CountedGrant`] into the response's
//! extensions, this layer moves it into the response's body, and the body's first data frame carries it
//! to the transport, which settles it with the first byte that it writes. What is dropped before, a body or
//! a frame that waits for a window of its client, drops the grant, which undoes it.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Extensions, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tower::Service;

use super::access::CountedGrant;

/// What is taken back by its `Drop`, unless it was delivered before.
pub(super) trait Deliver: Send + Unpin + 'static {
    /// Keeps it: its answer went out.
    fn deliver(self);
}

/// A grant on its way to the response's body.
///
/// Extensions demand `Clone`; all clones are one grant, and whoever is first takes it.
#[derive(Debug)]
pub(super) struct Undelivered<G>(Arc<Mutex<Option<G>>>);

impl<G> Clone for Undelivered<G> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<G: Deliver> Undelivered<G> {
    /// A grant to be handed over.
    pub(super) fn new(granted: G) -> Self {
        Self(Arc::new(Mutex::new(Some(granted))))
    }

    fn take_from(extensions: &mut Extensions) -> Option<G> {
        let Self(slot) = extensions.remove()?;
        // A panic cannot have happened under this lock: nothing is done there but to take.
        slot.lock().ok()?.take()
    }
}

/// Settles the grants in the responses of an inner service.
#[derive(Debug)]
pub(super) struct GrantDelivery<S, G = CountedGrant> {
    inner: S,
    grants: PhantomData<fn() -> G>,
}

impl<S: Clone, G> Clone for GrantDelivery<S, G> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            grants: PhantomData,
        }
    }
}

impl<S, G> GrantDelivery<S, G> {
    /// Watches over the grants of `inner`.
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            grants: PhantomData,
        }
    }
}

impl<S, G, R, B> Service<Request<R>> for GrantDelivery<S, G>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Unpin,
    G: Deliver,
{
    type Response = Response<GrantBody<B, G>>;
    type Error = S::Error;
    type Future = GrantDeliveryFuture<S::Future, G>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        GrantDeliveryFuture {
            inner: self.inner.call(request),
            grants: PhantomData,
        }
    }
}

/// A call that may be granted.
#[derive(Debug)]
pub(super) struct GrantDeliveryFuture<F, G> {
    inner: F,
    grants: PhantomData<fn() -> G>,
}

impl<F, G, B, E> Future for GrantDeliveryFuture<F, G>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
    G: Deliver,
{
    type Output = Result<Response<GrantBody<B, G>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answered = ready!(Pin::new(&mut self.inner).poll(cx));
        Poll::Ready(answered.map(|mut response| {
            let granted = Undelivered::take_from(response.extensions_mut());
            response.map(|body| GrantBody { body, granted })
        }))
    }
}

/// A body that hands a grant over with its first data frame.
#[derive(Debug)]
pub(super) struct GrantBody<B, G> {
    body: B,
    granted: Option<G>,
}

impl<B: Default, G> Default for GrantBody<B, G> {
    fn default() -> Self {
        Self {
            body: B::default(),
            granted: None,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin, G: Deliver> Body for GrantBody<B, G> {
    type Data = GrantBytes<G>;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let granted = &mut self.granted;
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| {
                frame.map_data(|bytes| GrantBytes {
                    bytes,
                    granted: granted.take(),
                })
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes on their way to the transport, with the grant that they tell of.
#[derive(Debug)]
pub(super) struct GrantBytes<G> {
    bytes: Bytes,
    granted: Option<G>,
}

impl<G: Deliver> Buf for GrantBytes<G> {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    /// The transport calls it for what it writes.
    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
        if let Some(granted) = self.granted.take_if(|_| bytes > 0) {
            granted.deliver();
        }
    }
}

#[cfg(test)]
mod tests;
