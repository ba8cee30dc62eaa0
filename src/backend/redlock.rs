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
pub mod config;
pub mod contending;
pub mod ending;
pub mod health;
pub mod looking;
pub mod names;
pub mod renewing;
pub mod scripts;
pub mod voters;
pub mod waiting;
pub mod watching;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::backend::redis_server::failure::unsent;
use crate::backend::redis_server::hub::Heard;
use crate::backend::redis_server::proof::{Access, Proof};
use crate::backend::redis_server::settings::{Quorum, Servers, Settings};
use crate::backend::redis_server::unreadable::Unreadable;
use crate::backend::redis_server::wakes::Wakes;
use crate::backend::{
    Backend, BackendError, Departure, Found, Guarantee, Health, Leaving, Listing, Most, NewClaim, Offers, Page,
    Patience, Place, Renewal, Seen, Wake,
};
use crate::claim::{Cause, Queue};
use crate::name::{LeaseKey, LockName, Mode, Namespace, Ttl};
use voters::Voters;
use waiting::{Turn, Waiting};
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
    voters: Arc<Voters>,
    proof: Proof,
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
        let voters = Arc::new(Voters::start(&Arc::new(settings), quorum.node_timeout, quorum.nodes));
        let (told, health) = watch::channel(Health::Away {
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
        let (wakes, heard) = Wakes::new();
        let wakes = Arc::new(wakes);
        let core = Arc::new(Core {
            base: format!("{}:{namespace}:", self.inner.prefix).into(),
            shared: Arc::clone(&self.inner),
            waiting: Waiting::new(Arc::clone(&wakes)),
            watchers: Watchers::default(),
            wakes,
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
            Heard::Gap => {
                core.waiting.gap();
                core.watchers.gap();
            }
            Heard::Message(message) => core.told(&message),
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
    wakes: Arc<Wakes>,
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
    heard: Mutex<Option<mpsc::Receiver<Wake>>>,
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
    async fn enter(&self, lock: &LockName, claim: &NewClaim) -> Result<Place, BackendError> {
        let core = self.open()?;
        check(claim)?;
        let turn = match claim.patience {
            Patience::Wait => core.waiting.enter(lock, claim),
            Patience::Try => match core.waiting.try_once(lock, claim) {
                Some(contending) => Turn::Contend(contending),
                None => {
                    let found = core.look(lock, Duration::ZERO).await?.holder;
                    return Ok(Place::Busy(found.map(|(holder, _)| Box::new(holder))));
                }
            },
        };
        match turn {
            Turn::Contend(contending) => core.settle(lock, claim, contending).await,
            Turn::Wait(ahead) => {
                core.watchers.changed(lock);
                Ok(Place::Waiting(ahead))
            }
            Turn::Refused(refusal) => Ok(Place::Refused(refusal)),
            Turn::Unknown => Ok(Place::Gone),
        }
    }

    async fn take_up(&self, lock: &LockName, claim: &NewClaim) -> Result<Place, BackendError> {
        let core = self.open()?;
        match core.waiting.again(lock, claim.call) {
            Turn::Contend(contending) => core.settle(lock, claim, contending).await,
            Turn::Wait(ahead) => Ok(Place::Waiting(ahead)),
            Turn::Refused(refusal) => Ok(Place::Refused(refusal)),
            Turn::Unknown => Ok(core.held_by(lock, claim).await?.map_or(Place::Gone, Place::Held)),
        }
    }

    async fn leave(
        &self,
        lock: &LockName,
        who: Leaving<'_>,
        next: Option<&NewClaim>,
    ) -> Result<Departure, BackendError> {
        let core = self.open()?;
        let mut found = match who {
            Leaving::Call(_, call) => match core.waiting.leave(lock, call) {
                // No node has ever heard of it.
                Some(false) => {
                    core.watchers.changed(lock);
                    let found = Found::Ended(Cause::Left);
                    return Ok(Departure { found, next: None });
                }
                waited => core.end(lock, who).await.map(|found| match found {
                    Found::Nothing if waited.is_some() => Found::Ended(Cause::Left),
                    found => found,
                })?,
            },
            _ => core.end(lock, who).await?,
        };
        if let (Found::EndedBefore(Cause::TakenBack), Leaving::Call(..)) = (found, who) {
            found = Found::Nothing;
        }
        let ended = matches!(found, Found::Ended(_) | Found::EndedBefore(_));
        let next = match next {
            Some(next) if ended => core.hand_over(lock, next).await,
            _ => None,
        };
        if next.is_none() && matches!(found, Found::Ended(cause) if cause != Cause::Left) {
            core.waiting.freed(lock, None);
        }
        core.watchers.changed(lock);
        Ok(Departure { found, next })
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<Renewal, BackendError> {
        self.open()?.lengthen(lease, ttl).await
    }

    async fn look(&self, lock: &LockName, most: Most) -> Result<Queue, BackendError> {
        self.open()?.queue(lock, most).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<Listing, BackendError> {
        self.open()?.list(prefix, &page).await
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        let heard = self.heard.lock().take();
        let wakes = Arc::clone(&self.core.wakes);
        match heard {
            Some(heard) => wakes.stream(heard),
            None => stream::empty().boxed(),
        }
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<Seen, BackendError>> {
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

    fn offers(&self) -> Offers {
        Offers {
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
        self.core.wakes.close();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
