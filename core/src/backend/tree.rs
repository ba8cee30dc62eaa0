//! The tree engine: a lock's queue as nodes of a tree, in a store that orders them.
//!
//! The layers, each of which calls only those before it:
//!
//! - [`store`] states what is asked of a store.
//! - [`data`] is what is stored: paths, names of children, records, and a lock as it was listed.
//! - [`fenced_connection`] fences each connection: the fence of its session, and the base of its tokens.
//! - [`calls`] knows which steps of this replica's calls are under way, and which calls have ended.
//! - [`group_commit`] is the group commit of all steps.
//! - [`leases`] watches over leases, and [`history`] remembers requests and ends.
//! - [`table`] is what this replica knows of each lock: its own waiters, and a view that events keep up.
//! - [`ops`] implements the verbs of [`Backend`].
#![doc = include_str!("tree/protocol.md")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use self::data::paths::Paths;
use self::fenced_connection::FencedConnections;
use self::group_commit::Batcher;
use self::history::History;
use self::leases::WatchedLeases;
use self::ops::Replica;
use self::ops::watching::Watching;
use self::store::{Event, Failure, Tree};
use self::table::LockTable;
use super::failure::not_sent;
use super::local_clock::Clock;
use super::notifications::{NotificationSender, told};
use super::{
    AcquireOutcome, Backend, BackendError, Capabilities, Forced, Guarantee, Health, InspectLimit, LockPage, NO_NODES,
    NewClaim, Notification, PageRequest, ReleaseOutcome, ReleaseTarget, RenewOutcome, StreamNumber, UpdateOutcome,
    WatchEvent,
};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Metadata, Namespace, Ttl};
use crate::supervisor::{supervise, supervise_and};

mod calls;
mod data;
mod fenced_connection;
mod group_commit;
mod history;
mod leases;
mod ops;
pub mod store;
mod table;

/// How long a lost notification may stay unnoticed.
const RECHECK: Duration = Duration::from_secs(5);
/// How long the close of a namespace waits for the end of its session.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// What an engine is for.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// The store's kind, as in the configuration.
    pub kind: &'static str,
    /// The path under which all nodes are.
    pub root: String,
    /// How long a verb waits for a connection.
    pub timeout: Duration,
    /// The largest step, in bytes.
    pub max_request: usize,
    /// The clocks of this server: leases are counted by one, and tokens follow the other.
    pub clock: Arc<dyn Clock>,
}

/// The locks of one namespace in a [`Tree`].
#[derive(Debug)]
pub struct Engine {
    kind: &'static str,
    replica: Arc<Replica>,
    notifications: Arc<NotificationSender>,
}

impl Engine {
    /// Opens a namespace, in a tree that tells of what it watches by these events. Must be called within a tokio runtime:
    /// tasks serve the namespace until it is closed.
    pub fn open(
        tree: Arc<dyn Tree>,
        events: mpsc::UnboundedReceiver<Event>,
        namespace: &Namespace,
        settings: &EngineSettings,
    ) -> Arc<dyn Backend> {
        let paths = Paths::new(&settings.root, namespace);
        let connections = Arc::new(FencedConnections::new(Arc::clone(&tree), paths.clone(), settings));
        let notifications = Arc::new(NotificationSender::default());
        let history = Arc::new(History::new(paths.clone(), Arc::clone(&tree), Arc::clone(&connections)));
        let leases = Arc::new(WatchedLeases::new(Arc::clone(&settings.clock)));
        let table = LockTable::new(
            Arc::clone(&tree),
            Arc::clone(&connections),
            paths.clone(),
            Arc::clone(&notifications),
            Arc::clone(&leases),
        );
        let replica = Arc::new(Replica {
            batcher: Batcher::begin(Arc::clone(&tree), Arc::clone(&connections), settings.max_request),
            calls: Arc::default(),
            leases,
            buckets: Mutex::new(HashSet::new()),
            grants: AtomicU32::new(0),
            paths,
            tree,
            connections,
            history,
            table,
        });
        replica.start(events);
        Arc::new(Self {
            kind: settings.kind,
            replica,
            notifications,
        })
    }

    /// The replica, unless the namespace is closed.
    fn replica(&self) -> Result<&Replica, BackendError> {
        if self.replica.connections.closed().is_cancelled() {
            return Err(not_sent("the namespace is closed"));
        }
        Ok(&self.replica)
    }

    fn answer<T>(&self, answer: Result<T, Failure>) -> Result<T, BackendError> {
        answer.map_err(|failure| failure.of(self.kind))
    }
}

impl Replica {
    /// Starts the tasks that serve the namespace until it is closed.
    fn start(self: &Arc<Self>, events: mpsc::UnboundedReceiver<Event>) {
        let connections = Arc::clone(&self.connections);
        let report = |connections: &Arc<FencedConnections>, problem: &str| connections.report_panic(problem);
        supervise_and("tree: connections", connections, report, |connections| {
            Arc::clone(connections).run().boxed()
        });
        supervise("tree: watches", (Arc::clone(&self.table), events), |(table, events)| {
            table.run(events).boxed()
        });
        self.start_one("tree: history", |replica| Arc::clone(&replica.history).run().boxed());
        self.start_one("tree: expiry", |replica| replica.expire_all().boxed());
        self.start_one("tree: clean-up", |replica| replica.clean_up().boxed());
    }

    fn start_one(
        self: &Arc<Self>,
        task: &'static str,
        run: impl Fn(Arc<Self>) -> BoxFuture<'static, ()> + Send + 'static,
    ) {
        let closed = self.connections.closed().clone();
        supervise(task, Arc::clone(self), move |replica| {
            let task = run(Arc::clone(replica));
            closed.clone().run_until_cancelled_owned(task).map(drop).boxed()
        });
    }
}

#[async_trait]
impl Backend for Engine {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let replica = self.replica()?;
        if replica.calls.is_cancelled(claim.call) {
            return Ok(AcquireOutcome::Cancelled);
        }
        self.answer(replica.acquire(lock, claim).await)
    }

    /// An append that was sent takes effect before what is sent later over the same connection.
    fn orders_acquires(&self, lock: &LockName) -> bool {
        self.replica().is_ok_and(|replica| replica.orders_acquires(lock))
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let replica = self.replica()?;
        if replica.calls.is_cancelled(claim.call) {
            return Ok(AcquireOutcome::Cancelled);
        }
        self.answer(replica.promote(lock, claim).await)
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        self.answer(self.replica()?.release(lock, target, next).await)
    }

    async fn owns(&self, lock: &LockName, claim: &ClaimId, call: CallId) -> Result<bool, BackendError> {
        self.answer(self.replica()?.owns(lock, claim, call).await)
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        self.answer(self.replica()?.renew(lease, ttl).await)
    }

    async fn update_metadata(
        &self,
        lease: &LeaseKey,
        metadata: &Metadata,
        stream: Option<StreamNumber>,
    ) -> Result<UpdateOutcome, BackendError> {
        self.answer(self.replica()?.update_metadata(lease, metadata, stream).await)
    }

    async fn inspect(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, BackendError> {
        self.answer(self.replica()?.inspect(lock, limit).await)
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        self.answer(self.replica()?.holder(lock, token).await)
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        self.answer(self.replica()?.list(prefix, &page).await)
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        let closed = self.replica.connections.closed().clone();
        self.notifications.open().take_until(closed.cancelled_owned()).boxed()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        let watching = Watching::new(Arc::clone(&self.replica), lock.clone());
        let closed = self.replica.connections.closed().clone();
        let kind = self.kind;
        let next = move |mut watching: Watching| async move {
            let event = watching.next().await.map_err(|failure| failure.of(kind))?;
            Ok(Some((event, watching)))
        };
        let events = stream::try_unfold(watching, next);
        events.take_until(closed.cancelled_owned()).boxed()
    }

    fn forced(&self) -> Option<BoxStream<'static, Forced>> {
        let closed = self.replica.connections.closed().clone();
        Some(
            told(self.replica.table.forced())
                .take_until(closed.cancelled_owned())
                .boxed(),
        )
    }

    /// Says that the wall clock of this server is right, if that is in question.
    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        match node {
            None => self.replica()?.connections.admit_clock().await,
            Some(_) => Err(BackendError::Unsupported { what: NO_NODES }),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: self.kind,
            guarantee: Guarantee::Cp,
            sharing: true,
            reentry: true,
            remembers_requests: true,
            updates_metadata: true,
            shared: true,
            global_order: true,
            recheck: Some(RECHECK),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.replica.connections.health()
    }

    async fn close(&self) {
        self.replica.connections.closed().cancel();
        let _ = timeout(CLOSE_WITHIN, self.replica.tree.close()).await;
    }
}
