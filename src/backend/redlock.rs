//! RedLock: independent Redis masters of which a majority decides. AP, exclusive claims alone.
//!
//! Every node votes for one attempt at a time, with a number that it has never handed out before; the
//! largest number of a majority is the token, so tokens rise whatever the clocks say. A node that
//! restarted or lost its data votes again only when every lease that it may have forgotten has
//! ended ([`crate::backend::redis_server::marker`]), and what was sent to it before counts for nothing.
//! `tests/model` explores the protocol.
//!
//! - [`scripts`], [`answer`]: what a node does, and what it says.
//! - [`voters`], [`clock`]: all nodes at once, and what their clocks say.
//! - [`attempt`], [`renewing`], [`ending`]: a lease's beginning, life and end at a majority.
//! - [`waiting`]: this replica's waiters, of whom one contends.
//! - [`looking`], [`watching`]: what people see.

pub mod answer;
pub mod attempt;
pub mod clock;
pub mod ending;
pub mod looking;
pub mod renewing;
pub mod scripts;
pub mod voters;
pub mod waiting;
pub mod watching;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{join_all, select_all};
use futures::stream::{self, BoxStream, StreamExt};
use redis::ConnectionInfo;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::backend::redis_server::failure::unsent;
use crate::backend::redis_server::hub::Heard;
use crate::backend::redis_server::node::jitter;
use crate::backend::redis_server::settings::{FirstStart, Servers, Settings};
use crate::backend::redis_server::wakes::Wakes;
use crate::backend::{
    Backend, BackendError, Departure, Found, Grant, Guarantee, Health, Leaving, Listing, Most, NewClaim, Offers, Page,
    Patience, Place, Renewal, Seen, Wake,
};
use crate::claim::{Cause, Queue};
use crate::name::{LeaseKey, LockName, Mode, Namespace, Ttl};
use attempt::{Attempted, InTheWay};
use voters::Voters;
use waiting::{Contending, Turn, Waiting};
use watching::Watchers;

/// How long a lost wake may stay unnoticed.
const RECHECK: Duration = Duration::from_secs(1);
/// How often attempts that are in each other's way are repeated at once, and the pause between.
const REPEATS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(12);

/// The nodes, and how they are used.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The masters: 3, 5 or 7.
    pub nodes: Vec<ConnectionInfo>,
    /// What every key begins with.
    pub prefix: String,
    /// What a node without a marker means.
    pub first_start: FirstStart,
    /// The longest TTL that any namespace of this store grants.
    pub longest_ttl: Duration,
    /// How long a node has for a vote.
    pub node_timeout: Duration,
}

impl Setup {
    /// These nodes, with the defaults.
    pub fn new(nodes: Vec<ConnectionInfo>) -> Self {
        Self {
            nodes,
            prefix: "fencepost".into(),
            first_start: FirstStart::default(),
            longest_ttl: Duration::from_secs(24 * 3600),
            node_timeout: Duration::from_millis(200),
        }
    }
}

/// The nodes that namespaces share: one set of connections.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Shared>,
}

/// What all namespaces of a store use.
pub struct Shared {
    voters: Arc<Voters>,
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
    pub fn open(setup: Setup) -> Self {
        // Only the first installation counts, and every other part of the program installs the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut settings = Settings::new(Servers::Cluster(Vec::new()));
        settings.prefix.clone_from(&setup.prefix);
        settings.first_start = setup.first_start;
        settings.longest_ttl = answer::asked(setup.longest_ttl);
        let voters = Arc::new(Voters::start(&Arc::new(settings), setup.node_timeout, setup.nodes));
        let (told, health) = watch::channel(Health::Away {
            reason: "not connected yet".into(),
        });
        let watching = tokio::spawn(watch_over(Arc::clone(&voters), told));
        let inner = Arc::new(Shared {
            voters,
            prefix: setup.prefix,
            longest_ttl: setup.longest_ttl,
            health,
            watching,
        });
        Self { inner }
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
        });
        let ears = (0..self.inner.voters.all.len()).map(|node| tokio::spawn(hear(Arc::downgrade(&core), node)));
        let mut tasks: Vec<_> = ears.collect();
        tasks.push(tokio::spawn(waiting::alarm(Arc::downgrade(&core))));
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

/// Sums the nodes' health up, and logs what happens to each.
async fn watch_over(voters: Arc<Voters>, told: watch::Sender<Health>) {
    let mut all: Vec<watch::Receiver<Health>> = voters.all.iter().map(|voter| voter.node.health()).collect();
    let mut before: Vec<Option<Health>> = vec![None; all.len()];
    loop {
        let now: Vec<Health> = all.iter_mut().map(|one| one.borrow_and_update().clone()).collect();
        for ((voter, was), is) in voters.all.iter().zip(&mut before).zip(&now) {
            if was.as_ref() != Some(is) {
                let node = &voter.name;
                match is {
                    Health::Serving => tracing::info!(%node, "the node votes"),
                    Health::Quarantined { until, reason } => {
                        let left = until.saturating_duration_since(tokio::time::Instant::now());
                        tracing::warn!(%node, ?left, %reason, "the node is in quarantine");
                    }
                    Health::Away { reason } => tracing::warn!(%node, %reason, "the node is away"),
                }
                *was = Some(is.clone());
            }
        }
        let sum = voters.sum(&now);
        told.send_if_modified(|old| {
            let changed = *old != sum;
            *old = sum;
            changed
        });
        let changes = all.iter_mut().map(|one| Box::pin(one.changed()));
        if select_all(changes).await.0.is_err() {
            return;
        }
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
}

/// What contending came to.
enum Contended {
    Held(Grant),
    Busy(InTheWay),
    Left,
}

impl Core {
    fn channel(&self) -> String {
        format!("{}c", self.base)
    }

    /// A message: `r` or `c`, and the lock's name.
    fn told(&self, message: &[u8]) {
        let Some((kind, name)) = message.split_first() else {
            return;
        };
        let Some(lock) = std::str::from_utf8(name).ok().and_then(|name| LockName::new(name).ok()) else {
            return;
        };
        if *kind == b'r' {
            self.waiting.freed(&lock);
        }
        self.watchers.changed(&lock);
    }

    /// Contends until somebody is seen to hold, or attempts have been in each other's way too often.
    async fn contend(
        &self,
        lock: &LockName,
        claim: &NewClaim,
        contending: &mut Contending<'_>,
    ) -> Result<Contended, BackendError> {
        let mut repeats = 0;
        loop {
            let in_the_way = match self.attempt(lock, claim, contending.round).await? {
                Attempted::Held(grant) => return Ok(Contended::Held(grant)),
                Attempted::Left => return Ok(Contended::Left),
                Attempted::Busy(in_the_way) => in_the_way,
            };
            repeats += 1;
            if in_the_way.holder.is_some() || repeats > REPEATS {
                return Ok(Contended::Busy(in_the_way));
            }
            sleep(jitter(PAUSE * repeats)).await;
            contending.next_round();
        }
    }

    /// Lets the one whose turn it is contend, and says where it stands then.
    async fn settle(
        &self,
        lock: &LockName,
        claim: &NewClaim,
        mut contending: Contending<'_>,
    ) -> Result<Place, BackendError> {
        let place = match self.contend(lock, claim, &mut contending).await? {
            Contended::Held(grant) => {
                contending.is_over(Some(answer::asked(grant.ttl)));
                Place::Held(grant)
            }
            Contended::Left => {
                contending.is_over(None);
                Place::Left
            }
            Contended::Busy(in_the_way) if claim.patience == Patience::Wait => {
                // Where nobody holds, it is somebody's attempt that ends at once.
                let frees_in = in_the_way.frees_in.filter(|_| in_the_way.holder.is_some());
                match contending.waits(claim, Some(frees_in.unwrap_or_else(|| jitter(2 * PAUSE)))) {
                    Ok(ahead) => Place::Waiting(ahead),
                    Err(refusal) => Place::Refused(refusal),
                }
            }
            Contended::Busy(in_the_way) => {
                contending.is_over(None);
                Place::Busy(in_the_way.holder.map(Box::new))
            }
        };
        self.watchers.changed(lock);
        Ok(place)
    }

    /// The grant of a call that holds already.
    async fn held_by(&self, lock: &LockName, claim: &NewClaim) -> Result<Option<Grant>, BackendError> {
        let look = self.look(lock, Duration::ZERO).await?;
        let mine = look.holder.filter(|(_, call)| *call == claim.call);
        Ok(mine.map(|(holder, _)| Grant {
            claim: claim.id,
            kind: claim.mode.into(),
            secret: claim.secret,
            token: holder.token,
            owner: holder.owner,
            ttl: holder.remaining,
            waited: Duration::ZERO,
            holds: 1,
        }))
    }

    async fn hand_over(&self, lock: &LockName, next: &NewClaim) -> Option<Grant> {
        let Turn::Contend(contending) = self.waiting.again(lock, next.call) else {
            return None;
        };
        match self.settle(lock, next, contending).await {
            Ok(Place::Held(grant)) => Some(grant),
            _ => None,
        }
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
            core.waiting.freed(lock);
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
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner).take();
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

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.core.wakes.close();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
