//! Received bytes: messages of which a part has arrived.
//!
//! A client that leaves out the last byte of its messages would fill the server's memory, within the limits of calls. What
//! has arrived therefore counts against the same limits as unsent answers, for the connection, its peer address and the
//! server. At the limit of the server the connection with the most bytes is closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::unsent::Exceeded;
use super::{UnsentAnswers, overloaded};
use crate::error::Error;

/// What a message may have without being counted. The memory that the chart computes for a call has room for it, so
/// clients with small messages are served while others use up a limit.
const ALWAYS_ACCEPTED: usize = 4 << 10;
/// How much memory a received byte may take: a buffer grows by doubling.
const GROWTH: usize = 2;

/// The received bytes of one call, until its message is complete and this is dropped.
#[derive(Debug)]
pub(in crate::api) struct ReceivedBytes {
    /// The answers of the connection, which counts both.
    connection: Option<Arc<UnsentAnswers>>,
    counted: usize,
}

impl ReceivedBytes {
    /// Nothing yet, on this connection.
    pub(in crate::api) fn new(connection: Option<Arc<UnsentAnswers>>) -> Self {
        Self { connection, counted: 0 }
    }

    /// Counts at least this many received bytes.
    ///
    /// # Errors
    /// OVERLOADED if a limit had been reached before.
    pub(in crate::api) fn raise(&mut self, received: usize) -> Result<(), Error> {
        let Some(connection) = self.connection.as_ref().filter(|_| received > ALWAYS_ACCEPTED) else {
            return Ok(());
        };
        let more = (GROWTH * received).saturating_sub(self.counted);
        if more == 0 {
            return Ok(());
        }
        self.counted += more;
        match connection.receive(more) {
            None => Ok(()),
            Some(whose) => Err(overloaded(&format!("too many bytes of incomplete requests {whose}"))),
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

impl Drop for ReceivedBytes {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.as_ref().filter(|_| self.counted > 0) {
            connection.received(self.counted);
        }
    }
}
