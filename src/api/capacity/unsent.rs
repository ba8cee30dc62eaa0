//! Unsent answers: counts their bytes, and detects clients that do not read.
//!
//! A client that opens no HTTP/2 window receives no answer, and each answer stays in the server's memory for as long as
//! the connection is open. Therefore the bytes are limited per connection, identity, peer address and server, and
//! [`super::Capacity::watch`] closes a connection that makes no progress for too long.
//!
//! The transport does not say when it has written headers or trailers, and no HTTP/2 window delays them. The state of a
//! call therefore counts until everything that the connection had to write has been written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use bytes::Buf;
use tokio_util::sync::CancellationToken;

use super::{Capacity, Usage, overloaded};
use crate::error::Error;

/// The memory in bytes that an unsent answer takes in addition to its own: the state of its call.
const OVERHEAD: usize = 1 << 10;
/// A connection, and each of its streams, may always have this many bytes unsent, also if the server is at its limit.
/// Clients that read everything are therefore served while others use up a limit.
const ALWAYS_ACCEPTED: usize = 4 << 10;
/// One stream may queue the connection's limit divided by this.
const PART_OF_CONNECTION: usize = 4;
/// After how many seconds without progress a stream or a connection is ended. [`super::Capacity::watch`] notices it
/// up to one second later.
const STALLED: u32 = 12;

/// A limit of unsent bytes that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exceeded {
    Connection,
    Peer,
    Server,
}

impl Exceeded {
    fn problem(self) -> &'static str {
        match self {
            Self::Connection => "too many unsent answers on this connection",
            Self::Peer => "too many unsent answers to this address",
            Self::Server => "too many unsent answers",
        }
    }
}

/// The unsent answers of a connection, or of one stream on it.
#[derive(Debug)]
pub(in crate::api) struct UnsentAnswers {
    pub(super) capacity: Arc<Capacity>,
    pub(super) peer: Arc<Usage>,
    unsent: AtomicUsize,
    /// The part of `unsent` that belongs to streams, which are ended separately.
    of_streams: AtomicUsize,
    /// The bytes of messages that have not arrived completely, on a connection.
    pub(super) received: AtomicUsize,
    /// When the client last made progress, or when the first unsent answer was added.
    progressed: AtomicU32,
    pub(super) cut: CancellationToken,
    /// The part of `unsent` for calls of which only headers or trailers may be unsent.
    headers: AtomicUsize,
    /// Whether the connection has data that it has not written yet.
    is_writing: AtomicBool,
    /// Whether its socket did not accept data.
    is_blocked: AtomicBool,
    /// The answers of the whole connection, if these are the answers of a stream.
    pub(super) connection: Option<Arc<UnsentAnswers>>,
}

impl UnsentAnswers {
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
            received: AtomicUsize::new(0),
            progressed: AtomicU32::new(0),
            cut,
            headers: AtomicUsize::new(0),
            is_writing: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            connection,
        });
        capacity.answers.lock().push(Arc::downgrade(&answers));
        answers
    }

    /// The unsent and received bytes of a whole connection; `None` for a stream, whose bytes its connection counts too.
    pub(in crate::api) fn of_whole_connection(&self) -> Option<usize> {
        let all = || self.unsent() + self.received.load(Ordering::Relaxed);
        self.connection.is_none().then(all)
    }

    /// The unsent bytes.
    pub(in crate::api) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
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

    /// Notes that the connection has data to write, and whether its socket refused to accept it.
    pub(in crate::api) fn note_writing(&self, is_blocked: bool) {
        self.is_writing.store(true, Ordering::Relaxed);
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Notes that the connection has written some of its data.
    pub(in crate::api) fn note_written(&self) {
        if self.headers.load(Ordering::Relaxed) > 0 {
            self.note_progress();
        }
    }

    /// Notes that the connection has written all its data.
    pub(in crate::api) fn note_flushed(&self) {
        self.is_writing.store(false, Ordering::Relaxed);
        self.is_blocked.store(false, Ordering::Relaxed);
    }

    /// Counts a call on this connection of which only headers or trailers are unsent, such as a refusal. They cannot be
    /// replaced by anything smaller, so the connection is closed if its client does not read and it has reached its
    /// limit, or uses at least the average of its peer's connections and the peer has reached its limit. At the limit of
    /// the server, [`super::Capacity::watch`] closes the connection with the most unsent bytes.
    pub(in crate::api) fn count_headers(&self) {
        let exceeded = self.add_to_all(OVERHEAD);
        self.headers.fetch_add(OVERHEAD, Ordering::Relaxed);
        let unsent = self.unsent.load(Ordering::Relaxed);
        let is_too_much = match exceeded {
            Some(Exceeded::Connection) => true,
            Some(Exceeded::Peer) => unsent >= self.peer.average_unsent(),
            Some(Exceeded::Server) | None => false,
        };
        if is_too_much && unsent > ALWAYS_ACCEPTED && self.is_blocked.load(Ordering::Relaxed) {
            self.cut.cancel();
        }
    }

    /// Called after each step of this connection: if it has written everything, the headers and trailers that were
    /// passed to the transport before the step have been sent. One that another thread passes during the step may be
    /// counted as sent too early.
    pub(super) fn note_step(&self) {
        if self.is_writing.load(Ordering::Relaxed) || self.headers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let bytes = self.headers.swap(0, Ordering::Relaxed);
        self.note_progress();
        self.subtract_from_all(bytes);
    }

    /// Adds to the counters of this connection, its peer and the server. Returns which of their limits had been reached
    /// before.
    fn add_to_all(&self, bytes: usize) -> Option<Exceeded> {
        let of_connection = self.add(bytes) + self.received.load(Ordering::Relaxed);
        self.add_to_others(of_connection, bytes)
    }

    /// Adds to the counters of the peer and the server, after the one of the connection.
    pub(super) fn add_to_others(&self, of_connection: usize, bytes: usize) -> Option<Exceeded> {
        let capacity = &self.capacity;
        let of_peer = self.peer.unsent.fetch_add(bytes, Ordering::Relaxed);
        let of_server = capacity.unsent.fetch_add(bytes, Ordering::Relaxed);
        // Also where the peer is at its limit: all of a proxy's clients are one.
        if of_server >= capacity.unsent_limit {
            capacity.too_many.notify_one();
        }
        if of_connection >= capacity.connection_unsent_limit {
            Some(Exceeded::Connection)
        } else if of_peer >= capacity.peer_share(capacity.unsent_limit) {
            Some(Exceeded::Peer)
        } else {
            (of_server >= capacity.unsent_limit).then_some(Exceeded::Server)
        }
    }

    fn subtract_from_all(&self, bytes: usize) {
        self.unsent.fetch_sub(bytes, Ordering::Relaxed);
        self.peer.unsent.fetch_sub(bytes, Ordering::Relaxed);
        self.capacity.unsent.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) -> usize {
        // A client without unsent answers was not stalled.
        if self.unsent.load(Ordering::Relaxed) == 0 {
            self.note_progress();
        }
        self.unsent.fetch_add(bytes, Ordering::Relaxed)
    }

    /// Whether the unsent answers, without those of the streams on this connection, are always accepted.
    fn are_few(&self) -> bool {
        let [unsent, of_streams, headers] =
            [&self.unsent, &self.of_streams, &self.headers].map(|bytes| bytes.load(Ordering::Relaxed));
        unsent.saturating_sub(of_streams) <= ALWAYS_ACCEPTED + OVERHEAD + headers
    }

    fn note_progress(&self) {
        self.progressed
            .store(self.capacity.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A connection that ends drops what it had to write.
impl Drop for UnsentAnswers {
    fn drop(&mut self) {
        let bytes = *self.headers.get_mut();
        self.subtract_from_all(bytes);
    }
}

/// The connection or stream, and the identity, for which the answers of a call count.
#[derive(Debug, Clone)]
pub(in crate::api) struct ByteCounters {
    pub answers: Arc<UnsentAnswers>,
    /// The usage of an authenticated caller.
    pub identity: Option<Arc<Usage>>,
}

impl ByteCounters {
    fn connection(&self) -> &UnsentAnswers {
        self.answers.connection.as_ref().unwrap_or(&self.answers)
    }

    /// Adds bytes to all counters. Returns the reason for a refusal if a limit had been reached before.
    fn add(&self, bytes: usize) -> Option<&'static str> {
        let answers = &self.answers;
        if answers.connection.is_some() {
            answers.add(bytes);
            // Added before the bytes count as unsent, so that the difference is never too large.
            self.connection().of_streams.fetch_add(bytes, Ordering::Relaxed);
        }
        let exceeded = self.connection().add_to_all(bytes);
        let identity = self.identity.as_ref();
        let of_identity = identity.map_or(0, |usage| usage.unsent.fetch_add(bytes, Ordering::Relaxed));
        let is_identity_over = of_identity >= answers.capacity.identity_share(answers.capacity.unsent_limit);
        exceeded
            .map(Exceeded::problem)
            .or(is_identity_over.then_some("too many unsent answers to this identity"))
    }

    fn subtract(&self, bytes: usize) {
        let (answers, connection) = (&self.answers, self.connection());
        if let Some(usage) = &self.identity {
            usage.unsent.fetch_sub(bytes, Ordering::Relaxed);
        }
        connection.subtract_from_all(bytes);
        if answers.connection.is_some() {
            answers.unsent.fetch_sub(bytes, Ordering::Relaxed);
            connection.of_streams.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

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
        let exceeded = self.add(charge.left);
        match exceeded {
            Some(what) if !self.answers.are_few() => {
                // The status that replaces the answer is sent in trailers.
                if self.answers.connection.is_none() {
                    self.answers.count_headers();
                }
                Err(overloaded(what))
            }
            _ => Ok(charge),
        }
    }
}

/// Counted bytes. The remaining ones are subtracted when it is dropped.
#[derive(Debug)]
struct Charge {
    to: ByteCounters,
    left: usize,
    /// Whether all bytes were sent. A refused or dropped answer does not count as progress.
    is_sent: bool,
}

impl Charge {
    fn subtract(&mut self, bytes: usize) {
        self.left -= bytes;
        self.to.subtract(bytes);
    }

    fn note_progress(&self) {
        self.to.answers.note_progress();
        self.to.connection().note_progress();
    }

    /// Leaves the state of a call counted for its connection until its trailers are written, too.
    fn leave_trailers(&mut self) {
        if self.to.answers.connection.is_some() {
            return;
        }
        self.left -= OVERHEAD;
        self.to.connection().headers.fetch_add(OVERHEAD, Ordering::Relaxed);
        if let Some(usage) = &self.to.identity {
            usage.unsent.fetch_sub(OVERHEAD, Ordering::Relaxed);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.is_sent {
            self.note_progress();
            self.leave_trailers();
        }
        self.subtract(self.left);
    }
}

/// The bytes of events that wait until their stream has a window. They count as unsent, so that a stream whose client
/// opens no window is ended like one whose client does not read.
#[derive(Debug)]
pub(in crate::api) struct QueuedBytes {
    to: Option<ByteCounters>,
    bytes: usize,
}

impl QueuedBytes {
    /// No bytes yet, of a stream that has something to charge.
    pub(in crate::api) fn new(to: Option<ByteCounters>) -> Self {
        Self { to, bytes: 0 }
    }

    /// How many there are.
    pub(in crate::api) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most that one stream may queue: `most`, but no more than a part of what its connection may have.
    pub(in crate::api) fn limit(&self, most: usize) -> usize {
        let of_connection = self.to.as_ref().map(|to| to.answers.capacity.connection_unsent_limit);
        of_connection.map_or(most, |limit| most.min(limit / PART_OF_CONNECTION))
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// OVERLOADED if a limit of unsent bytes has been reached and more than a few bytes are queued here. Nothing is added
    /// then.
    pub(in crate::api) fn add(&mut self, bytes: usize) -> Result<(), Error> {
        self.bytes += bytes;
        match self.to.as_ref().and_then(|to| to.add(bytes)) {
            Some(what) if self.bytes > ALWAYS_ACCEPTED => {
                self.subtract(bytes);
                Err(overloaded(what))
            }
            _ => Ok(()),
        }
    }

    /// Subtracts bytes that are passed to the transport.
    pub(in crate::api) fn subtract(&mut self, bytes: usize) {
        self.bytes -= bytes;
        if let Some(to) = &self.to {
            to.subtract(bytes);
        }
    }
}

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.subtract(self.bytes);
    }
}

/// The bytes of an answer, counted as unsent until they are written to the socket.
#[derive(Debug)]
pub(in crate::api) struct CountedData<D> {
    data: D,
    charge: Option<Charge>,
}

impl<D: Buf> CountedData<D> {
    /// Counts the bytes, if there is anything to charge.
    ///
    /// # Errors
    /// OVERLOADED if a limit of unsent bytes has been reached.
    pub(in crate::api) fn new(data: D, to: Option<&ByteCounters>) -> Result<Self, Error> {
        let charge = to.map(|to| to.charge(data.remaining())).transpose()?;
        Ok(Self { data, charge })
    }
}

impl<D: Buf> Buf for CountedData<D> {
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
            charge.note_progress();
            charge.subtract(bytes.min(charge.left));
        }
    }
}
