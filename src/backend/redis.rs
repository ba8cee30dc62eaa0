//! A Redis that the team runs: standalone, Sentinel or Cluster. AP.
//!
//! One hash per lock and one Lua script per verb ([`scripts`]; the layout stands in `prelude.lua`).
//! Redis' own clock runs the leases, published messages wake the waiters, and a beat per lock keeps
//! this replica's waiters alive. Where Redis may have lost what was granted, nothing is granted for
//! the longest TTL ([`crate::backend::redis_server::marker`]).
//!
//! - [`ask`], [`answer`]: a verb's arguments, and what its script returns.
//! - [`waiting`]: this replica's waiting claims, and their beat.
//! - [`notifications`], [`watching`]: published messages, for waiters and for people.
//! - [`index`]: the names of the locks in use.

pub mod answer;
pub mod ask;
pub mod index;
pub mod scripts;
pub mod waiting;
pub mod notifications;
pub mod watching;

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout};

use crate::backend::redis_server::failure::{away, broken, unsent};
use crate::backend::redis_server::subscriptions::Subscriptions;
use crate::backend::redis_server::credentials::Access;
use crate::backend::redis_server::script::{Answer, Script};
use crate::backend::redis_server::settings::Settings;
use crate::backend::redis_server::topology::{StepRequirements, Topology};
use crate::backend::redis_server::notifications::NotificationSender;
use crate::backend::{
    Backend, BackendError, ReleaseOutcome, Guarantee, Health, ReleaseTarget, LockPage, InspectLimit, NewClaim, Capabilities, PageRequest, AcquireOutcome,
    RenewOutcome, WatchEvent, Notification,
};
use crate::claim::Queue;
use crate::name::{LeaseKey, LockName, Namespace, Ttl};
use ask::KeySpace;
use index::Index;
use waiting::Waiting;

/// How many calls may purge alone before one finds a lock purged: enough for a million holders.
const PURGES: usize = 50_000;
/// How often a queue is read from its start where it changes in between.
const LOOKS: usize = 3;
/// How much longer than its own step a call waits until its lock's name is in the index.
const NAMING: Duration = Duration::from_millis(100);

/// The servers that namespaces share: one set of connections.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Shared>,
}

struct Shared {
    settings: Arc<Settings>,
    topology: Arc<Topology>,
    hub: Subscriptions,
}

impl Store {
    /// Begins to reach the servers; the health of a namespace says when they are there.
    ///
    /// Must be called within a tokio runtime.
    pub fn open(settings: Settings) -> Self {
        // Only the first installation counts, and every other part of the program installs the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let settings = Arc::new(settings);
        let topology = Arc::new(Topology::start(&settings, scripts::ALL));
        let hub = Subscriptions::start(Arc::clone(&settings), &topology);
        let inner = Arc::new(Shared {
            settings,
            topology,
            hub,
        });
        Self { inner }
    }

    /// Lets each new connection show this from now on. Open ones stay.
    pub fn prove_by(&self, access: Access) {
        self.inner.settings.proof.replace(access);
    }

    /// One namespace of this store, as one replica sees it.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<Redis> {
        let space = Arc::new(KeySpace::new(&self.inner.settings.prefix, namespace));
        let (notifications, heard) = NotificationSender::new();
        let notifications = Arc::new(notifications);
        let core = Arc::new(Core {
            shared: Arc::clone(&self.inner),
            waiting: Waiting::default(),
            index: Index::new(&space),
            space,
            notifications,
        });
        let tasks = vec![
            tokio::spawn(notifications::hear(Arc::downgrade(&core))),
            tokio::spawn(waiting::beat(Arc::downgrade(&core))),
            tokio::spawn(index::tidy(Arc::downgrade(&core))),
        ];
        Arc::new(Redis {
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
            .field("prefix", &self.inner.settings.prefix)
            .finish()
    }
}

/// What the verbs of one namespace, and the tasks behind them, work with.
pub struct Core {
    shared: Arc<Shared>,
    space: Arc<KeySpace>,
    waiting: Waiting,
    notifications: Arc<NotificationSender>,
    index: Index,
}

impl Core {
    async fn call(
        &self,
        script: &'static Script,
        lock: &LockName,
        args: &[Vec<u8>],
        needs: StepRequirements,
    ) -> Result<Answer, BackendError> {
        let key = self.space.key(lock);
        for _ in 0..PURGES {
            let answer = self.shared.topology.call(script, &key, args, needs).await?;
            if !answer::is_word(&answer.value, "again") {
                return Ok(answer);
            }
        }
        Err(unsent("the lock is being purged"))
    }

    fn may_grant(&self, lock: &LockName) -> bool {
        let key = self.space.key(lock);
        self.shared.topology.may_grant(&key).is_ok()
    }

    /// A step on a lock, and beside it the lock's name into the index. In a Cluster that is another
    /// server's, which nobody waits for long.
    async fn named<T>(&self, lock: &LockName, step: impl Future<Output = T>) -> T {
        let (mut step, mut naming) = (pin!(step), pin!(self.index.name(self, lock)));
        let both = async {
            tokio::select! {
                answer = &mut step => {
                    let _ = timeout(NAMING, naming).await;
                    answer
                }
                () = &mut naming => step.await,
            }
        };
        // A select that is told to let others go first has not sent the step, and those behind it overtake it.
        unconstrained(both).await
    }

    /// The queue of a lock, and how long it has had no claim. It is read in parts; of one that changes all the
    /// while the first part is shown, with all counts.
    async fn inspect(&self, lock: &LockName, most: InspectLimit, watching: Duration) -> Result<answer::InspectAnswer, BackendError> {
        let mut fewest = None;
        for _ in 0..LOOKS {
            let mut look = self.look_behind(lock, most, watching, None).await?;
            while let Some(first) = look.as_mut() {
                let missing = first.missing(most);
                if missing == (InspectLimit { holders: 0, waiters: 0 }) {
                    return look.ok_or_else(|| broken("no queue"));
                }
                fewest.get_or_insert_with(|| first.clone());
                match self.look_behind(lock, missing, watching, Some(first)).await? {
                    Some(more) if more.is_empty() => return Err(broken("a queue has fewer claims than it counts")),
                    Some(more) => first.extend(more),
                    None => look = None,
                }
            }
        }
        fewest.ok_or_else(|| broken("no queue"))
    }

    /// What one script may show behind what was seen; nothing if the queue is another one now.
    async fn look_behind(
        &self,
        lock: &LockName,
        most: InspectLimit,
        watching: Duration,
        seen: Option<&answer::InspectAnswer>,
    ) -> Result<Option<answer::InspectAnswer>, BackendError> {
        let args = self.space.inspect(lock, most, watching, seen);
        let answer = self.call(&scripts::LOOK, lock, &args, StepRequirements::Nothing).await?;
        if answer::is_word(&answer.value, "moved") {
            return Ok(None);
        }
        answer::inspect(answer.value).map(Some)
    }
}

/// A namespace in Redis.
pub struct Redis {
    core: Arc<Core>,
    heard: Mutex<Option<mpsc::Receiver<Notification>>>,
    tasks: Vec<JoinHandle<()>>,
    closed: AtomicBool,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("space", &self.core.space).finish()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Redis {
    fn open(&self) -> Result<&Core, BackendError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(unsent("the namespace is closed"));
        }
        Ok(&self.core)
    }

    async fn step(
        &self,
        script: &'static Script,
        lock: &LockName,
        claim: &NewClaim,
        args: Vec<Vec<u8>>,
    ) -> Result<AcquireOutcome, BackendError> {
        let core = self.open()?;
        let sent = Instant::now();
        let answer = core.call(script, lock, &args, StepRequirements::Grant).await?;
        let (place, seen) = answer::place(answer.value, claim, sent)?;
        // A grant that may be lost with its server is none. Whoever asked takes it back, or asks again.
        if let (AcquireOutcome::Held(_), Some(reason)) = (&place, answer.unconfirmed) {
            return Err(away(reason));
        }
        match (&place, seen) {
            (AcquireOutcome::Waiting(ahead), Some(seen)) => core.waiting.add(lock, claim, *ahead, seen),
            _ => core.waiting.remove(lock, &claim.id, claim.call),
        }
        Ok(place)
    }
}

#[async_trait]
impl Backend for Redis {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let core = self.open()?;
        let args = core.space.acquire(lock, claim);
        let _entering = core.waiting.entering(claim.id);
        let step = self.step(&scripts::ENTER, lock, claim, args);
        core.named(lock, step).await
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let args = self.core.space.promote(lock, claim);
        self.step(&scripts::TAKE_UP, lock, claim, args).await
    }

    async fn release(
        &self,
        lock: &LockName,
        who: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let core = self.open()?;
        if let ReleaseTarget::Call(id, call) = who {
            core.waiting.remove(lock, id, call);
        }
        // A store that may not grant still takes back: then the next has to ask for itself.
        let next = next.filter(|_| core.may_grant(lock));
        let sent = Instant::now();
        let args = core.space.release(lock, who, next);
        let needs = next.map_or(StepRequirements::Nothing, |_| StepRequirements::Replicas);
        let answer = core.call(&scripts::LEAVE, lock, &args, needs).await?;
        let (mut departure, is_unknown) = answer::departure(answer.value, next, sent)?;
        if let Some(next) = next.filter(|_| is_unknown) {
            core.notifications.send(Notification::Next(lock.clone(), next.id));
        }
        if let (Some(next), Some(_), Some(_)) = (next, &departure.next, answer.unconfirmed) {
            // It asks for itself: the same grant, and once more whether the replicas have it.
            departure.next = None;
            core.notifications.send(Notification::Next(lock.clone(), next.id));
        }
        if let (Some(next), Some(_)) = (next, &departure.next) {
            core.waiting.remove(lock, &next.id, next.call);
        }
        Ok(departure)
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let core = self.open()?;
        let lock = &lease.lock.name;
        let args = core.space.renew(lease, ttl);
        let call = core.call(&scripts::RENEW, lock, &args, StepRequirements::Grant);
        let answer = core.named(lock, call).await?;
        let renewal = answer::renewal(answer.value, lease)?;
        match (renewal, answer.unconfirmed) {
            // It lives on at this server, and nobody was told so.
            (RenewOutcome::Renewed(_), Some(reason)) => Err(away(reason)),
            (renewal, _) => Ok(renewal),
        }
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        Ok(self.open()?.inspect(lock, most, Duration::ZERO).await?.queue)
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        let core = self.open()?;
        core.index.list(core, prefix, &page).await
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
        self.open()?.shared.topology.admit(node).await
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "redis",
            guarantee: Guarantee::Ap,
            sharing: true,
            reentry: true,
            remembers_requests: true,
            global_order: true,
            recheck: None,
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.core.shared.topology.health()
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.core.notifications.close();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
