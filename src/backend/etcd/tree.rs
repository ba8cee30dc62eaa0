//! The tree of `crate::backend::tree` in etcd.
//!
//! A node is a key, except that
//!
//! - the directories, which all other nodes are under, are always there and not stored;
//! - the node of a lock is not stored: it is there while it has children;
//! - the key of a lock's child says only whether the child is a reader, and is used again ([`slots`]): a condition on the
//!   children of a lock walks past every key that any of them had since etcd's last compaction. The name is in the value.
//!
//! A version is the revision that wrote it, and the number of a transaction is its revision. A session is an etcd lease.
//! A step of a commit is a nested transaction ([`plan`]). Etcd judges all conditions of a request before it writes.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::{GetOptions, KeyValue, ResponseHeader};
use futures::future::{FutureExt, Shared, ready};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::lists::Lists;
use self::plan::{Commit, Made};
use self::session::Session;
use self::slots::{Names, Node, Slots, shown};
use super::cluster;
use super::cluster::client::{ClusterClient, MemberClient};
use crate::backend::tree::store::{
    Answer, CommitBounds, Committed, ConnectionState, Event, EventKind, Failure, Op, Reason, Stat, Tree,
};
use crate::supervisor::supervise_and;

mod lists;
mod plan;
mod session;
mod slots;

/// The tree of one namespace.
#[derive(Debug)]
pub struct EtcdTree(Arc<Inner>);

/// A connection, and what goes over it.
#[derive(Debug, Clone)]
struct Connection {
    generation: u64,
    session: i64,
    /// What its commits and watches go over. Another connection may be to an old copy of the store that was put back.
    client: MemberClient,
    /// Ends it.
    lost: CancellationToken,
    watches: mpsc::UnboundedSender<WatchRequest>,
}

#[derive(Debug)]
enum WatchRequest {
    Watch(String, oneshot::Sender<()>),
    Unwatch(String),
}

/// Resolves when a watch is open.
type Opening = Shared<oneshot::Receiver<()>>;

#[derive(Debug)]
struct Inner {
    link: Arc<ClusterClient>,
    /// The path of the namespace.
    root: String,
    state: watch::Sender<ConnectionState>,
    connection: Mutex<Option<Connection>>,
    /// The watches that are being opened, which a read of their node follows.
    opening: Mutex<HashMap<String, Opening>>,
    slots: Mutex<Slots>,
    names: Mutex<Names>,
    lists: Mutex<Lists>,
    events: mpsc::UnboundedSender<Event>,
    closed: CancellationToken,
}

/// A failure of a request that may have had an effect.
fn failure(failure: cluster::Failure) -> Failure {
    match failure {
        cluster::Failure::LeaseGone => Failure::NotSent("the session has ended".into()),
        cluster::Failure::Refused(why) => Failure::Error(Reason::Other(why)),
        cluster::Failure::NoQuorum(why) => Failure::NoQuorum(why),
        cluster::Failure::Full(why) | cluster::Failure::Unavailable(why) => Failure::Unavailable(why),
    }
}

fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

fn stat(kv: &KeyValue) -> Stat {
    Stat {
        created: kv.create_revision(),
        modified: kv.mod_revision(),
        version: kv.mod_revision(),
    }
}

impl EtcdTree {
    /// Begins to connect. Must be called within a tokio runtime.
    pub fn open(
        link: Arc<ClusterClient>,
        root: String,
        session_ttl: std::time::Duration,
        events: mpsc::UnboundedSender<Event>,
    ) -> Arc<Self> {
        let inner = Arc::new(Inner {
            link,
            root,
            state: watch::Sender::new(ConnectionState::Disconnected("not connected yet".into())),
            connection: Mutex::default(),
            opening: Mutex::default(),
            slots: Mutex::default(),
            names: Mutex::default(),
            lists: Mutex::default(),
            events,
            closed: CancellationToken::new(),
        });
        let report =
            |session: &Session, problem: &str| session.inner.note_end(&cluster::Failure::Unavailable(problem.into()));
        supervise_and("etcd: session", Session::new(&inner, session_ttl), report, |session| {
            session.run().boxed()
        });
        Arc::new(Self(inner))
    }
}

impl Drop for EtcdTree {
    fn drop(&mut self) {
        self.0.closed.cancel();
    }
}

fn lost() -> Failure {
    Failure::NotSent("the connection was lost".into())
}

impl Connection {
    fn ask(&self, request: WatchRequest) -> Result<(), Failure> {
        self.watches.send(request).map_err(|_| lost())
    }
}

impl Inner {
    /// Sends a commit, and notes what became of its keys.
    async fn send(&self, connection: &Connection, plan: &Commit) -> Result<Committed, Failure> {
        if !plan.is_sent() {
            plan.made().for_each(|made| self.note(made, None));
            return Ok(plan.unsent());
        }
        let elsewhere = || "calls go over another connection";
        if self.link.route() != connection.client.route {
            self.lose(connection, elsewhere());
            return Err(Failure::NotSent(elsewhere().into()));
        }
        let answer = match self.link.txn_over(&connection.client, plan.txn()).await {
            Ok(answer) if self.link.route() == connection.client.route => answer,
            Ok(_) => {
                self.lose(connection, elsewhere());
                return Err(Failure::Unavailable(elsewhere().into()));
            }
            Err(failed) => {
                match &failed {
                    // It was executed or not, and is not under way any more.
                    cluster::Failure::Full(_) => self.note_space(true),
                    cluster::Failure::Refused(why) => {
                        plan.made().for_each(|made| self.note(made, None));
                        // Perhaps for its credentials.
                        if self.link.has_old_credentials(&connection.client) {
                            self.lose(connection, why);
                            return Err(Failure::NotSent(why.clone()));
                        }
                    }
                    // The state changes before the request fails, so that nobody takes it for a live one.
                    _ => self.lose(connection, &failed.to_string()),
                }
                return Err(failure(failed));
            }
        };
        let (committed, fates) = plan.answer(&answer);
        let revision = revision(answer.header());
        for (made, took_effect) in plan.made().zip(fates) {
            self.note(made, took_effect.then_some(revision));
        }
        committed
    }

    fn connection(&self, generation: u64) -> Result<Connection, Failure> {
        let connection = self.connection.lock();
        let connection = connection
            .as_ref()
            .filter(|connection| connection.generation == generation);
        connection.cloned().ok_or_else(|| match &*self.state.borrow() {
            ConnectionState::Disconnected(why) => Failure::NotSent(format!("the connection was lost: {why}")),
            ConnectionState::Connected(_) => lost(),
        })
    }

    /// Notes what became of the keys that a step has made and deleted.
    fn note(&self, made: &Made, revision: Option<i64>) {
        let mut slots = self.slots.lock();
        for (lock, suffix) in &made.created {
            slots.made(lock, suffix, revision);
        }
        if revision.is_some() {
            for (lock, suffix, created) in &made.deleted {
                slots.gone(lock, suffix, *created);
            }
        }
    }

    /// The node's key, and the revision that created it if it is a lock's child; `None` if it can have no key.
    fn key(&self, path: &str) -> Option<(String, Option<i64>)> {
        match Node::of(&self.root, path) {
            Node::Child { lock, name } => {
                let (suffix, created) = slots::place(name)?;
                Some((format!("{lock}{suffix}"), Some(created)))
            }
            _ => Some((path.to_owned(), None)),
        }
    }
}

impl Tree for EtcdTree {
    fn state(&self) -> watch::Receiver<ConnectionState> {
        self.0.state.subscribe()
    }

    fn bounds(&self) -> CommitBounds {
        CommitBounds {
            steps: 96,
            step_ops: 24,
            in_flight: 2,
            independent: true,
            numbers_leap: false,
        }
    }

    fn commit(&self, generation: u64, guards: &[Op], steps: &[Vec<Op>]) -> Answer<Committed> {
        let inner = Arc::clone(&self.0);
        let planned = inner.connection(generation).map(|connection| {
            let refusal = inner.refusal();
            let place = (inner.root.as_str(), connection.session, refusal.as_deref());
            let plan = Commit::plan(place, &mut inner.slots.lock(), guards, steps);
            (connection, plan)
        });
        // In a task, so that it is sent also if nobody waits for the answer. It needs no order: the engine knows that
        // commits under way have none.
        let sent = tokio::spawn(async move {
            let (connection, plan) = planned?;
            inner.send(&connection, &plan).await
        });
        async move {
            let stopped = |_| Failure::Unavailable("the request was stopped".into());
            sent.await.map_err(stopped)?
        }
        .boxed()
    }

    fn get(&self, generation: u64, path: &str) -> Answer<Option<(Vec<u8>, Stat)>> {
        let inner = Arc::clone(&self.0);
        let key = self.0.connection(generation).map(|_| self.0.key(path));
        if matches!(Node::of(&self.0.root, path), Node::Directory) {
            return ready(key.map(|_| Some((Vec::new(), Stat::of_new(0, 0))))).boxed();
        }
        async move {
            let Some((key, created)) = key? else { return Ok(None) };
            let read = inner.link.get(key, GetOptions::new()).await.map_err(failure)?;
            let kv = read.kvs().first();
            let kv = kv.filter(|kv| created.is_none_or(|created| created == kv.create_revision()));
            Ok(kv.map(|kv| {
                let data = if created.is_some() { shown(kv).1 } else { kv.value() };
                (data.to_vec(), stat(kv))
            }))
        }
        .boxed()
    }

    fn children(&self, generation: u64, path: &str) -> Answer<Option<(Vec<String>, Stat)>> {
        let inner = Arc::clone(&self.0);
        let connection = self.0.connection(generation);
        let opening = self.0.opening.lock().get(path).cloned();
        let prefix = format!("{path}/");
        let is_lock = matches!(Node::of(&self.0.root, path), Node::Lock);
        async move {
            connection?;
            if let Some(opening) = opening {
                opening.await.map_err(|_| lost())?;
            }
            let names: Vec<String> = if is_lock {
                let (revision, children) = inner.list_lock(generation, &prefix).await.map_err(failure)?;
                inner.slots.lock().listed(&prefix, &children, revision);
                for name in inner.names.lock().listed(&prefix, &children) {
                    let (kind, path) = (EventKind::Deleted, format!("{prefix}{name}"));
                    let _ = inner.events.send(Event { kind, path });
                }
                children.into_iter().map(|(_, name)| name).collect()
            } else {
                let keys = inner.link.keys(prefix.as_str(), plan::behind(&prefix)).await;
                let (_, kvs) = keys.map_err(failure)?;
                let first = |kv: &KeyValue| {
                    let rest = kv.key_str().ok()?.strip_prefix(prefix.as_str())?;
                    rest.split('/').next().map(str::to_owned)
                };
                let mut names: Vec<String> = kvs.iter().filter_map(first).collect();
                names.dedup();
                names
            };
            let is_absent = is_lock && names.is_empty();
            Ok((!is_absent).then_some((names, Stat::of_new(0, 0))))
        }
        .boxed()
    }

    /// Reads are linearizable.
    fn sync(&self, generation: u64, _path: &str) -> Answer<()> {
        ready(self.0.connection(generation).map(drop)).boxed()
    }

    fn watch(&self, generation: u64, path: &str) -> Answer<()> {
        let (open, opened) = oneshot::channel();
        let opened = opened.shared();
        let asked = self.0.connection(generation).and_then(|connection| {
            self.0.opening.lock().insert(path.to_owned(), opened.clone());
            connection.ask(WatchRequest::Watch(path.to_owned(), open))
        });
        async move {
            asked?;
            opened.await.map_err(|_| lost())
        }
        .boxed()
    }

    fn unwatch(&self, generation: u64, path: &str) -> Answer<()> {
        let connection = self.0.connection(generation);
        let asked = connection.and_then(|connection| connection.ask(WatchRequest::Unwatch(path.to_owned())));
        ready(asked).boxed()
    }

    fn close(&self) -> Answer<()> {
        self.0.closed.cancel();
        let inner = Arc::clone(&self.0);
        let Some(connection) = self.0.connection.lock().take() else {
            return ready(Ok(())).boxed();
        };
        let revoked = tokio::spawn(async move { inner.revoke(connection.session).await });
        async move {
            match revoked.await {
                Ok(revoked) => revoked.map_err(failure),
                Err(_) => Err(lost()),
            }
        }
        .boxed()
    }
}
