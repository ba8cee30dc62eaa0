//! The record engine: a lock's queue (`crate::queue`) in a store that replaces one record by compare-and-set.
//!
//! Every server has the whole record of a lock, runs the verbs on a copy of it, and commits the copy if the record is
//! still what it was. The store decides nothing but that: [`store::RecordStore`] is all that is asked of it.
//!
//! # Words
//! - A lock is one *root* with numbered *parts*. The root has the claims, the newest ended holds, and what else a step
//!   needs; a part has 32 older ended holds, and is never changed.
//! - A *commit* replaces the root by one with another *version*, if the root has the version that the server expects,
//!   and within its *guards*: times of the lock's clock between which the verbs do what the server has computed, and a
//!   time of the store's clock after which it comes too late.
//! - A commit that was not answered is *settled*: the server finds out whether it took effect, or makes sure that it
//!   never will. A *fence write* is a commit that changes nothing but the version, for that purpose.
//! - A *reservation* lets a server that loses the races for a lock commit next ([`contention`]). A fence write gives
//!   up one that no verb needs any more.
//!
//! # A verb
//! Per lock, verbs run in the order in which they were called, in batches ([`worker`]). A batch runs on a copy of the
//! cached record at the estimated time of the lock's clock ([`draft`]): leases that have expired end first, then each
//! verb runs. If nothing has changed, a read shows whether the record is still the cached one, and the verbs are
//! answered; from another one too, if they change nothing on that. Otherwise the copy is committed, and they are answered
//! when it took effect. A refused commit brings the record that another server wrote, and the same verbs run again on
//! that. So each batch is one atomic step at the store's time: a wrong estimate costs a round trip, never a wrong answer.
//!
//! While the store's clock is behind the time of the last commit, the lock's clock stands still. A server that sees that
//! writes the record although nothing changed, and the lock's clock runs again from there.
//!
//! Tokens and ends of leases follow from the clocks that the commit was stamped with: `max(last token + 1, time)`, and
//! `clock + ttl`. Until then they are open ([`root`]), also in the root, whose readers compute them from its stamp.
//!
//! # Nine rules, and why
//! `tests/model/record.rs` explores the protocol, and what happens without each of them.
//!
//! 1. *Versions are random.* A lock that was removed and made anew would reach a counted version again, and a late
//!    commit would find the version that it expects.
//! 2. *The first write compares too:* there must be no root. Otherwise two servers that both know of none would both
//!    grant the lock.
//! 3. *Each commit has a latest time.* A late first write would find no root after the root that settled it was removed
//!    as idle. So: what is cached is younger (30 s) than a commit may be late (60 s), which is less than the time after
//!    which an idle root is removed (10 min).
//! 4. *The fence write.* An undo that finds nothing has not settled anything while an earlier commit of this server may
//!    still take effect from the version that is there: it writes all the same, so that the earlier one is refused.
//! 5. *Absence is not settled by presence.* A commit that expects no root is not dead because a root was found: that
//!    root may be about to be removed. Only a commit of this server, which makes the root young, settles it.
//! 6. *One cancel mark stays.* A try that takes the waiting claim of another call out leaves a mark of that call in the
//!    root. Otherwise that call would be told that its claim is gone, and would queue again.
//! 7. *A read that finds an expired lease commits its end before it answers.* Otherwise a step back of the store's clock
//!    would revive a lease whose end was shown.
//! 8. *`waited` counts to the first sending* of a commit. If it is sent again, the first copy may be the one that took
//!    effect, and its lease counts from then.
//! 9. *One commit in flight for a lock.* A second one, computed on the first, may take effect without it.
//!
//! # Servers
//! Each server raises a counter ([`liveness`]). The waiting claims of a server whose counter stands still are ended by
//! whoever commits on the lock next. Messages tell a server that its claim may be eligible, and the changes of the locks
//! that it watches. They may be lost: a server also reads the locks on which it waits once in a while, and when a lease
//! on them ends ([`tasks`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, broadcast, mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use self::liveness::Liveness;
use self::locks::Locks;
use self::root::LockRecord;
use self::store::{LockTime, RecordStore, ServerId, Stamp, StoreTime, Version};
use self::verb::{Answer, Verb};
use self::watching::Watchers;
use self::worker::Worker;
use crate::backend::cancel_marks::CancelMarks;
use crate::backend::failure::{broken, not_sent};
use crate::backend::notifications::{NotificationSender, told};
use crate::backend::unreadable::Unreadable;
use crate::backend::{
    AcquireOutcome, Backend, BackendError, Capabilities, Forced, Guarantee, Health, InspectLimit, LockPage, NewClaim,
    Notification, PageRequest, ReleaseOutcome, ReleaseTarget, RenewOutcome, StreamNumber, UpdateOutcome, WatchEvent,
};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Metadata, Ttl};

mod contention;
mod draft;
mod ends;
mod listing;
mod liveness;
mod local;
mod locks;
mod message;
mod root;
pub mod store;
mod tasks;
mod verb;
mod watching;
mod worker;

/// The maximum number of claims in a lock's queue, holders and waiters together: a root has them all.
pub const QUEUE_LIMIT: u32 = 1_000;
/// How many forced releases a slow listener may be behind.
const FORCED_BUFFER: usize = 1_024;
/// How long the end of a namespace waits for the commits in flight.
const CLOSE_WITHIN: Duration = Duration::from_secs(3);

/// What an engine is for.
#[derive(Debug, Clone, Copy)]
pub struct EngineSettings {
    /// The store's kind, as in the configuration.
    pub kind: &'static str,
    /// What the store guarantees.
    pub guarantee: Guarantee,
    /// This server, drawn when it opened the store ([`ServerId::random`]).
    pub server: ServerId,
}

/// The locks of one namespace in a [`RecordStore`].
#[derive(Debug)]
pub struct Engine {
    core: Arc<Core>,
    settings: EngineSettings,
    /// Ended with the engine.
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// What all tasks of an engine share.
#[derive(Debug)]
struct Core {
    store: Arc<dyn RecordStore>,
    server: ServerId,
    locks: Locks,
    liveness: Liveness,
    watchers: Watchers,
    /// The calls that were undone at this server.
    marks: Mutex<CancelMarks<Instant>>,
    notifications: NotificationSender,
    forced: broadcast::Sender<Forced>,
    unreadable: Unreadable,
    /// The store's clock when it was last heard of.
    heard: Mutex<Option<(StoreTime, Instant)>>,
    floor: AtomicU64,
    closed: AtomicBool,
    /// Whether this server's counter is removed. Locked during each beat, because a late one would make it anew.
    has_left: AsyncMutex<bool>,
    workers: TaskTracker,
    /// Cancelled when the workers must end.
    ended: CancellationToken,
}

impl Engine {
    /// Opens a namespace. Must be called within a tokio runtime.
    pub fn open(store: Arc<dyn RecordStore>, settings: EngineSettings) -> Arc<dyn Backend> {
        let server = settings.server;
        let core = Arc::new(Core {
            server,
            locks: Locks::new(store.poll()),
            liveness: Liveness::new(server),
            watchers: Watchers::default(),
            marks: Mutex::default(),
            notifications: NotificationSender::default(),
            forced: broadcast::channel(FORCED_BUFFER).0,
            unreadable: Unreadable::default(),
            heard: Mutex::default(),
            floor: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            has_left: AsyncMutex::default(),
            workers: TaskTracker::new(),
            ended: CancellationToken::new(),
            store,
        });
        Arc::new(Self {
            _tasks: tasks::start(&core),
            core,
            settings,
        })
    }

    fn ask(&self, lock: &LockName, verb: Verb) -> impl Future<Output = Result<Answer, BackendError>> + Send + use<> {
        self.core.ask(lock, verb)
    }
}

impl Core {
    /// Puts a verb into the queue of a lock at once; the returned future waits for its answer.
    fn ask(
        self: &Arc<Self>,
        lock: &LockName,
        verb: Verb,
    ) -> impl Future<Output = Result<Answer, BackendError>> + Send + use<> {
        let asked = (!self.closed.load(Ordering::Acquire)).then(|| self.submit(lock, verb));
        async move {
            match asked {
                Some(asked) => asked.answer().await,
                None => Err(not_sent("the namespace is closed")),
            }
        }
    }

    fn submit(self: &Arc<Self>, lock: &LockName, verb: Verb) -> verb::Asked {
        let (asked, idle) = self.locks.submit(lock, verb);
        if let Some(entry) = idle {
            let worker = Worker::new(Arc::clone(self), entry).run();
            self.workers.spawn(self.ended.clone().run_until_cancelled_owned(worker));
        }
        asked
    }

    /// Ends what has expired on a lock, and compares its waiters of this server with the record.
    fn recheck(self: &Arc<Self>, lock: &LockName) {
        drop(self.submit(lock, Verb::Recheck));
    }

    /// The store's clock showed this, and the floor of tokens is at least this one.
    fn observe(&self, now: Stamp, floor: u64) {
        *self.heard.lock() = Some((now.time, Instant::now()));
        self.floor.fetch_max(floor, Ordering::Relaxed);
    }

    /// The clocks of a lock that has no root, as far as this server knows the store's clock.
    fn estimate(&self) -> Option<Stamp> {
        let (time, at) = (*self.heard.lock())?;
        let now = time.0 + root::micros(at.elapsed());
        Some(Stamp {
            clock: LockTime(now),
            time: StoreTime(now),
        })
    }

    /// Tells this server of forced releases.
    fn tell_forced(&self, lock: &LockName, tokens: &[FencingToken]) {
        for token in tokens.iter().copied() {
            let lock = lock.clone();
            // Nobody may listen.
            let _ = self.forced.send(Forced { lock, token });
        }
    }

    fn floor(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    fn empty_record(&self) -> LockRecord {
        // Without a random number, the commit fails that would write the record.
        let first_part = Version::random().map_or(0, |random| random.0.get() as u32);
        LockRecord::empty(self.floor(), first_part)
    }
}

/// An answer that is not the verb's.
fn mismatch<T>() -> Result<T, BackendError> {
    Err(broken("a verb was given the answer to another one"))
}

/// A claim that the queue of a record may take.
fn bounded(claim: &NewClaim) -> Box<NewClaim> {
    let mut claim = Box::new(claim.clone());
    claim.limits.queue = claim.limits.queue.min(QUEUE_LIMIT);
    claim
}

#[async_trait]
impl Backend for Engine {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        match self.ask(lock, Verb::Acquire(bounded(claim))).await? {
            Answer::Acquired(outcome) => Ok(outcome),
            _ => mismatch(),
        }
    }

    /// Verbs run in the order in which they are called.
    fn orders_acquires(&self, _lock: &LockName) -> bool {
        true
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        match self.ask(lock, Verb::Promote(bounded(claim))).await? {
            Answer::Acquired(outcome) => Ok(outcome),
            _ => mismatch(),
        }
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        match self.ask(lock, Verb::Release(target.into(), next.map(bounded))).await? {
            Answer::Released(outcome) => Ok(outcome),
            _ => mismatch(),
        }
    }

    async fn owns(&self, lock: &LockName, claim: &ClaimId, call: CallId) -> Result<bool, BackendError> {
        match self.ask(lock, Verb::Owns(*claim, call)).await? {
            Answer::Owns(owns) => Ok(owns),
            _ => mismatch(),
        }
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        match self.ask(&lease.lock.name, Verb::Renew(lease.clone(), ttl)).await? {
            Answer::Renewed(outcome) => Ok(outcome),
            _ => mismatch(),
        }
    }

    async fn update_metadata(
        &self,
        lease: &LeaseKey,
        metadata: &Metadata,
        stream: Option<StreamNumber>,
    ) -> Result<UpdateOutcome, BackendError> {
        match self
            .ask(&lease.lock.name, Verb::Update(lease.clone(), metadata.clone(), stream))
            .await?
        {
            Answer::Updated(outcome) => Ok(outcome),
            _ => mismatch(),
        }
    }

    async fn inspect(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, BackendError> {
        match self.ask(lock, Verb::Inspect(limit)).await? {
            Answer::Queue(queue) => Ok(queue),
            _ => mismatch(),
        }
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        match self.ask(lock, Verb::Holder(token)).await? {
            Answer::Holder(holder) => Ok(holder),
            _ => mismatch(),
        }
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        if self.core.closed.load(Ordering::Acquire) {
            return Err(not_sent("the namespace is closed"));
        }
        self.page(prefix, page).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        self.core.notifications.open()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        let watching = (Arc::clone(&self.core), lock.clone(), None);
        stream::try_unfold(watching, |(core, lock, changes)| async move {
            if let Some(mut changes) = changes
                && let Some(change) = mpsc::Receiver::recv(&mut changes).await
            {
                return Ok(Some((change, (core, lock, Some(changes)))));
            }
            match core.ask(&lock, Verb::Watch).await? {
                Answer::Watching(queue, changes) => Ok(Some((WatchEvent::State(queue), (core, lock, changes)))),
                _ => mismatch(),
            }
        })
        .boxed()
    }

    fn forced(&self) -> Option<BoxStream<'static, Forced>> {
        let forced = || told(self.core.forced.subscribe()).boxed();
        self.core.store.has_messages().then(forced)
    }

    async fn admit(&self, node: Option<&str>) -> Result<(), BackendError> {
        match node {
            None => self.core.store.admit().await,
            Some(node) => self.core.store.admit_node(node).await,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: self.settings.kind,
            guarantee: self.settings.guarantee,
            sharing: true,
            reentry: true,
            remembers_requests: true,
            updates_metadata: true,
            shared: true,
            global_order: true,
            // The engine reads the locks on which this server waits by itself.
            recheck: None,
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.core.store.health()
    }

    fn warning(&self) -> Option<String> {
        self.core.store.warning()
    }

    async fn close(&self) {
        if self.core.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.core.notifications.close();
        self.core.watchers.clear();
        // First, for whoever closes this may not wait for all of it.
        tasks::leave(&self.core).await;
        tasks::sweep_at_close(&self.core).await;
        self.core.workers.close();
        let _ = timeout(CLOSE_WITHIN, self.core.workers.wait()).await;
        // One that settles a commit would go on for as long as the store does not answer.
        self.core.ended.cancel();
        self.core.store.close().await;
    }
}
