//! Confirms a grant when its answer is sent, and undoes it if the answer cannot be sent.
//!
//! A grant is not delivered yet when its handler returns, because the call may end before the
//! transport reads the answer. The handler therefore puts the grant into the response's
//! extensions. [`carried`] moves it into the response's body, and the body's first data frame
//! carries it to the transport, which confirms it when it writes the first byte. If the body, or a
//! frame that waits for its client's flow-control window, is dropped before, the grant is dropped
//! too, which undoes it.
//!
//! A stream may add grants while it is sent. Each is carried by the data frame that contains its message: the transport's
//! encoder puts all messages that it has taken from the stream into the next frame. A frame may be written in parts, so
//! each grant is confirmed with the first byte of its own part of its message.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Body, Frame};
use parking_lot::Mutex;

use super::service::as_inner_body;

/// A value whose `Drop` undoes it unless it was delivered before.
pub(super) trait Deliver: Send + Unpin + 'static {
    /// Keeps it, because its answer was sent.
    fn deliver(self);
}

/// The length of what precedes each message of a frame.
const PREFIX: usize = 5;

/// Grants on their way to the response's body. Extensions require `Clone`; all clones share the grants.
#[derive(Debug)]
pub(super) struct Undelivered<G>(Arc<Mutex<Messages<G>>>);

/// The messages that the transport has taken for its next frame.
#[derive(Debug)]
struct Messages<G> {
    /// Their length in bytes, with their prefixes.
    length: usize,
    /// The grants in them, each with the number of bytes before its part, in their order.
    granted: Vec<(usize, G)>,
}

impl<G> Default for Messages<G> {
    fn default() -> Self {
        Self {
            length: 0,
            granted: Vec::new(),
        }
    }
}

impl<G> Default for Undelivered<G> {
    fn default() -> Self {
        Self(Arc::default())
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
        Self(Arc::new(Mutex::new(Messages {
            length: 0,
            granted: vec![(0, granted)],
        })))
    }

    /// Adds the message that a stream passes to the transport now: its length in bytes, and its grants in their order, each
    /// with the number of bytes before its part of the message.
    pub(super) fn add(&self, length: usize, granted: impl IntoIterator<Item = (usize, G)>) {
        let mut messages = self.0.lock();
        let start = messages.length + PREFIX;
        messages.length = start + length;
        let granted = granted.into_iter().map(|(before, granted)| (start + before, granted));
        messages.granted.extend(granted);
    }

    /// Takes the grants of a frame of this length.
    fn take(&self, length: usize) -> Vec<(usize, G)> {
        let Messages {
            length: expected,
            mut granted,
        } = std::mem::take(&mut *self.0.lock());
        // Where the grants are in another encoding is not known. They are confirmed early, because a client may have them.
        if length != expected {
            granted.iter_mut().for_each(|(before, _)| *before = 0);
        }
        granted
    }
}

/// The response with a body that confirms or undoes its grants.
pub(super) fn carried<B, G: Deliver>(mut response: Response<B>) -> Response<GrantBody<B, G>> {
    let undelivered = response.extensions_mut().remove();
    response.map(|body| GrantBody { body, undelivered })
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
                frame.map_data(|bytes| {
                    let length = bytes.len();
                    let granted = undelivered.as_ref().map(|undelivered| undelivered.take(length));
                    GrantBytes {
                        bytes,
                        written: 0,
                        granted: granted.unwrap_or_default().into(),
                    }
                })
            })
        }))
    }

    as_inner_body!();
}

/// Bytes for the transport, with the grants that they contain.
#[derive(Debug)]
pub(super) struct GrantBytes<G> {
    bytes: Bytes,
    /// How many bytes were written.
    written: usize,
    /// In their order, each with the number of bytes before its part.
    granted: VecDeque<(usize, G)>,
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
        self.written += bytes;
        let written = self.written;
        while self.granted.front().is_some_and(|(before, _)| *before < written)
            && let Some((_, granted)) = self.granted.pop_front()
        {
            granted.deliver();
        }
    }
}

#[cfg(test)]
mod tests;
