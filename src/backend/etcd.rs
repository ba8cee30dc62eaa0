//! etcd: linearizable locks on the store that a cluster already runs (CP).
//!
//! [`Store::open`] connects to a cluster, and [`Store::namespace`] opens one namespace of it. All keys of a namespace
//! lie under `<root>/<namespace>/`. A lock's holders precede its waiters. Each holder is on its own etcd lease; each
//! waiter is on the session lease of the replica that enqueued it.
//!
//! The layers, each of which calls only those before it:
//!
//! - [`cluster`] connects to the members, replaces this server's credentials, and reads the cluster's status.
//! - [`lease`] manages the etcd leases: those of holders, which are used again, and the session of this replica.
//! - [`data`] is what is stored: keys, records, and a lock as it was read.
//! - [`txn`] is the group commit of all steps, and records which steps were answered.
//! - [`lock_state`] is what this replica knows of each lock: its watched view, its own waiters, and its calls.
//! - [`ops`] implements the verbs of [`Backend`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
#[cfg(feature = "etcd-tree")]
use tokio::sync::mpsc;
use tokio::sync::watch;

use self::cluster::Failure;
use self::cluster::client::ClusterClient;
use self::cluster::settings::Credentials;
use self::data::key_suffixes::KeySuffixPool;
use self::data::keys::Keys;
use self::lease::LeasePool;
use self::lease::session::Session;
use self::lock_state::LockTable;
use self::lock_state::call_queue::CallKind;
use self::ops::Replica;
use self::ops::history::History;
use self::ops::refusals::RecentRefusals;
use self::ops::watching::Watching;
use self::settings::Settings;
#[cfg(feature = "etcd-tree")]
use self::tree::EtcdTree;
use self::txn::StepBatcher;
use super::failure::not_sent;
use super::notifications::NotificationSender;
#[cfg(feature = "etcd-tree")]
use super::tree::store::{Event, Tree};
use super::{
    AcquireOutcome, Backend, BackendError, Capabilities, Forced, Guarantee, Health, InspectLimit, LockPage, NO_NODES,
    NewClaim, Notification, PageRequest, ReleaseOutcome, ReleaseTarget, RenewOutcome, UpdateOutcome, WaitPolicy,
    WatchEvent,
};
use crate::claim::{Holder, Queue};
use crate::name::{FencingToken, LeaseKey, LockName, Metadata, Mode, Namespace, Ttl};

mod cluster;
pub mod config;
mod data;
mod lease;
mod lock_state;
mod ops;
#[cfg(feature = "etcd-tree")]
mod tree;
mod txn;

pub use self::cluster::settings;

/// How long a lost notification may stay unnoticed.
const RECHECK: Duration = Duration::from_secs(5);

/// A cluster, which namespaces are opened from.
#[derive(Debug, Clone)]
pub struct Store {
    link: Arc<ClusterClient>,
    settings: Settings,
}

impl Store {
    /// Makes a client of a cluster, which connects with its first call. Failures show in the health of the namespaces.
    pub fn open(settings: Settings) -> Self {
        Self {
            link: Arc::new(ClusterClient::new(&settings)),
            settings,
        }
    }

    /// Replaces the credentials. New connections use them as soon as the members accept them; open connections stay
    /// open. Must be called within a tokio runtime.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.link.set_credentials(credentials);
    }

    /// The backend of one namespace. Must be called within a tokio runtime: tasks keep its session alive until it is
    /// closed.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<dyn Backend> {
        Arc::new(self.open_namespace(namespace))
    }

    /// The same over the tree engine.
    #[cfg(feature = "etcd-tree")]
    pub fn tree_namespace(&self, namespace: &Namespace) -> Arc<dyn Backend> {
        let (tree, events) = self.tree(namespace);
        let settings = super::tree::EngineSettings {
            kind: "etcd-tree",
            root: self.settings.root.clone(),
            timeout: self.settings.timeout,
            max_request: 512 * 1024,
            clock: Arc::new(super::local_clock::BootClock),
        };
        super::tree::Engine::open(tree, events, namespace, &settings)
    }

    /// The tree of a namespace, and the events of its watches.
    // Tests send bare requests over it.
    #[cfg(feature = "etcd-tree")]
    #[doc(hidden)]
    pub fn tree(&self, namespace: &Namespace) -> (Arc<dyn Tree>, mpsc::UnboundedReceiver<Event>) {
        let (sender, events) = mpsc::unbounded_channel();
        let root = format!("{}/{namespace}", self.settings.root.trim_end_matches('/'));
        let tree = EtcdTree::open(Arc::clone(&self.link), root, self.settings.session_ttl, sender);
        (tree, events)
    }

    fn open_namespace(&self, namespace: &Namespace) -> Etcd {
        let keys = Keys::new(&self.settings.root, namespace);
        let link = Arc::clone(&self.link);
        let leases = Arc::new(LeasePool::new(Arc::clone(&link)));
        let suffixes = Arc::new(KeySuffixPool::default());
        let session = Arc::new(Session::new(
            keys.sessions.clone(),
            Arc::clone(&link),
            Arc::clone(&leases),
            Box::new({
                let (leases, suffixes) = (Arc::clone(&leases), Arc::clone(&suffixes));
                move || {
                    leases.abandon();
                    suffixes.abandon();
                }
            }),
            self.settings.session_ttl,
            self.settings.timeout,
        ));
        let history = Arc::new(History::new(keys.clone(), Arc::clone(&link), Arc::clone(&leases)));
        let notifications = Arc::new(NotificationSender::default());
        let locks = LockTable::new(
            keys.clone(),
            Arc::clone(&link),
            Arc::clone(&notifications),
            session.closed().clone(),
        );
        let on_session_end = Arc::clone(&locks);
        tokio::spawn(Arc::clone(&session).run(move || on_session_end.remove_all_waiters()));
        let expiries = Arc::clone(&history).watch_expiries();
        tokio::spawn(session.closed().clone().run_until_cancelled_owned(expiries));
        Etcd {
            replica: Arc::new(Replica {
                batches: StepBatcher::begin(Arc::clone(&link)),
                calls: Arc::default(),
                refusals: RecentRefusals::default(),
                keys,
                link,
                leases,
                session,
                history,
                locks,
                suffixes,
            }),
            notifications,
        }
    }
}

/// One namespace of a cluster.
#[derive(Debug)]
struct Etcd {
    replica: Arc<Replica>,
    notifications: Arc<NotificationSender>,
}

impl Etcd {
    /// The replica, unless the namespace is closed.
    fn replica(&self) -> Result<&Replica, BackendError> {
        if self.replica.session.closed().is_cancelled() {
            return Err(not_sent("the namespace is closed"));
        }
        Ok(&self.replica)
    }
}

#[async_trait]
impl Backend for Etcd {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let replica = self.replica()?;
        if replica.calls.is_cancelled(claim.call) {
            return Ok(AcquireOutcome::Cancelled);
        }
        let (position, spare) = match (claim.wait_policy, claim.mode) {
            // These need no order: of exclusive tries at most one is granted, and readers do not block each other.
            (WaitPolicy::NoWait, Mode::Exclusive | Mode::Shared) => (None, None),
            (WaitPolicy::NoWait, Mode::Semaphore { .. }) => {
                let spare = replica.spare(claim).await.map_err(Failure::unsent)?;
                (
                    Some(replica.locks.join_queue(lock, CallKind::Acquire, false).await?),
                    spare,
                )
            }
            (WaitPolicy::Wait, _) => {
                let concurrently = replica.may_run_concurrently(lock, claim);
                (
                    Some(replica.locks.join_queue(lock, CallKind::Acquire, concurrently).await?),
                    None,
                )
            }
        };
        let ready = replica.session.ready().await;
        if let (Err(failure), Some(position)) = (&ready, &position) {
            position.fail_later_calls(failure);
        }
        drop(spare);
        let outcome = replica.acquire((position, ready?), lock, claim).await;
        match &outcome {
            // It will be promoted or undone.
            Ok(AcquireOutcome::Waiting(_)) => {}
            Ok(_) | Err(Failure::NotSent(_)) => replica.suffixes.end(claim.call),
            // It will be undone.
            Err(_) => {}
        }
        Ok(outcome?)
    }

    /// An acquire that has left the queue of calls without an answer is an append. If it is in flight, a release is sent when
    /// it is answered. Otherwise one transaction has both, and their conditions are judged at its beginning.
    fn orders_acquires(&self, lock: &LockName) -> bool {
        self.replica()
            .is_ok_and(|replica| !replica.locks.has_queued_acquires(lock))
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let replica = self.replica()?;
        match replica.calls.is_cancelled(claim.call) {
            true => Ok(AcquireOutcome::Cancelled),
            false => Ok(replica.promote(lock, claim).await?),
        }
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        Ok(self.replica()?.release(lock, target, next).await?)
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        Ok(self.replica()?.renew(lease, ttl).await?)
    }

    async fn update_metadata(&self, lease: &LeaseKey, metadata: &Metadata) -> Result<UpdateOutcome, BackendError> {
        Ok(self.replica()?.update_metadata(lease, metadata).await?)
    }

    async fn inspect(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, BackendError> {
        Ok(self.replica()?.inspect(lock, limit).await?)
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        Ok(self.replica()?.holder_of(lock, token).await?)
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        Ok(self.replica()?.list(prefix, &page).await?)
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        let closed = self.replica.session.closed().clone();
        let notifications = self.notifications.open();
        notifications.take_until(closed.cancelled_owned()).boxed()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        let watching = Watching::new(Arc::clone(&self.replica), lock.clone());
        let closed = self.replica.session.closed().clone();
        let next = |mut watching: Watching| async move { Ok(Some((watching.next().await?, watching))) };
        let events = stream::try_unfold(watching, next);
        events.take_until(closed.cancelled_owned()).boxed()
    }

    fn forced(&self) -> Option<BoxStream<'static, Forced>> {
        let closed = self.replica.session.closed().clone();
        let forced = Arc::clone(&self.replica).forced();
        Some(forced.take_until(closed.cancelled_owned()).boxed())
    }

    /// Says that the wall clock of this server is right, if that is in question.
    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        match node {
            None => self.replica()?.session.admit_clock().await,
            Some(_) => Err(BackendError::Unsupported { what: NO_NODES }),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "etcd",
            guarantee: Guarantee::Cp,
            sharing: true,
            reentry: true,
            remembers_requests: true,
            updates_metadata: true,
            global_order: true,
            recheck: Some(RECHECK),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.replica.session.health()
    }

    async fn close(&self) {
        self.replica.session.close().await;
    }
}
