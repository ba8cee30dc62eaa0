//! The open KeepAlive and Session streams of this server, which ListSessions shows.
//!
//! A stream exists in one process and no store knows of it. A list over all servers would be a write to a store for
//! each stream.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;
use tonic::Code;

use super::authenticate::Caller;
use super::capacity::UnsentAnswers;
use super::peer::Peer;
use super::proto::SessionKind;
use super::stream_leases::StreamLeases;
use crate::backend::clock;
use crate::locks::SessionStream;
use crate::metrics::clients::OpenClient;
use crate::name::{Identity, InvalidField};
use crate::quota::QuotaUse;

/// The open streams, in the order in which they were opened.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenStreams(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// The number of the stream that was opened last.
    last: u64,
    streams: BTreeMap<u64, Arc<StreamState>>,
}

/// The most bytes of a client's name, and of its version.
const CLIENT_BYTES: usize = 64;

/// The name and the version of a client, as it says them itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClientName {
    pub name: String,
    pub version: String,
}

impl ClientName {
    /// Both, if they can be shown.
    ///
    /// # Errors
    /// [`InvalidField`] for one that is too long, or has other characters than printable ASCII.
    pub(super) fn new(name: &str, version: &str) -> Result<Self, InvalidField> {
        for (field, value) in [("client_name", name), ("client_version", version)] {
            let is_shown = |byte: u8| (b' '..=b'~').contains(&byte);
            if value.len() > CLIENT_BYTES || !value.bytes().all(is_shown) {
                let problem = format!("must be at most {CLIENT_BYTES} bytes of printable ASCII");
                return Err(InvalidField::new(field, problem));
            }
        }
        Ok(Self {
            name: name.into(),
            version: version.into(),
        })
    }
}

/// What is known about an open stream.
#[derive(Debug)]
pub(super) struct StreamState {
    pub number: u64,
    pub kind: SessionKind,
    pub identity: Identity,
    pub peer: Option<Peer>,
    pub since: SystemTime,
    pub leases: Arc<StreamLeases>,
    /// Which client it is of, once that has said so.
    client: OnceLock<(ClientName, Option<OpenClient>)>,
    /// What is kept when it breaks off; absent unless its session can be resumed.
    session: OnceLock<Arc<SessionStream>>,
    counts: [AtomicUsize; 2],
    answers: Option<Arc<UnsentAnswers>>,
}

impl StreamState {
    /// Notes which client it is of, and that it is counted. Later names are passed over.
    pub(super) fn client_opened(&self, client: ClientName, counted: Option<OpenClient>) {
        let _ = self.client.set((client, counted));
    }

    /// Notes that its session can be resumed.
    pub(super) fn session_opened(&self, session: Arc<SessionStream>) {
        let _ = self.session.set(session);
    }

    /// The stream of its session, if that can be resumed.
    pub(super) fn session(&self) -> Option<&Arc<SessionStream>> {
        self.session.get()
    }

    /// The stream ends with this status, or without one. What its calls have is kept unless the client may not go on, has sent
    /// what cannot be read, or does not read.
    pub(super) fn ends(&self, status: Option<Code>) {
        let Some(session) = self.session.get() else { return };
        let is_over = |code| {
            matches!(
                code,
                Code::PermissionDenied | Code::InvalidArgument | Code::ResourceExhausted
            )
        };
        let is_cut = self.answers.as_ref().is_some_and(|answers| answers.is_cut());
        match is_cut || status.is_some_and(is_over) {
            true => session.ended(),
            false => session.broke_off(),
        }
    }

    /// Which client it is of, if that has said so.
    pub(super) fn client(&self) -> Option<&ClientName> {
        self.client.get().map(|(client, _)| client)
    }

    /// Notes how many commands of the stream have no result, and how many of these may wait.
    pub(super) fn count(&self, commands: usize, waits: usize) {
        for (count, now) in self.counts.iter().zip([commands, waits]) {
            count.store(now, Ordering::Relaxed);
        }
    }

    /// What [`Self::count`] noted last: commands and waits.
    pub(super) fn counts(&self) -> [usize; 2] {
        self.counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// The bytes for the client that are not sent yet.
    pub(super) fn unsent(&self) -> usize {
        self.answers.as_ref().map_or(0, |answers| answers.unsent())
    }
}

/// Shows a stream, and counts it in the quota of its identity, until it is dropped.
#[derive(Debug)]
pub(super) struct OpenStream {
    pub state: Arc<StreamState>,
    streams: OpenStreams,
    _quota: QuotaUse,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.0.lock().streams.remove(&self.state.number);
    }
}

impl OpenStreams {
    /// Adds a stream of this caller, with the answers that it has not sent.
    pub(super) fn open(
        &self,
        kind: SessionKind,
        caller: &Caller,
        answers: Option<&Arc<UnsentAnswers>>,
        quota: QuotaUse,
    ) -> OpenStream {
        let mut table = self.0.lock();
        table.last += 1;
        let state = Arc::new(StreamState {
            number: table.last,
            kind,
            identity: caller.identity.clone(),
            peer: caller.peer(),
            since: clock::wall(),
            leases: Arc::default(),
            client: OnceLock::new(),
            session: OnceLock::new(),
            counts: Default::default(),
            answers: answers.cloned(),
        });
        table.streams.insert(state.number, Arc::clone(&state));
        OpenStream {
            state,
            streams: self.clone(),
            _quota: quota,
        }
    }

    /// The first `size` streams after the one with this number, of this identity or of all, and whether more follow.
    pub(super) fn page(&self, after: u64, size: usize, of: Option<&Identity>) -> (Vec<Arc<StreamState>>, bool) {
        let table = self.0.lock();
        let later = table.streams.range((Bound::Excluded(after), Bound::Unbounded));
        let mut shown = later.filter(|(_, state)| of.is_none_or(|identity| state.identity == *identity));
        let page = shown.by_ref().take(size).map(|(_, state)| Arc::clone(state));
        (page.collect(), shown.next().is_some())
    }
}
