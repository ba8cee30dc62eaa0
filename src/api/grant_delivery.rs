//! Confirms a grant when its answer is sent, and undoes it if the answer cannot be sent.
//!
//! A grant is not delivered yet when its handler returns, because the call may end before the
//! transport reads the answer. The handler therefore puts the grant into the response's
//! extensions. This layer moves it into the response's body, and the body's first data frame
//! carries it to the transport, which confirms it when it writes the first byte. If the body, or a
//! frame that waits for its client's flow-control window, is dropped before, the grant is dropped
//! too, which undoes it.
//!
//! A stream may add grants while it is sent. Each is carried by the data frame that contains its message: the transport's
//! encoder puts all messages that it has taken from the stream into the next frame.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Extensions, Request, Response};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use super::layer::{Layer, LayerCall};

/// A value whose `Drop` undoes it unless it was delivered before.
pub(super) trait Deliver: Send + Unpin + 'static {
    /// Keeps it, because its answer was sent.
    fn deliver(self);
}

/// Grants on their way to the response's body. Extensions require `Clone`; all clones share the grants.
#[derive(Debug)]
pub(super) struct Undelivered<G>(Arc<Mutex<Vec<G>>>);

impl<G> Default for Undelivered<G> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Vec::new())))
    }
}

impl<G> Clone for Undelivered<G> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<G: Deliver> Undelivered<G> {
    /// A grant that is not delivered yet.
    pub(super) fn new(granted: G) -> Self {
        Self(Arc::new(Mutex::new(vec![granted])))
    }

    /// Adds the grants of the message that a stream passes to the transport now.
    pub(super) fn add(&self, granted: impl IntoIterator<Item = G>) {
        self.0.lock().extend(granted);
    }

    fn take(&self) -> Vec<G> {
        // No code under this mutex can panic.
        std::mem::take(&mut self.0.lock())
    }

    fn take_from(extensions: &mut Extensions) -> Option<Self> {
        extensions.remove()
    }
}

/// Confirms or undoes the grants in responses.
#[derive(Debug)]
pub(super) struct GrantDelivery<G>(PhantomData<fn() -> G>);

impl<G> Default for GrantDelivery<G> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<G> Clone for GrantDelivery<G> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<G> Layer for GrantDelivery<G> {
    type Call = Self;

    fn begin<R>(&self, _: &mut Request<R>) -> Self {
        Self::default()
    }
}

impl<B, G: Deliver> LayerCall<B> for GrantDelivery<G> {
    type Body = GrantBody<B, G>;

    fn answered(self, mut response: Response<B>) -> Response<GrantBody<B, G>> {
        let undelivered = Undelivered::take_from(response.extensions_mut());
        response.map(|body| GrantBody { body, undelivered })
    }
}

/// A body that attaches grants to the data frames that contain them.
#[derive(Debug)]
pub(super) struct GrantBody<B, G> {
    body: B,
    undelivered: Option<Undelivered<G>>,
}

impl<B: Default, G> Default for GrantBody<B, G> {
    fn default() -> Self {
        Self {
            body: B::default(),
            undelivered: None,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin, G: Deliver> Body for GrantBody<B, G> {
    type Data = GrantBytes<G>;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let undelivered = &self.undelivered;
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| {
                frame.map_data(|bytes| GrantBytes {
                    bytes,
                    granted: undelivered.as_ref().map(Undelivered::take).unwrap_or_default(),
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

/// Bytes for the transport, with the grants that they contain.
#[derive(Debug)]
pub(super) struct GrantBytes<G> {
    bytes: Bytes,
    granted: Vec<G>,
}

impl<G: Deliver> Buf for GrantBytes<G> {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    /// The transport calls this for the bytes that it has written.
    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
        if bytes > 0 {
            std::mem::take(&mut self.granted).into_iter().for_each(G::deliver);
        }
    }
}

#[cfg(test)]
mod tests;
