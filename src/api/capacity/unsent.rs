//! Answers that were made and are not sent yet: how many bytes they take, and whether the client takes any.
//!
//! A client that opens no HTTP/2 window takes no answer, and keeps each in the server's memory for as long as its
//! connection lives. So the bytes are bounded for a connection, an identity, a peer address and the server, and
//! [`super::Capacity::watch`] closes a connection that takes none for too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use bytes::Buf;
use tokio_util::sync::CancellationToken;

use super::{Capacity, Usage, lock, overloaded};
use crate::error::Error;

/// What an unsent answer takes beside its own bytes: the state of its call.
const OVERHEAD: usize = 512;
/// The size up to which an answer is taken on a connection that has no other unsent one, whatever others use.
const ALWAYS_TAKEN: usize = 4 << 10;
/// For how many seconds nothing may be taken before a stream, or a connection, is ended. A second more passes
/// until the watch sees it.
const STALLED: u32 = 12;

/// The unsent answers of a connection, or of one stream on it.
#[derive(Debug)]
pub(in crate::api) struct Answers {
    capacity: Arc<Capacity>,
    peer: Arc<Usage>,
    unsent: AtomicUsize,
    /// How many of those are of streams, which end by themselves when nobody reads them.
    of_streams: AtomicUsize,
    /// When the client took something last, or had taken everything.
    moved: AtomicU32,
    cut: CancellationToken,
    /// For a stream: those of its connection.
    connection: Option<Arc<Answers>>,
}

impl Answers {
    /// Those of a connection, which `cut` ends.
    pub(super) fn of_connection(capacity: &Arc<Capacity>, peer: &Arc<Usage>, cut: CancellationToken) -> Arc<Self> {
        Self::watched(capacity, peer, cut, None)
    }

    /// Those of a stream on this connection, which `cut` ends.
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
            moved: AtomicU32::new(0),
            cut,
            connection,
        });
        lock(&capacity.answers).push(Arc::downgrade(&answers));
        answers
    }

    /// The unsent bytes of a whole connection; nothing for those of a stream, which its connection counts too.
    pub(super) fn of_whole_connection(&self) -> Option<usize> {
        self.connection.is_none().then(|| self.unsent.load(Ordering::Relaxed))
    }

    /// Ends the connection.
    pub(super) fn cut_connection(&self) {
        self.connection.as_ref().map_or(&self.cut, |whole| &whole.cut).cancel();
    }

    /// Ends what takes nothing any more, and answers whether there was anything to end. What of a stream is with
    /// the transport already ends with its connection alone.
    pub(super) fn end_if_stalled(&self, now: u32) -> bool {
        let since = now.saturating_sub(self.moved.load(Ordering::Relaxed));
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
        // Before it is counted: whoever had nothing to take was not late.
        if self.unsent.load(Ordering::Relaxed) == 0 {
            self.moved();
        }
        self.unsent.fetch_add(bytes, Ordering::Relaxed)
    }

    fn take(&self, bytes: usize, is_sent: bool) {
        if is_sent {
            self.moved();
        }
        self.unsent.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn moved(&self) {
        self.moved
            .store(self.capacity.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Whose answers a call's are.
#[derive(Debug, Clone)]
pub(in crate::api) struct ChargeTo {
    pub answers: Arc<Answers>,
    /// Where the caller has proven who it is.
    pub identity: Option<Arc<Usage>>,
}

impl ChargeTo {
    /// Counts the bytes of an answer until they are sent or dropped.
    ///
    /// # Errors
    /// OVERLOADED when there are too many unsent ones already.
    fn charge(&self, bytes: usize) -> Result<Charge, Error> {
        let charge = Charge {
            to: self.clone(),
            left: bytes + OVERHEAD,
            is_sent: false,
        };
        let full = charge.begin();
        let alone = charge.connection().unsent.load(Ordering::Relaxed) <= charge.left;
        match full {
            Some(what) if !(alone && bytes <= ALWAYS_TAKEN) => Err(overloaded(what)),
            _ => Ok(charge),
        }
    }
}

/// Bytes that are counted; what is left of them is not when it is dropped.
#[derive(Debug)]
struct Charge {
    to: ChargeTo,
    left: usize,
    /// Whether all of them were sent. What is refused or given up is no sign of a client that reads.
    is_sent: bool,
}

impl Charge {
    fn connection(&self) -> &Answers {
        let answers = &self.to.answers;
        answers.connection.as_ref().unwrap_or(answers)
    }

    /// Counts them everywhere, and says whose limit was reached before.
    fn begin(&self) -> Option<&'static str> {
        let (bytes, answers) = (self.left, &self.to.answers);
        let capacity = &answers.capacity;
        if answers.connection.is_some() {
            answers.add(bytes);
            // Before they count as unsent, so that there are never too few of them.
            self.connection().of_streams.fetch_add(bytes, Ordering::Relaxed);
        }
        let of_connection = self.connection().add(bytes);
        let of_peer = answers.peer.unsent.fetch_add(bytes, Ordering::Relaxed);
        let identity = self.to.identity.as_ref();
        let of_identity = identity.map_or(0, |usage| usage.unsent.fetch_add(bytes, Ordering::Relaxed));
        let of_server = capacity.unsent.fetch_add(bytes, Ordering::Relaxed);
        let limit = capacity.unsent_limit;
        if of_connection >= capacity.connection_unsent_limit {
            Some("too many answers on this connection are not taken")
        } else if of_identity >= capacity.identity_share(limit) {
            Some("too many answers to this identity are not taken")
        } else if of_peer >= capacity.peer_share(limit) {
            Some("too many answers to this address are not taken")
        } else if of_server >= limit {
            capacity.too_many.notify_one();
            Some("too many answers are not taken")
        } else {
            None
        }
    }

    fn count_no_more(&mut self, bytes: usize, is_sent: bool) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        let answers = &self.to.answers;
        if answers.connection.is_some() {
            answers.take(bytes, is_sent);
        }
        self.connection().take(bytes, is_sent);
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
        self.count_no_more(self.left, self.is_sent);
    }
}

/// The bytes of an answer on their way to the socket.
#[derive(Debug)]
pub(in crate::api) struct Charged<D> {
    data: D,
    charge: Option<Charge>,
}

impl<D: Buf> Charged<D> {
    /// Counts them, where there is somebody to count them for.
    ///
    /// # Errors
    /// OVERLOADED when there are too many unsent ones already.
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

    /// The transport calls it for what it writes.
    fn advance(&mut self, bytes: usize) {
        self.data.advance(bytes);
        let Some(charge) = &mut self.charge else { return };
        // What is sent whole is dropped next, and counted then.
        charge.is_sent = !self.data.has_remaining();
        if !charge.is_sent {
            charge.count_no_more(bytes, true);
        }
    }
}
