//! RedLock: independent Redis masters that decide by majority. AP, exclusive claims only.
//!
//! Every node votes for one attempt at a time, with a number that it has never issued before. The
//! largest number of a majority is the token, so tokens rise regardless of the clocks. A node that
//! restarted or lost its data votes again only after every lease that it may have lost has ended
//! ([`crate::backend::redis_server::marker`]), and steps that were sent to it before count for
//! nothing. `tests/model` explores the protocol.
//!
//! - [`scripts`], [`answer`]: the scripts that a node runs, and their replies.
//! - [`nodes`], [`health`], [`clock`]: requests to all nodes at once, their health, and their
//!   clocks.
//! - [`attempt`], [`renew`], [`release`]: a lease's grant, renewal and end at a majority.
//! - [`waiting`], [`contention`]: this replica's waiters, of which only the first attempts to
//!   acquire.
//! - [`inspect`], [`names`], [`watching`]: queues, lists and watches.
//!
//! A renewal or an inspection that lacks a majority only because a node was admitted anew is answered NO_QUORUM.

pub mod answer;
pub mod attempt;
pub mod clock;
pub mod config;
pub mod contention;
pub mod health;
pub mod inspect;
pub mod names;
pub mod nodes;
pub mod quorum_member;
pub mod release;
pub mod renew;
pub mod scripts;
pub mod settings;
pub mod waiting;
pub mod watching;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::join_all;
use futures::stream::BoxStream;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::backend::notifications::NotificationSender;
use crate::backend::redis_server::credentials::{Access, Credentials};
use crate::backend::redis_server::failure::not_sent;
use crate::backend::redis_server::settings::{Servers, Settings};
use crate::backend::redis_server::subscriptions::SubscriptionEvent;
use crate::backend::unreadable::Unreadable;
use crate::backend::{
    AcquireOutcome, Backend, BackendError, Capabilities, Guarantee, Health, InspectLimit, LockPage, NewClaim,
    Notification, PageRequest, ReleaseOutcome, ReleaseTarget, Released, RenewOutcome, WaitPolicy, WatchEvent,
};
use crate::claim::{Cause, Queue};
use crate::name::{LeaseKey, LockName, Mode, Namespace, Ttl};
use crate::supervisor::supervise;
use nodes::Nodes;
use settings::Quorum;
use waiting::{NextAction, Waiting};
use watching::Watchers;

/// How long a lost notification may stay unnoticed.
const RECHECK: Duration = Duration::from_secs(1);

/// The nodes of several namespaces: one set of connections.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Shared>,
}

/// The state that all namespaces of a store share.
pub struct Shared {
    nodes: Arc<Nodes>,
    credentials: Credentials,
    prefix: String,
    /// The longest time for which a node may hold for a lease: the longest TTL with the drift allowance.
    longest_ttl: Duration,
    health: watch::Receiver<Health>,
    _watching: AbortOnDropHandle<()>,
}

impl Store {
    /// Starts to connect to the nodes; a namespace's health reports when a majority is connected.
    ///
    /// Must be called within a tokio runtime.
    pub fn open(quorum: Quorum) -> Self {
        // Only the first installation counts, and every other part of the program installs the same
        // provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut settings = Settings::new(Servers::Cluster(Vec::new()));
        settings.prefix.clone_from(&quorum.prefix);
        settings.credentials = quorum.credentials.clone();
        settings.on_empty_store = quorum.on_empty_store;
        settings.record = quorum.record;
        settings.longest_ttl = answer::with_drift(quorum.longest_ttl);
        let nodes = Arc::new(Nodes::start(&Arc::new(settings), quorum.node_timeout, quorum.nodes));
        let (health_sender, health) = watch::channel(Health::unavailable("not connected yet"));
        let watching = (Arc::clone(&nodes), health_sender);
        let watching = supervise("redlock: health", watching, |(nodes, health)| {
            health::watch_over(nodes, health).boxed()
        });
        let inner = Arc::new(Shared {
            nodes,
            credentials: quorum.credentials,
            prefix: quorum.prefix,
            longest_ttl: answer::with_drift(quorum.longest_ttl),
            health,
            _watching: AbortOnDropHandle::new(watching),
        });
        Self { inner }
    }

    /// Uses these credentials for each new connection. Open connections stay.
    pub fn set_credentials(&self, access: Access) {
        self.inner.credentials.replace(access);
    }

    /// One namespace of this store, for this replica.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<Redlock> {
        let notifications = Arc::new(NotificationSender::default());
        let core = Arc::new(Core {
            base: format!("{}:{namespace}:", self.inner.prefix).into(),
            shared: Arc::clone(&self.inner),
            waiting: Waiting::new(Arc::clone(&notifications)),
            watchers: Watchers::default(),
            notifications,
            unreadable: Unreadable::default(),
        });
        let listeners = (0..self.inner.nodes.all.len()).map(|node| {
            supervise("redlock: messages", Arc::downgrade(&core), move |core| {
                receive(Weak::clone(core), node).boxed()
            })
        });
        let others = [
            supervise("redlock: expiry", Arc::downgrade(&core), |core| {
                waiting::notify_at_expiry(Weak::clone(core)).boxed()
            }),
            supervise("redlock: unused names", Arc::downgrade(&core), |core| {
                names::forget(Weak::clone(core)).boxed()
            }),
        ];
        let tasks = listeners.chain(others).map(AbortOnDropHandle::new).collect();
        Arc::new(Redlock {
            core,
            tasks,
            closed: AtomicBool::new(false),
        })
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("prefix", &self.inner.prefix)
            .finish_non_exhaustive()
    }
}

/// Receives a node's published messages until the namespace is closed.
async fn receive(core: Weak<Core>, node: usize) {
    let Some((subscriptions, channel)) = core
        .upgrade()
        .map(|core| (core.shared.nodes.all[node].subscriptions.clone(), core.channel()))
    else {
        return;
    };
    let Ok(mut events) = subscriptions.listen(channel).await else {
        return;
    };
    while let Some(event) = events.recv().await {
        let Some(core) = core.upgrade() else { return };
        match event {
            SubscriptionEvent::Gap => {
                core.waiting.gap();
                core.watchers.gap();
            }
            SubscriptionEvent::Message(message) => core.on_message(&message),
        }
    }
}

/// The state of one namespace, used by the verbs and the background tasks.
pub struct Core {
    shared: Arc<Shared>,
    /// The prefix of keys and of the channel.
    base: Arc<str>,
    waiting: Waiting,
    watchers: Watchers,
    notifications: Arc<NotificationSender>,
    unreadable: Unreadable,
}

impl Core {
    fn channel(&self) -> String {
        format!("{}c", self.base)
    }

    /// Handles a message: `c` and the lock's name; or `r`, the token of the ended lease, a space
    /// and the name.
    fn on_message(&self, message: &[u8]) {
        let Some((kind, mut name)) = message.split_first() else {
            return;
        };
        let mut token = None;
        if let (b'r', Some(space)) = (kind, name.iter().position(|byte| *byte == b' ')) {
            token = std::str::from_utf8(&name[..space])
                .ok()
                .and_then(|token| token.parse().ok());
            name = &name[space + 1..];
        }
        let Some(lock) = std::str::from_utf8(name).ok().and_then(|name| LockName::new(name).ok()) else {
            return;
        };
        if *kind == b'r' {
            self.waiting.freed(&lock, token);
        }
        self.watchers.changed(&lock);
    }
}

/// A namespace on its nodes.
pub struct Redlock {
    core: Arc<Core>,
    tasks: Vec<AbortOnDropHandle<()>>,
    closed: AtomicBool,
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("base", &self.core.base)
            .finish_non_exhaustive()
    }
}

impl Redlock {
    fn open(&self) -> Result<&Core, BackendError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(not_sent("the namespace is closed"));
        }
        Ok(&self.core)
    }
}

fn check(claim: &NewClaim) -> Result<(), BackendError> {
    let unsupported = |what| Err(BackendError::Unsupported { what });
    if claim.mode != Mode::Exclusive {
        return unsupported("shared modes: majority votes on permits could grant more than the limit");
    }
    if claim.reentrant {
        return unsupported("re-entry: no node knows all holds of a claim");
    }
    Ok(())
}

#[async_trait]
impl Backend for Redlock {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let core = self.open()?;
        check(claim)?;
        // A waiter behind others asks no node. Without a majority it fails as those that ask.
        core.shared.nodes.check_majority_admitted()?;
        let action = match claim.wait_policy {
            WaitPolicy::Wait => core.waiting.acquire(lock, claim),
            WaitPolicy::NoWait => match core.waiting.try_once(lock, claim) {
                Some(permit) => NextAction::Contend(permit),
                None => {
                    let found = core.inspect(lock, Duration::ZERO).await?.holder;
                    return Ok(AcquireOutcome::Busy(found.map(|(holder, _)| Box::new(holder))));
                }
            },
        };
        match action {
            NextAction::Contend(permit) => core.settle(lock, claim, permit).await,
            NextAction::Wait(position) => {
                core.watchers.changed(lock);
                Ok(AcquireOutcome::Waiting(position))
            }
            NextAction::Refused(refusal) => Ok(AcquireOutcome::Refused(refusal)),
            NextAction::Unknown => Ok(AcquireOutcome::Gone),
        }
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let core = self.open()?;
        match core.waiting.retry(lock, claim.call) {
            NextAction::Contend(permit) => core.settle(lock, claim, permit).await,
            NextAction::Wait(position) => {
                core.shared.nodes.check_majority_admitted()?;
                Ok(AcquireOutcome::Waiting(position))
            }
            NextAction::Refused(refusal) => Ok(AcquireOutcome::Refused(refusal)),
            NextAction::Unknown => Ok(core
                .held_by(lock, claim)
                .await?
                .map_or(AcquireOutcome::Gone, AcquireOutcome::Held)),
        }
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let core = self.open()?;
        let mut released = match target {
            ReleaseTarget::Call(_, call) => match core.waiting.release(lock, call) {
                // No node knows of this call.
                Some(false) => {
                    core.watchers.changed(lock);
                    let released = Released::Ended(Cause::Cancelled);
                    return Ok(released.into());
                }
                waited => core.end(lock, target).await.map(|released| match released {
                    Released::Nothing if waited.is_some() => Released::Ended(Cause::Cancelled),
                    released => released,
                })?,
            },
            _ => core.end(lock, target).await?,
        };
        if let (Released::EndedBefore(Cause::Undone), ReleaseTarget::Call(..)) = (released, target) {
            released = Released::Nothing;
        }
        let ended = matches!(released, Released::Ended(_) | Released::EndedBefore(_));
        let next = match next {
            Some(next) if ended => core.promote_next(lock, next).await,
            _ => None,
        };
        if next.is_none() && matches!(released, Released::Ended(cause) if cause != Cause::Cancelled) {
            core.waiting.freed(lock, None);
        }
        core.watchers.changed(lock);
        Ok(ReleaseOutcome {
            released,
            next,
            ..released.into()
        })
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        self.open()?.extend(lease, ttl).await
    }

    async fn inspect(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, BackendError> {
        self.open()?.queue(lock, limit).await
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        self.open()?.list(prefix, &page).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        self.core.notifications.open()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        watching::watch(Arc::clone(&self.core), lock.clone())
    }

    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        let nodes = &self.open()?.shared.nodes;
        let matching: Vec<_> = nodes
            .all
            .iter()
            .filter(|member| node.is_none_or(|node| node == member.name))
            .collect();
        if matching.is_empty() {
            return Err(BackendError::Unsupported {
                what: "admitting a node that is none of this store's nodes",
            });
        }
        let all = join_all(matching.iter().map(|member| member.node.admit())).await;
        // A request for all nodes succeeds if any node could be reached.
        match (node, all.iter().any(Result::is_ok)) {
            (None, true) => Ok(()),
            _ => all.into_iter().collect(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "redlock",
            guarantee: Guarantee::Ap,
            sharing: false,
            reentry: false,
            remembers_requests: false,
            updates_metadata: false,
            shared: true,
            global_order: false,
            recheck: Some(RECHECK),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.core.shared.health.clone()
    }

    fn nodes(&self) -> Vec<(String, Health)> {
        let nodes = self.core.shared.nodes.all.iter();
        nodes
            .map(|member| (member.name.clone(), member.node.health().borrow().clone()))
            .collect()
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.core.notifications.close();
        self.tasks.iter().for_each(AbortOnDropHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis_server::settings::connection_info;

    /// A namespace on three nodes that cannot be reached.
    pub fn unreachable() -> Arc<Redlock> {
        let nodes = (1..=3).map(|port| connection_info(&format!("redis://127.0.0.1:{port}")).unwrap());
        Store::open(Quorum::new(nodes.collect())).namespace(&Namespace::new("n").unwrap())
    }
}
