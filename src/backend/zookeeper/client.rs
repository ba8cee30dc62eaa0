//! A client of ZooKeeper: one session, kept over all servers, with its requests in their order.
//!
//! This is an own client because fencing tokens need to know exactly which request was answered over which connection,
//! and a library that connects again by itself hides that. TLS is rustls with the provider that everything else uses.
//!
//! Requests of one session take effect in the order in which they are sent. A request that a broken connection left
//! without an answer may still take effect afterwards, until the next connection's first write
//! ([`super::fenced_connection`]) keeps it out.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot, watch};

use self::wire::{Acl, Code, Done, Op, Reader, Stat, Writer, opcode, read_multi, write_multi};
use super::settings::{Credentials, Settings};
use crate::backend::BackendError;

mod connection;
mod session;
mod stream;
pub mod wire;

/// Why a request to ZooKeeper failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An operation of a multi could not be applied; nothing was written.
    #[error("zookeeper: operation {index}: {}", code.meaning())]
    Refused {
        /// The index of the operation.
        index: usize,
        /// Why.
        code: Code,
    },
    /// A request was refused; nothing was written.
    #[error("zookeeper: {} ({})", code.meaning(), code.0)]
    Error {
        /// Why.
        code: Code,
    },
    /// No answer. Whether the request took effect is unknown.
    #[error("zookeeper: {0}")]
    Unavailable(String),
    /// The lock changed before each of several attempts. The last one had no effect.
    #[error("zookeeper: the lock changes too fast")]
    Contended,
    /// The call of a step had ended, so the step was not sent.
    #[error("zookeeper: the call has ended")]
    CallEnded,
    /// Nothing with an effect was sent.
    #[error("zookeeper: {0}")]
    NotSent(String),
    /// A step is larger than a request may be; it was not sent.
    #[error("zookeeper: a step of {0} bytes is larger than a request may be")]
    TooLarge(usize),
    /// A node's data, or an answer, cannot be read.
    #[error("zookeeper: {0}")]
    Damaged(String),
}

impl Failure {
    /// An answer that cannot be read.
    pub fn malformed() -> Self {
        Self::Damaged("an answer cannot be read".into())
    }

    /// A failure of a request, by its code.
    fn of(code: Code) -> Self {
        match code {
            Code::SESSION_EXPIRED | Code::CONNECTION_LOSS | Code::SESSION_MOVED => {
                Self::Unavailable(code.meaning().into())
            }
            code => Self::Error { code },
        }
    }

    /// Whether a node that the request names is absent.
    pub fn is_no_node(&self) -> bool {
        matches!(self, Self::Error { code } | Self::Refused { code, .. } if *code == Code::NO_NODE)
    }

    /// Whether a node that the request creates is there.
    pub fn is_node_exists(&self) -> bool {
        matches!(self, Self::Error { code } | Self::Refused { code, .. } if *code == Code::NODE_EXISTS)
    }
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        let reason = failure.to_string();
        match failure {
            Failure::NotSent(reason) => Self::NotSent { reason },
            Failure::CallEnded => Self::NotSent { reason },
            Failure::Damaged(_) | Failure::TooLarge(_) => Self::Broken { reason },
            Failure::Refused { .. } | Failure::Error { .. } | Failure::Unavailable(_) | Failure::Contended => {
                Self::Unavailable { reason }
            }
        }
    }
}

/// The state of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientState {
    /// Not connected, and why.
    Disconnected(String),
    /// Connected.
    Connected(Connected),
}

/// A connection of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    /// Counts the connections of this client.
    pub generation: u64,
    /// The session.
    pub session: i64,
    /// The server.
    pub server: String,
}

/// What a watch reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kind.
    pub kind: EventKind,
    /// The node.
    pub path: String,
}

/// The kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Created,
    Deleted,
    Changed,
    Children,
}

/// A request on its way to the connection.
#[derive(Debug)]
struct Request {
    code: i32,
    body: Vec<u8>,
    /// The connection over which it may be sent.
    generation: u64,
    answer: oneshot::Sender<Result<Vec<u8>, Failure>>,
}

/// A client with one session.
#[derive(Debug)]
pub struct Client {
    requests: mpsc::UnboundedSender<Request>,
    state: watch::Receiver<ClientState>,
    credentials: Arc<ArcSwap<Credentials>>,
    reconnect: Arc<tokio::sync::Notify>,
    acl: Acl,
}

impl Client {
    /// Begins to connect. The events of watches are sent to `events`. The session ends when the client is closed; that of
    /// a client that is only dropped ends after its timeout. Must be called within a tokio runtime.
    pub fn open(settings: &Settings, credentials: Credentials, events: mpsc::UnboundedSender<Event>) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let (state_sender, state) = watch::channel(ClientState::Disconnected("not connected yet".into()));
        let acl = match credentials.login {
            Some(_) => Acl::Creator,
            None => Acl::Open,
        };
        let credentials = Arc::new(ArcSwap::from_pointee(credentials));
        let reconnect = Arc::new(tokio::sync::Notify::new());
        let session = session::Session::new(
            settings.clone(),
            Arc::clone(&credentials),
            Arc::clone(&reconnect),
            state_sender,
            events,
        );
        tokio::spawn(session.run(receiver));
        Self {
            requests,
            state,
            credentials,
            reconnect,
            acl,
        }
    }

    /// Replaces the credentials, and connects again with them.
    pub fn set_credentials(&self, credentials: Credentials) {
        if **self.credentials.load() != credentials {
            self.credentials.store(Arc::new(credentials));
            self.reconnect.notify_one();
        }
    }

    /// The state of the session.
    pub fn state(&self) -> watch::Receiver<ClientState> {
        self.state.clone()
    }

    fn send(
        &self,
        generation: u64,
        code: i32,
        body: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, Failure>> + use<> {
        let (answer, answered) = oneshot::channel();
        let request = Request {
            code,
            body,
            generation,
            answer,
        };
        let sent = self.requests.send(request);
        async move {
            sent.map_err(|_| Failure::NotSent("the client is closed".into()))?;
            let lost = |_| Failure::Unavailable("the client was closed".into());
            answered.await.map_err(lost)?
        }
    }

    /// Applies operations atomically, over this connection. The request is queued when this is called.
    ///
    /// # Errors
    /// [`Failure::Refused`] if an operation cannot be applied; then none is.
    pub fn multi(&self, generation: u64, ops: &[Op]) -> impl Future<Output = Result<Vec<Done>, Failure>> + use<> {
        let mut body = Writer::default();
        write_multi(ops, &self.acl, &mut body);
        let answer = self.send(generation, opcode::MULTI, body.0);
        async move { read_multi(&answer.await?) }
    }

    /// A node's data; `None` if it is absent. The server may lag behind the others.
    ///
    /// # Errors
    /// When ZooKeeper does not answer.
    pub fn get(
        &self,
        generation: u64,
        path: &str,
    ) -> impl Future<Output = Result<Option<(Vec<u8>, Stat)>, Failure>> + use<> {
        let answer = self.read(generation, opcode::GET_DATA, path);
        async move {
            let Some(body) = answer.await? else { return Ok(None) };
            let mut reader = Reader(&body);
            let data = reader.buffer()?.to_vec();
            Ok(Some((data, reader.stat()?)))
        }
    }

    /// The names of a node's children; `None` if it is absent. The server may lag behind the others.
    ///
    /// # Errors
    /// When ZooKeeper does not answer.
    pub fn children(
        &self,
        generation: u64,
        path: &str,
    ) -> impl Future<Output = Result<Option<(Vec<String>, Stat)>, Failure>> + use<> {
        let answer = self.read(generation, opcode::GET_CHILDREN, path);
        async move {
            let Some(body) = answer.await? else { return Ok(None) };
            let mut reader = Reader(&body);
            let count = reader.int()?;
            let names = (0..count).map(|_| reader.string().map(str::to_owned));
            let names = names.collect::<Result<_, _>>()?;
            Ok(Some((names, reader.stat()?)))
        }
    }

    /// Sends a read of one path without a watch.
    fn read(
        &self,
        generation: u64,
        code: i32,
        path: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Failure>> + use<> {
        let mut body = Writer::default();
        body.string(path).bool(false);
        let answer = self.send(generation, code, body.0);
        async move {
            match answer.await {
                Err(failure) if failure.is_no_node() => Ok(None),
                answer => answer.map(Some),
            }
        }
    }

    /// Makes the server catch up: reads that are sent after this call see what was written before it.
    ///
    /// # Errors
    /// When ZooKeeper does not answer.
    pub fn sync(&self, generation: u64, path: &str) -> impl Future<Output = Result<(), Failure>> + use<> {
        let mut body = Writer::default();
        body.string(path);
        let answer = self.send(generation, opcode::SYNC, body.0);
        async move { answer.await.map(drop) }
    }

    /// Watches a node and its children, until [`Self::unwatch`] or the end of the connection.
    ///
    /// # Errors
    /// When ZooKeeper does not answer.
    pub fn watch(&self, generation: u64, path: &str) -> impl Future<Output = Result<(), Failure>> + use<> {
        const PERSISTENT_RECURSIVE: i32 = 1;
        self.change_watch(generation, opcode::ADD_WATCH, path, PERSISTENT_RECURSIVE)
    }

    /// Ends a watch.
    ///
    /// # Errors
    /// When ZooKeeper does not answer, or there is no such watch.
    pub fn unwatch(&self, generation: u64, path: &str) -> impl Future<Output = Result<(), Failure>> + use<> {
        const ANY_KIND: i32 = 3;
        self.change_watch(generation, opcode::REMOVE_WATCHES, path, ANY_KIND)
    }

    fn change_watch(
        &self,
        generation: u64,
        code: i32,
        path: &str,
        kind: i32,
    ) -> impl Future<Output = Result<(), Failure>> + use<> {
        let mut body = Writer::default();
        body.string(path).int(kind);
        let answer = self.send(generation, code, body.0);
        async move { answer.await.map(drop) }
    }

    /// Ends the session, and with it its ephemeral nodes and watches. Waits for the answer no longer than `within`.
    pub async fn close(&self, within: Duration) {
        const ANY_CONNECTION: u64 = 0;
        let closing = self.send(ANY_CONNECTION, opcode::CLOSE, Vec::new());
        let _ = tokio::time::timeout(within, closing).await;
    }
}
