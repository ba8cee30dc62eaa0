//! The embedded store: one file, one writer, the state in memory, group commit.
//!
//! [`Store::open`] opens or creates the file and refuses a file that another process has open;
//! [`Store::memory`] keeps its state in memory only. [`Store::namespace`] returns the backend of
//! one namespace.
//!
//! The modules, from the request inwards: this file turns the trait's verbs into steps; [`engine`]
//! runs the steps in batches, and [`writer`] makes each batch durable before it replies; [`state_machine`]
//! holds the namespaces and the batch's time; [`namespace_state`] has a namespace's locks,
//! whose verbs are [`crate::queue`]'s, run in a [`lock_context`]; [`mod@file`] and [`record`] store them on disk.
//!
//! # What survives
//! Holders, finished calls and the highest token are durable before a call returns. After a restart, a lease that was not
//! durably released ends when it would have ended, on the clock since boot. A renewal writes no record, so after a kill
//! that followed one, and after a reboot, each lease lives for its full TTL again. Waiters live as long as their calls.
//!
//! A record keeps the longer of two TTLs, because a shorter renewal takes nothing away that was promised.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::{mpsc, watch};

use self::engine::Engine;
use self::lock_context::LockContext;
use self::namespace_state::NamespaceState;
use self::txn_context::{NamespaceId, TxnContext};
use super::failure::not_sent;
use super::local_clock::{BootClock, Clock, TokioClock};
use super::{
    AcquireOutcome, Backend, BackendError, CLAIM_LIMIT, Capabilities, Guarantee, Health, InspectLimit, LockPage,
    NewClaim, Notification, OwnedReleaseTarget, PageRequest, ReleaseOutcome, ReleaseTarget, RenewOutcome, StreamNumber,
    UpdateOutcome, WatchEvent,
};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Metadata, Namespace, Ttl};
use crate::queue::{IncomingClaim, LockState};

mod engine;
mod expiry_timer;
mod file;
mod history;
mod lock_context;
mod namespace_state;
mod record;
mod state_machine;
mod txn_context;
mod watching;
mod writer;

pub use file::FileError as OpenError;

/// How soon an unavailable file is asked for its notifications again.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// How long a lost notification may stay unnoticed. No loss is known to happen, and polling costs
/// almost nothing.
const RECHECK: Duration = Duration::from_secs(5);

/// A store with any number of namespaces. It closes when its last open namespace closes.
#[derive(Debug, Clone)]
pub struct Store {
    engine: Arc<Engine>,
    guarantee: Guarantee,
    open: Arc<AtomicUsize>,
}

impl Store {
    /// A store that keeps its state only in memory, on tokio's clock. Must be called within a tokio
    /// runtime.
    pub fn memory() -> Self {
        Self::new(Engine::memory(Arc::new(TokioClock::default())), Guarantee::Ap)
    }

    /// Opens the store in the file at `path`, or creates it. Reads the whole file before it
    /// returns. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`OpenError`] when the file is in use, of a later format, damaged, or cannot be written.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with_clock(path, Arc::new(BootClock))
    }

    /// Like [`Self::open`], on the given clock.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_clock(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Ok(Self::new(Engine::durable(path, clock)?, Guarantee::Cp))
    }

    fn new(engine: Arc<Engine>, guarantee: Guarantee) -> Self {
        Self {
            engine,
            guarantee,
            open: Arc::default(),
        }
    }

    /// The locks of one namespace of this store, with at most [`CLAIM_LIMIT`] claims.
    pub fn namespace(&self, namespace: Namespace) -> Arc<dyn Backend> {
        self.namespace_of(namespace, CLAIM_LIMIT)
    }

    /// The locks of one namespace of this store, with at most `claim_limit` claims in all its
    /// locks; each further hold of a claim counts as one claim.
    pub fn namespace_of(&self, namespace: Namespace, claim_limit: u32) -> Arc<dyn Backend> {
        self.open.fetch_add(1, Ordering::AcqRel);
        Arc::new(Embedded {
            store: self.clone(),
            namespace,
            claim_limit,
            closed: AtomicBool::new(false),
        })
    }
}

/// One namespace of an embedded store.
#[derive(Debug)]
struct Embedded {
    store: Store,
    namespace: Namespace,
    claim_limit: u32,
    closed: AtomicBool,
}

impl Embedded {
    /// Runs verbs on a lock.
    async fn step<R: Send + 'static>(
        &self,
        name: &LockName,
        verbs: impl FnOnce(&mut LockState, &mut LockContext<'_>) -> R + Send + 'static,
    ) -> Result<R, BackendError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(not_sent("the namespace is closed"));
        }
        let (namespace, name, claim_limit) = (self.namespace.clone(), name.clone(), self.claim_limit);
        let run = self.store.engine.run(move |machine| {
            let id: NamespaceId = machine.namespace_id(&namespace);
            let (state, ctx) = machine.at(id);
            state.run(ctx, &name, claim_limit, verbs)
        });
        run.await
    }

    /// Runs a step on this namespace that changes nothing.
    async fn read<R: Send + 'static>(
        &self,
        step: impl FnOnce(&NamespaceState, &TxnContext) -> R + Send + 'static,
    ) -> Result<R, BackendError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(not_sent("the namespace is closed"));
        }
        let namespace = self.namespace.clone();
        let read = self.store.engine.read(move |machine| {
            let id: NamespaceId = machine.namespace_id(&namespace);
            let (state, ctx) = machine.at(id);
            step(state, ctx)
        });
        read.await
    }
}

#[async_trait]
impl Backend for Embedded {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let (claim, waited) = (claim.clone(), claim.arrived.elapsed());
        self.step(lock, move |lock, ctx| {
            lock.acquire(ctx, &IncomingClaim { claim: &claim, waited })
        })
        .await
    }

    /// The engine executes steps in the order in which they begin.
    fn orders_acquires(&self, _lock: &LockName) -> bool {
        true
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let (claim, waited) = (claim.clone(), claim.arrived.elapsed());
        self.step(lock, move |lock, ctx| {
            lock.promote(ctx, &IncomingClaim { claim: &claim, waited })
        })
        .await
    }

    async fn release(
        &self,
        lock: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let target = OwnedReleaseTarget::from(target);
        let next = next.map(|claim| (claim.clone(), claim.arrived.elapsed()));
        self.step(lock, move |lock, ctx| {
            let next = next
                .as_ref()
                .map(|(claim, waited)| IncomingClaim { claim, waited: *waited });
            lock.release(ctx, target.as_target(), next)
        })
        .await
    }

    async fn owns(&self, lock: &LockName, claim: &ClaimId, call: CallId) -> Result<bool, BackendError> {
        let (lock, claim) = (lock.clone(), *claim);
        self.read(move |state, _| state.owns(&lock, &claim, call)).await
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let key = lease.clone();
        self.step(&lease.lock.name, move |lock, ctx| lock.renew(ctx, &key, ttl))
            .await
    }

    async fn update_metadata(
        &self,
        lease: &LeaseKey,
        metadata: &Metadata,
        stream: Option<StreamNumber>,
    ) -> Result<UpdateOutcome, BackendError> {
        let (key, metadata) = (lease.clone(), metadata.clone());
        self.step(&lease.lock.name, move |lock, ctx| {
            lock.update_metadata(ctx, &key, &metadata, stream)
        })
        .await
    }

    async fn inspect(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, BackendError> {
        let lock = lock.clone();
        self.read(move |state, ctx| state.inspect(ctx, &lock, limit)).await
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        let lock = lock.clone();
        self.read(move |state, ctx| state.holder(ctx, &lock, token)).await
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        let prefix = prefix.to_owned();
        self.read(move |state, ctx| state.list(ctx, &prefix, &page)).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        let (namespace, engine) = (self.namespace.clone(), Arc::clone(&self.store.engine));
        let opened = async move {
            loop {
                let namespace = namespace.clone();
                let open = engine.run(move |machine| {
                    let id = machine.namespace_id(&namespace);
                    machine.at(id).0.notifications.open()
                });
                match open.await {
                    Ok(notifications) => return notifications,
                    Err(_) if engine.is_closed() => return stream::empty().boxed(),
                    // The file is unavailable: nothing is granted until it is usable again.
                    Err(_) => tokio::time::sleep(RETRY_AFTER).await,
                }
            }
        };
        stream::once(opened).flatten().boxed()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        let watch_state = WatchState {
            store: self.store.clone(),
            namespace: self.namespace.clone(),
            lock: lock.clone(),
            changes: None,
        };
        let next = |mut watch_state: WatchState| async move { Ok(Some((watch_state.next().await?, watch_state))) };
        stream::try_unfold(watch_state, next).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "embedded",
            guarantee: self.store.guarantee,
            sharing: true,
            reentry: true,
            remembers_requests: true,
            updates_metadata: true,
            shared: false,
            global_order: true,
            recheck: Some(RECHECK),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.store.engine.health()
    }

    async fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let namespace = self.namespace.clone();
        let disconnect = self.store.engine.run(move |machine| {
            let id = machine.namespace_id(&namespace);
            machine.at(id).0.notifications.close();
            machine.at(id).0.watchers.clear();
        });
        // A broken store has no streams to close.
        let _ = disconnect.await;
        if self.store.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.store.engine.close().await;
        }
    }
}

/// The state of one watch stream.
struct WatchState {
    store: Store,
    namespace: Namespace,
    lock: LockName,
    /// Absent before the first event, and after the store has disconnected a watcher that was too
    /// slow.
    changes: Option<mpsc::Receiver<WatchEvent>>,
}

impl WatchState {
    async fn next(&mut self) -> Result<WatchEvent, BackendError> {
        if let Some(changes) = &mut self.changes
            && let Some(change) = changes.recv().await
        {
            return Ok(change);
        }
        let (namespace, lock) = (self.namespace.clone(), self.lock.clone());
        let watch = self.store.engine.run(move |machine| {
            let id = machine.namespace_id(&namespace);
            let (state, ctx) = machine.at(id);
            state.watch(ctx, &lock)
        });
        let (queue, changes) = watch.await?;
        self.changes = Some(changes);
        Ok(WatchEvent::State(queue))
    }
}
