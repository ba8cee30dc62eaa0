//! A client of ZooKeeper: one session, kept over all servers, with its requests in their order.
//!
//! This is an own client because fencing tokens need to know exactly which request was answered over which connection,
//! and a library that connects again by itself hides that. TLS is rustls with the provider that everything else uses.
//!
//! Requests of one session take effect in the order in which they are sent. A request that a broken connection left
//! without an answer may still take effect afterwards, until the next connection's first write
//! ([`crate::backend::tree`]) keeps it out.

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::future::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};

use self::wire::{Acl, Reader, Writer, opcode, read_multi, write_multi};
use super::settings::{Credentials, Settings};
use crate::backend::tree::store::{Answer, CommitBounds, Committed, ConnectionState, Event, Failure, Op, Stat, Tree};
use crate::supervisor::supervise_and;

mod connection;
mod session;
mod stream;
pub mod wire;

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
    state: watch::Receiver<ConnectionState>,
    credentials: Arc<ArcSwap<Credentials>>,
    reconnect: Arc<tokio::sync::Notify>,
    acl: Acl,
}

impl Client {
    /// Begins to connect. The events of watches are sent to `events`. The session ends when the client is closed; that of
    /// a client that is only dropped ends after its timeout. Must be called within a tokio runtime.
    pub fn open(settings: &Settings, credentials: Credentials, events: mpsc::UnboundedSender<Event>) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let (state_sender, state) = watch::channel(ConnectionState::Disconnected("not connected yet".into()));
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
        let report = |(session, _): &(session::Session, _), problem: &str| session.report_panic(problem);
        supervise_and(
            "zookeeper: session",
            (session, receiver),
            report,
            |(session, requests)| session.run(requests).boxed(),
        );
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

    fn send<T: 'static>(
        &self,
        (generation, code): (u64, i32),
        body: Vec<u8>,
        read: impl FnOnce(&[u8]) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<T> {
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
            read(&answered.await.map_err(lost)??)
        }
        .boxed()
    }

    /// Sends a read of one path without a watch.
    fn read<T: Send + 'static>(
        &self,
        (generation, code): (u64, i32),
        path: &str,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<Option<(T, Stat)>> {
        let mut body = Writer::default();
        body.string(path).bool(false);
        let answer = self.send((generation, code), body.0, |body| {
            let mut reader = Reader(body);
            Ok((read(&mut reader)?, reader.stat()?))
        });
        async move {
            match answer.await {
                Err(failure) if failure.is_no_node() => Ok(None),
                answer => answer.map(Some),
            }
        }
        .boxed()
    }

    fn change_watch(&self, generation: u64, code: i32, path: &str, kind: i32) -> Answer<()> {
        let mut body = Writer::default();
        body.string(path).int(kind);
        self.send((generation, code), body.0, |_| Ok(()))
    }
}

impl Tree for Client {
    fn state(&self) -> watch::Receiver<ConnectionState> {
        self.state.clone()
    }

    fn commit(&self, generation: u64, guards: &[Op], steps: &[Vec<Op>]) -> Answer<Committed> {
        let mut body = Writer::default();
        write_multi(&Committed::ops(guards, steps), &self.acl, &mut body);
        let (guards, steps): (_, Vec<_>) = (guards.len(), steps.iter().map(Vec::len).collect());
        let read = move |body: &[u8]| Committed::of(read_multi(body), guards, &steps);
        self.send((generation, opcode::MULTI), body.0, read)
    }

    fn bounds(&self) -> CommitBounds {
        CommitBounds::ALL_OR_NONE
    }

    fn get(&self, generation: u64, path: &str) -> Answer<Option<(Vec<u8>, Stat)>> {
        self.read((generation, opcode::GET_DATA), path, |reader| {
            Ok(reader.buffer()?.to_vec())
        })
    }

    fn children(&self, generation: u64, path: &str) -> Answer<Option<(Vec<String>, Stat)>> {
        self.read((generation, opcode::GET_CHILDREN), path, |reader| {
            let count = reader.int()?;
            (0..count).map(|_| reader.string().map(str::to_owned)).collect()
        })
    }

    fn sync(&self, generation: u64, path: &str) -> Answer<()> {
        let mut body = Writer::default();
        body.string(path);
        self.send((generation, opcode::SYNC), body.0, |_| Ok(()))
    }

    fn watch(&self, generation: u64, path: &str) -> Answer<()> {
        const PERSISTENT_RECURSIVE: i32 = 1;
        self.change_watch(generation, opcode::ADD_WATCH, path, PERSISTENT_RECURSIVE)
    }

    fn unwatch(&self, generation: u64, path: &str) -> Answer<()> {
        const ANY_KIND: i32 = 3;
        self.change_watch(generation, opcode::REMOVE_WATCHES, path, ANY_KIND)
    }

    fn close(&self) -> Answer<()> {
        const ANY_CONNECTION: u64 = 0;
        self.send((ANY_CONNECTION, opcode::CLOSE), Vec::new(), |_| Ok(()))
    }
}
