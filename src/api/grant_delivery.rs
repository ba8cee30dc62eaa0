//! Confirms a grant when its answer is sent, and undoes it if the answer cannot be sent.
//!
//! A grant is not delivered yet when its handler returns, because the call may end before the
//! transport reads the answer. The handler therefore puts the grant into the response's
//! extensions. The response's body takes it from there, and its first data frame
//! carries it to the transport, which confirms it when it writes the first byte. If the body, or a
//! frame that waits for its client's flow-control window, is dropped before, the grant is dropped
//! too, which undoes it.
//!
//! A stream may add grants while it is sent. Each is carried by the data frame that contains its message: the transport's
//! encoder puts all messages that it has taken from the stream into the next frame. A frame may be written in parts, so
//! each grant is confirmed with the first byte of its own part of its message.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;

/// A value whose `Drop` undoes it unless it was delivered before.
pub(super) trait Deliver: Debug + Send {
    /// Keeps it, because its answer was sent.
    fn deliver(self: Box<Self>);
}

/// A grant, with the number of bytes before its part of an answer.
type Placed = (usize, Box<dyn Deliver>);

/// The length of what precedes each message of a frame.
const PREFIX: usize = 5;

/// Grants on their way to the response's body. Extensions require `Clone`; all clones share the grants.
#[derive(Debug, Clone, Default)]
pub(super) struct Undelivered(Arc<Mutex<Messages>>);

/// The messages that the transport has taken for its next frame.
#[derive(Debug, Default)]
struct Messages {
    /// Their length in bytes, with their prefixes.
    length: usize,
    /// The grants in them, in their order.
    granted: Vec<Placed>,
}

impl Undelivered {
    /// The grants of an answer with one message, which are not delivered yet.
    pub(super) fn new(granted: impl IntoIterator<Item = impl Deliver + 'static>) -> Self {
        let granted = granted.into_iter().map(|granted| (0, Box::new(granted) as _));
        Self(Arc::new(Mutex::new(Messages {
            length: 0,
            granted: granted.collect(),
        })))
    }

    /// Adds the message that a stream passes to the transport now: its length in bytes, and its grants in their order, each
    /// with the number of bytes before its part of the message.
    pub(super) fn add(&self, length: usize, granted: impl IntoIterator<Item = Placed>) {
        let mut messages = self.0.lock();
        let start = messages.length + PREFIX;
        messages.length = start + length;
        let granted = granted.into_iter().map(|(before, granted)| (start + before, granted));
        messages.granted.extend(granted);
    }

    /// Takes the grants of a frame of this length.
    fn take(&self, length: usize) -> Vec<Placed> {
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

/// Bytes for the transport, with the grants that they contain.
#[derive(Debug)]
pub(super) struct GrantBytes {
    bytes: Bytes,
    /// How many bytes were written.
    written: usize,
    /// In their order.
    granted: VecDeque<Placed>,
}

impl GrantBytes {
    /// The bytes of a data frame, with the grants of its answer that are in it.
    pub(super) fn new(bytes: Bytes, answer: Option<&Undelivered>) -> Self {
        let granted = answer.map(|answer| answer.take(bytes.len()));
        Self {
            bytes,
            written: 0,
            granted: granted.unwrap_or_default().into(),
        }
    }
}

impl Buf for GrantBytes {
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
