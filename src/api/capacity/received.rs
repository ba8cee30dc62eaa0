//! Received bytes: messages of which a part has arrived.
//!
//! A client that leaves out the last byte of its messages would fill the server's memory, within the limits of calls. What
//! has arrived therefore counts against the same limits as unsent answers, for the connection, its peer address, the
//! identity of the caller and the server. At the limit of the server the connection with the most bytes is closed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::unsent::Exceeded;
use super::{UnsentAnswers, Usage, overloaded};
use crate::error::Error;

/// What a message may have without being counted. The memory that the chart computes for a call has room for it, so
/// clients with small messages are served while others use up a limit.
const ALWAYS_ACCEPTED: usize = 4 << 10;
/// How much memory a received byte may take: a buffer grows by doubling.
const GROWTH: usize = 2;

/// The received bytes of one call, until its message is complete and this is dropped.
#[derive(Debug)]
pub(in crate::api) struct ReceivedBytes(Option<Arc<Received>>);

/// See [`ReceivedBytes`].
#[derive(Debug)]
struct Received {
    /// The answers of the connection, which counts both.
    connection: Arc<UnsentAnswers>,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    bytes: usize,
    /// Whose they are, once that is known.
    identity: Option<Arc<Usage>>,
}

/// Counts the received bytes of a call for the identity of its caller, which is known later than the first of them.
#[derive(Debug, Clone, Default)]
pub(in crate::api) struct ReceivedBy(Weak<Received>);

impl ReceivedBytes {
    /// Nothing yet, on this connection.
    pub(in crate::api) fn new(connection: Option<Arc<UnsentAnswers>>) -> Self {
        Self(connection.map(|connection| {
            Arc::new(Received {
                connection,
                counted: Mutex::default(),
            })
        }))
    }

    /// To whom they belong.
    pub(in crate::api) fn by(&self) -> ReceivedBy {
        ReceivedBy(self.0.as_ref().map(Arc::downgrade).unwrap_or_default())
    }

    /// Counts at least this many received bytes.
    ///
    /// # Errors
    /// OVERLOADED if a limit had been reached before.
    pub(in crate::api) fn raise(&mut self, received: usize) -> Result<(), Error> {
        let Some(call) = self.0.as_ref().filter(|_| received > ALWAYS_ACCEPTED) else {
            return Ok(());
        };
        let mut counted = call.counted.lock();
        let more = (GROWTH * received).saturating_sub(counted.bytes);
        if more == 0 {
            return Ok(());
        }
        counted.bytes += more;
        let connection = &call.connection;
        let exceeded = connection.receive(more);
        let is_identity_over = counted.identity.as_ref().is_some_and(|identity| {
            let of_identity = identity.unsent.fetch_add(more, Ordering::Relaxed);
            let capacity = &connection.capacity;
            of_identity >= capacity.identity_share(capacity.unsent_limit)
        });
        match exceeded.or(is_identity_over.then_some("of this identity")) {
            None => Ok(()),
            Some(whose) => Err(overloaded(&format!("too many bytes of incomplete requests {whose}"))),
        }
    }
}

impl ReceivedBy {
    /// Counts what has arrived, and what will, for this identity too.
    pub(in crate::api) fn count_for(&self, identity: &Arc<Usage>) {
        let Some(call) = self.0.upgrade() else { return };
        let mut counted = call.counted.lock();
        if counted.identity.is_none() {
            identity.unsent.fetch_add(counted.bytes, Ordering::Relaxed);
            counted.identity = Some(Arc::clone(identity));
        }
    }
}

impl UnsentAnswers {
    /// Counts more bytes of messages that have not arrived completely. Returns whose limit had been reached before.
    fn receive(&self, bytes: usize) -> Option<&'static str> {
        let of_connection = self.received.fetch_add(bytes, Ordering::Relaxed) + self.unsent();
        Some(match self.add_to_others(of_connection, bytes)? {
            Exceeded::Connection => "on this connection",
            Exceeded::Peer => "of this address",
            Exceeded::Server => "are open",
        })
    }

    /// Subtracts bytes of messages that have arrived, or will not.
    fn received(&self, bytes: usize) {
        self.received.fetch_sub(bytes, Ordering::Relaxed);
        self.peer.unsent.fetch_sub(bytes, Ordering::Relaxed);
        self.capacity.unsent.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let counted = self.counted.get_mut();
        // As of most calls.
        if counted.bytes == 0 {
            return;
        }
        self.connection.received(counted.bytes);
        if let Some(identity) = &counted.identity {
            identity.unsent.fetch_sub(counted.bytes, Ordering::Relaxed);
        }
    }
}
