//! Unsent answers: counts their bytes, and detects clients that do not read.
//!
//! A client that opens no HTTP/2 window receives no answer, and each answer stays in the server's memory for as long as
//! the connection is open. Therefore the bytes are limited per connection, identity, peer address and server, and
//! [`super::Capacity::watch`] closes a connection that makes no progress for too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use bytes::Buf;
use tokio_util::sync::CancellationToken;

use super::{Capacity, Usage, lock, overloaded};
use crate::error::Error;

/// The memory in bytes that an unsent answer takes in addition to its own: the state of its call.
const OVERHEAD: usize = 512;
/// The size in bytes up to which an answer is always accepted if its connection has no other unsent answer.
const ALWAYS_ACCEPTED: usize = 4 << 10;
/// After how many seconds without progress a stream or a connection is ended. [`super::Capacity::watch`] notices it
/// up to one second later.
const STALLED: u32 = 12;

/// The unsent answers of a connection, or of one stream on it.
#[derive(Debug)]
pub(in crate::api) struct Answers {
    capacity: Arc<Capacity>,
    peer: Arc<Usage>,
    unsent: AtomicUsize,
    /// The part of `unsent` that belongs to streams, which are ended separately.
    of_streams: AtomicUsize,
    /// When the client last made progress, or when the first unsent answer was added.
    progressed: AtomicU32,
    cut: CancellationToken,
    /// The answers of the whole connection, if these are the answers of a stream.
    connection: Option<Arc<Answers>>,
}

impl Answers {
    /// The answers of a connection, which `cut` closes.
    pub(super) fn of_connection(capacity: &Arc<Capacity>, peer: &Arc<Usage>, cut: CancellationToken) -> Arc<Self> {
        Self::watched(capacity, peer, cut, None)
    }

    /// The answers of a stream on this connection, which `cut` ends.
    pub(super) fn of_stream(self: &Arc<Self>, cut: CancellationToken) -> Arc<Self> {
        Self::watched(&self.capacity, &self.peer, cut, Some(Arc::clone(self)))
    }

    fn watched(
        capacity: &Arc<Capacity>,
        peer: &Arc<Usage>,
        cut: CancellationToken,
        connection: Option<Arc<Self>>,
    ) -> Arc<Self> {
        let answers = Arc::new(Self {
            capacity: Arc::clone(capacity),
            peer: Arc::clone(peer),
            unsent: AtomicUsize::new(0),
            of_streams: AtomicUsize::new(0),
            progressed: AtomicU32::new(0),
            cut,
            connection,
        });
        lock(&capacity.answers).push(Arc::downgrade(&answers));
        answers
    }

    /// The unsent bytes of a whole connection; `None` for a stream, whose bytes its connection counts too.
    pub(super) fn of_whole_connection(&self) -> Option<usize> {
        self.connection.is_none().then(|| self.unsent.load(Ordering::Relaxed))
    }

    /// Closes the connection.
    pub(super) fn cut_connection(&self) {
        self.connection.as_ref().map_or(&self.cut, |whole| &whole.cut).cancel();
    }

    /// Ends a stream or a connection that makes no progress, and returns whether it did so. A stream that stays
    /// stalled after its end closes its connection, because only this drops the data in the transport.
    pub(super) fn end_if_stalled(&self, now: u32) -> bool {
        let since = now.saturating_sub(self.progressed.load(Ordering::Relaxed));
        if self.unsent.load(Ordering::Relaxed) <= self.of_streams.load(Ordering::Relaxed) || since <= STALLED {
            return false;
        }
        if self.cut.is_cancelled() && self.connection.is_some() {
            self.cut_connection();
        }
        let is_new = !self.cut.is_cancelled();
        self.cut.cancel();
        is_new
    }

    fn add(&self, bytes: usize) -> usize {
        // A client without unsent answers was not stalled.
        if self.unsent.load(Ordering::Relaxed) == 0 {
            self.note_progress();
        }
        self.unsent.fetch_add(bytes, Ordering::Relaxed)
    }

    fn subtract(&self, bytes: usize, is_sent: bool) {
        if is_sent {
            self.note_progress();
        }
        self.unsent.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn note_progress(&self) {
        self.progressed
            .store(self.capacity.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The connection or stream, and the identity, for which the answers of a call count.
#[derive(Debug, Clone)]
pub(in crate::api) struct ChargeTo {
    pub answers: Arc<Answers>,
    /// The usage of an authenticated caller.
    pub identity: Option<Arc<Usage>>,
}

impl ChargeTo {
    /// Counts the bytes of an answer until they are sent or dropped.
    ///
    /// # Errors
    /// OVERLOADED if a limit of unsent bytes has been reached.
    fn charge(&self, bytes: usize) -> Result<Charge, Error> {
        let charge = Charge {
            to: self.clone(),
            left: bytes + OVERHEAD,
            is_sent: false,
        };
        let exceeded = charge.add();
        let alone = charge.connection().unsent.load(Ordering::Relaxed) <= charge.left;
        match exceeded {
            Some(what) if !(alone && bytes <= ALWAYS_ACCEPTED) => Err(overloaded(what)),
            _ => Ok(charge),
        }
    }
}

/// Counted bytes. The remaining ones are subtracted when it is dropped.
#[derive(Debug)]
struct Charge {
    to: ChargeTo,
    left: usize,
    /// Whether all bytes were sent. A refused or dropped answer does not count as progress.
    is_sent: bool,
}

impl Charge {
    fn connection(&self) -> &Answers {
        let answers = &self.to.answers;
        answers.connection.as_ref().unwrap_or(answers)
    }

    /// Adds the bytes to all counters. Returns the reason for a refusal if a limit had been reached before.
    fn add(&self) -> Option<&'static str> {
        let (bytes, answers) = (self.left, &self.to.answers);
        let capacity = &answers.capacity;
        if answers.connection.is_some() {
            answers.add(bytes);
            // Added before the bytes count as unsent, so that the difference is never too large.
            self.connection().of_streams.fetch_add(bytes, Ordering::Relaxed);
        }
        let of_connection = self.connection().add(bytes);
        let of_peer = answers.peer.unsent.fetch_add(bytes, Ordering::Relaxed);
        let identity = self.to.identity.as_ref();
        let of_identity = identity.map_or(0, |usage| usage.unsent.fetch_add(bytes, Ordering::Relaxed));
        let of_server = capacity.unsent.fetch_add(bytes, Ordering::Relaxed);
        let limit = capacity.unsent_limit;
        if of_connection >= capacity.connection_unsent_limit {
            Some("too many unsent answers on this connection")
        } else if of_identity >= capacity.identity_share(limit) {
            Some("too many unsent answers to this identity")
        } else if of_peer >= capacity.peer_share(limit) {
            Some("too many unsent answers to this address")
        } else if of_server >= limit {
            capacity.too_many.notify_one();
            Some("too many unsent answers")
        } else {
            None
        }
    }

    fn subtract(&mut self, bytes: usize, is_sent: bool) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        let answers = &self.to.answers;
        if answers.connection.is_some() {
            answers.subtract(bytes, is_sent);
        }
        self.connection().subtract(bytes, is_sent);
        if answers.connection.is_some() {
            self.connection().of_streams.fetch_sub(bytes, Ordering::Relaxed);
        }
        answers.peer.unsent.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(usage) = &self.to.identity {
            usage.unsent.fetch_sub(bytes, Ordering::Relaxed);
        }
        answers.capacity.unsent.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.subtract(self.left, self.is_sent);
    }
}

/// The bytes of an answer, counted as unsent until they are written to the socket.
#[derive(Debug)]
pub(in crate::api) struct Charged<D> {
    data: D,
    charge: Option<Charge>,
}

impl<D: Buf> Charged<D> {
    /// Counts the bytes, if there is anything to charge.
    ///
    /// # Errors
    /// OVERLOADED if a limit of unsent bytes has been reached.
    pub(in crate::api) fn new(data: D, to: Option<&ChargeTo>) -> Result<Self, Error> {
        let charge = to.map(|to| to.charge(data.remaining())).transpose()?;
        Ok(Self { data, charge })
    }
}

impl<D: Buf> Buf for Charged<D> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    /// The transport calls this for the bytes that it has written.
    fn advance(&mut self, bytes: usize) {
        self.data.advance(bytes);
        let Some(charge) = &mut self.charge else { return };
        // An answer that was sent completely is dropped next, which subtracts its bytes.
        charge.is_sent = !self.data.has_remaining();
        if !charge.is_sent {
            charge.subtract(bytes, true);
        }
    }
}
