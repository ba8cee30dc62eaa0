//! RedLock: independent Redis masters of which a majority decides. AP, exclusive claims alone.
//!
//! Every node votes for one attempt at a time, with a number that it has never handed out before; the
//! largest number of a majority is the token, so tokens rise whatever the clocks say. A node that
//! restarted or lost its data votes again only when every lease that it may have forgotten has
//! ended ([`crate::backend::redis_server::marker`]), and what was sent to it before counts for nothing.
//! `tests/model` explores the protocol.
//!
//! - [`scripts`], [`answer`]: what a node does, and what it says.
//! - [`voters`], [`health`], [`clock`]: all nodes at once, how they are, and what their clocks say.
//! - [`attempt`], [`renewing`], [`ending`]: a lease's beginning, life and end at a majority.
//! - [`waiting`], [`contending`]: this replica's waiters, of whom one contends.
//! - [`looking`], [`names`], [`watching`]: what people see.

pub mod answer;
pub mod attempt;
pub mod clock;
pub mod contention;
pub mod release;
pub mod health;
pub mod inspect;
pub mod names;
pub mod renew;
pub mod scripts;
pub mod nodes;
pub mod waiting;
pub mod watching;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::backend::redis_server::failure::unsent;
use crate::backend::redis_server::subscriptions::SubscriptionEvent;
use crate::backend::redis_server::credentials::{Access, Credentials};
use crate::backend::redis_server::settings::{Quorum, Servers, Settings};
use crate::backend::redis_server::unreadable::Unreadable;
use crate::backend::redis_server::notifications::NotificationSender;
use crate::backend::{
    Backend, BackendError, ReleaseOutcome, Released, Guarantee, Health, ReleaseTarget, LockPage, InspectLimit, NewClaim, Capabilities, PageRequest,
    WaitPolicy, AcquireOutcome, RenewOutcome, WatchEvent, Notification,
};
use crate::claim::{Cause, Queue};
use crate::name::{LeaseKey, LockName, Mode, Namespace, Ttl};
use nodes::Nodes;
use waiting::{NextAction, Waiting};
use watching::Watchers;

/// How long a lost wake may stay unnoticed.
const RECHECK: Duration = Duration::from_secs(1);

/// The nodes that namespaces share: one set of connections.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Shared>,
}

/// What all namespaces of a store use.
pub struct Shared {
    voters: Arc<Nodes>,
    proof: Credentials,
    prefix: String,
    longest_ttl: Duration,
    health: watch::Receiver<Health>,
    watching: JoinHandle<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Store {
    /// Begins to reach the nodes; the health of a namespace says when a majority is there.
    ///
    /// Must be called within a tokio runtime.
    pub fn open(quorum: Quorum) -> Self {
        // Only the first installation counts, and every other part of the program installs the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut settings = Settings::new(Servers::Cluster(Vec::new()));
        settings.prefix.clone_from(&quorum.prefix);
        settings.proof = quorum.proof.clone();
        settings.first_start = quorum.first_start;
        settings.longest_ttl = answer::asked(quorum.longest_ttl);
        let voters = Arc::new(Nodes::start(&Arc::new(settings), quorum.node_timeout, quorum.nodes));
        let (told, health) = watch::channel(Health::Unavailable {
            reason: "not connected yet".into(),
        });
        let watching = tokio::spawn(health::watch_over(Arc::clone(&voters), told));
        let inner = Arc::new(Shared {
            voters,
            proof: quorum.proof,
            prefix: quorum.prefix,
            longest_ttl: quorum.longest_ttl,
            health,
            watching,
        });
        Self { inner }
    }

    /// Lets each new connection show this from now on. Open ones stay.
    pub fn prove_by(&self, access: Access) {
        self.inner.proof.replace(access);
    }

    /// One namespace of this store, as one replica sees it.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<Redlock> {
        let (notifications, heard) = NotificationSender::new();
        let notifications = Arc::new(notifications);
        let core = Arc::new(Core {
            base: format!("{}:{namespace}:", self.inner.prefix).into(),
            shared: Arc::clone(&self.inner),
            waiting: Waiting::new(Arc::clone(&notifications)),
            watchers: Watchers::default(),
            notifications,
            unreadable: Unreadable::default(),
        });
        let ears = (0..self.inner.voters.all.len()).map(|node| tokio::spawn(hear(Arc::downgrade(&core), node)));
        let mut tasks: Vec<_> = ears.collect();
        tasks.push(tokio::spawn(waiting::alarm(Arc::downgrade(&core))));
        tasks.push(tokio::spawn(names::forget(Arc::downgrade(&core))));
        Arc::new(Redlock {
            core,
            heard: Mutex::new(Some(heard)),
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

/// Hears what a node publishes, until the namespace is closed.
async fn hear(core: Weak<Core>, node: usize) {
    let Some((hub, channel)) = core
        .upgrade()
        .map(|core| (core.shared.voters.all[node].hub.clone(), core.channel()))
    else {
        return;
    };
    let Ok(mut heard) = hub.listen(channel).await else {
        return;
    };
    while let Some(heard) = heard.recv().await {
        let Some(core) = core.upgrade() else { return };
        match heard {
            SubscriptionEvent::Gap => {
                core.waiting.gap();
                core.watchers.gap();
            }
            SubscriptionEvent::Message(message) => core.told(&message),
        }
    }
}

/// What the verbs of one namespace, and the tasks behind them, work with.
pub struct Core {
    shared: Arc<Shared>,
    /// What keys and the channel begin with.
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

    /// A message: `c` and the lock's name; or `r`, the number of the lease that ended, a space and the name.
    fn told(&self, message: &[u8]) {
        let Some((kind, mut name)) = message.split_first() else {
            return;
        };
        let mut number = None;
        if let (b'r', Some(space)) = (kind, name.iter().position(|byte| *byte == b' ')) {
            number = std::str::from_utf8(&name[..space])
                .ok()
                .and_then(|number| number.parse().ok());
            name = &name[space + 1..];
        }
        let Some(lock) = std::str::from_utf8(name).ok().and_then(|name| LockName::new(name).ok()) else {
            return;
        };
        if *kind == b'r' {
            self.waiting.freed(&lock, number);
        }
        self.watchers.changed(&lock);
    }
}

/// A namespace over its nodes.
pub struct Redlock {
    core: Arc<Core>,
    heard: Mutex<Option<mpsc::Receiver<Notification>>>,
    tasks: Vec<JoinHandle<()>>,
    closed: AtomicBool,
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("base", &self.core.base)
            .finish_non_exhaustive()
    }
}

impl Drop for Redlock {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Redlock {
    fn open(&self) -> Result<&Core, BackendError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(unsent("the namespace is closed"));
        }
        Ok(&self.core)
    }
}

fn check(claim: &NewClaim) -> Result<(), BackendError> {
    let unsupported = |what| Err(BackendError::Unsupported { what });
    if claim.mode != Mode::Exclusive {
        return unsupported("shared modes: majorities of votes for permits would let too many hold");
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
        let turn = match claim.wait_policy {
            WaitPolicy::Wait => core.waiting.acquire(lock, claim),
            WaitPolicy::Try => match core.waiting.try_once(lock, claim) {
                Some(contending) => NextAction::Contend(contending),
                None => {
                    let found = core.inspect(lock, Duration::ZERO).await?.holder;
                    return Ok(AcquireOutcome::Busy(found.map(|(holder, _)| Box::new(holder))));
                }
            },
        };
        match turn {
            NextAction::Contend(contending) => core.settle(lock, claim, contending).await,
            NextAction::Wait(ahead) => {
                core.watchers.changed(lock);
                Ok(AcquireOutcome::Waiting(ahead))
            }
            NextAction::Refused(refusal) => Ok(AcquireOutcome::Refused(refusal)),
            NextAction::Unknown => Ok(AcquireOutcome::Gone),
        }
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let core = self.open()?;
        match core.waiting.again(lock, claim.call) {
            NextAction::Contend(contending) => core.settle(lock, claim, contending).await,
            NextAction::Wait(ahead) => Ok(AcquireOutcome::Waiting(ahead)),
            NextAction::Refused(refusal) => Ok(AcquireOutcome::Refused(refusal)),
            NextAction::Unknown => Ok(core.held_by(lock, claim).await?.map_or(AcquireOutcome::Gone, AcquireOutcome::Held)),
        }
    }

    async fn release(
        &self,
        lock: &LockName,
        who: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let core = self.open()?;
        let mut found = match who {
            ReleaseTarget::Call(_, call) => match core.waiting.release(lock, call) {
                // No node has ever heard of it.
                Some(false) => {
                    core.watchers.changed(lock);
                    let found = Released::Ended(Cause::Left);
                    return Ok(ReleaseOutcome { found, next: None });
                }
                waited => core.end(lock, who).await.map(|found| match found {
                    Released::Nothing if waited.is_some() => Released::Ended(Cause::Left),
                    found => found,
                })?,
            },
            _ => core.end(lock, who).await?,
        };
        if let (Released::EndedBefore(Cause::TakenBack), ReleaseTarget::Call(..)) = (found, who) {
            found = Released::Nothing;
        }
        let ended = matches!(found, Released::Ended(_) | Released::EndedBefore(_));
        let next = match next {
            Some(next) if ended => core.hand_over(lock, next).await,
            _ => None,
        };
        if next.is_none() && matches!(found, Released::Ended(cause) if cause != Cause::Left) {
            core.waiting.freed(lock, None);
        }
        core.watchers.changed(lock);
        Ok(ReleaseOutcome { found, next })
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        self.open()?.lengthen(lease, ttl).await
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        self.open()?.queue(lock, most).await
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        self.open()?.list(prefix, &page).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner).take();
        let notifications = Arc::clone(&self.core.notifications);
        match heard {
            Some(heard) => notifications.stream(heard),
            None => stream::empty().boxed(),
        }
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        watching::watch(Arc::clone(&self.core), lock.clone())
    }

    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        let voters = &self.open()?.shared.voters;
        let named: Vec<_> = voters
            .all
            .iter()
            .filter(|voter| node.is_none_or(|node| node == voter.name))
            .collect();
        if named.is_empty() {
            return Err(BackendError::Unsupported {
                what: "admitting a node that is none of this store's nodes",
            });
        }
        let all = join_all(named.iter().map(|voter| voter.node.admit())).await;
        // Of all nodes those that can be reached are admitted.
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
            global_order: false,
            recheck: Some(RECHECK),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.core.shared.health.clone()
    }

    fn nodes(&self) -> Vec<(String, Health)> {
        let voters = self.core.shared.voters.all.iter();
        voters
            .map(|voter| (voter.name.clone(), voter.node.health().borrow().clone()))
            .collect()
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.core.notifications.close();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
