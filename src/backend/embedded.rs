//! The embedded store: one file, one writer, the state in memory, group commit.
//!
//! [`Store::open`] opens or makes the file and refuses one that another process has open;
//! [`Store::history`] keeps nothing. Each namespace is cut from a store with [`Store::namespace`].
//!
//! The rooms, from the request inwards: this file turns the trait's verbs into steps; [`engine`]
//! runs steps, turn by turn, and makes each turn durable before it answers; [`machine`] holds the
//! namespaces and the turn's time; [`space`] is the verbs themselves over the queues of [`lock`];
//! [`mod@file`] and [`record`] are the disk.
//!
//! # What survives
//! Holders, finished calls and the highest token are durable before they are answered. After a
//! restart every lease that was not durably given back lives for its full TTL again, counted on a
//! clock that no wall clock moves. Waiters live as long as their calls.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::{mpsc, watch};

use self::clock::{BootClock, Clock, TokioClock};
use self::txn_context::{TxnContext, NamespaceId};
use self::engine::Engine;
use self::namespace_state::{IncomingClaim, NamespaceState};
use super::{
    Backend, BackendError, CLAIM_LIMIT, ReleaseOutcome, Guarantee, Health, OwnedReleaseTarget, ReleaseTarget, LockPage, InspectLimit, NewClaim, Capabilities,
    PageRequest, AcquireOutcome, RenewOutcome, WatchEvent, Notification,
};
use crate::claim::{Holder, Queue};
use crate::name::{FencingToken, LeaseKey, LockName, Namespace, Ttl};

pub mod clock;
mod txn_context;
mod ends;
mod engine;
mod file;
mod lock;
mod state_machine;
mod history;
mod record;
mod retries;
mod namespace_state;
mod watching;

pub use file::FileError as OpenError;

/// How soon a file that is away is asked for its wakes again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// How long a lost wake may stay unnoticed. None is known to be lost, and asking costs next to
/// nothing.
const RECHECK: Duration = Duration::from_secs(5);

/// A store that namespaces are cut from. It closes when the last of them does.
#[derive(Debug, Clone)]
pub struct Store {
    engine: Arc<Engine>,
    guarantee: Guarantee,
    path: Option<PathBuf>,
    open: Arc<AtomicUsize>,
}

impl Store {
    /// A store that keeps nothing beyond its process, on tokio's clock. Must be called within a
    /// tokio runtime.
    pub fn memory() -> Self {
        Self::new(Engine::memory(Arc::new(TokioClock::default())), Guarantee::Ap, None)
    }

    /// Opens the store in the file at `path`, or makes it. Reads the whole file before it returns.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`OpenError`] when the file is in use, of a later format, damaged, or cannot be written.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with_clock(path, Arc::new(BootClock))
    }

    /// Like [`Self::open`], on a clock of the caller's.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_clock(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let engine = Engine::durable(path, clock)?;
        Ok(Self::new(engine, Guarantee::Cp, Some(path.into())))
    }

    fn new(engine: Arc<Engine>, guarantee: Guarantee, path: Option<PathBuf>) -> Self {
        Self {
            engine,
            guarantee,
            path,
            open: Arc::default(),
        }
    }

    /// The locks of one namespace of this store, with at most [`CLAIM_LIMIT`] claims.
    pub fn namespace(&self, namespace: Namespace) -> Arc<dyn Backend> {
        self.namespace_of(namespace, CLAIM_LIMIT)
    }

    /// The locks of one namespace of this store, which holds at most so many claims in all its locks,
    /// each further hold of a claim counted.
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
struct Embedded {
    store: Store,
    namespace: Namespace,
    claim_limit: u32,
    closed: AtomicBool,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded")
            .field("namespace", &self.namespace)
            .field("path", &self.store.path)
            .finish_non_exhaustive()
    }
}

impl Embedded {
    /// Runs a step on this namespace.
    async fn step<R: Send + 'static>(
        &self,
        step: impl FnOnce(&mut NamespaceState, &mut TxnContext) -> R + Send + 'static,
    ) -> Result<R, BackendError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(BackendError::NotSent {
                reason: "the namespace is closed".into(),
            });
        }
        let namespace = self.namespace.clone();
        let run = self.store.engine.run(move |machine| {
            let id: NamespaceId = machine.namespace_id(&namespace);
            let (space, ctx) = machine.at(id);
            step(space, ctx)
        });
        run.await
    }
}

#[async_trait]
impl Backend for Embedded {
    async fn acquire(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let (lock, claim, waited) = (lock.clone(), claim.clone(), claim.arrived.elapsed());
        let limit = self.claim_limit;
        let step = move |space: &mut NamespaceState, ctx: &mut TxnContext| {
            space.acquire(ctx, &lock, &IncomingClaim { claim: &claim, waited }, limit)
        };
        self.step(step).await
    }

    async fn promote(&self, lock: &LockName, claim: &NewClaim) -> Result<AcquireOutcome, BackendError> {
        let (lock, claim, waited) = (lock.clone(), claim.clone(), claim.arrived.elapsed());
        let step =
            move |space: &mut NamespaceState, ctx: &mut TxnContext| space.promote(ctx, &lock, &IncomingClaim { claim: &claim, waited });
        self.step(step).await
    }

    async fn release(
        &self,
        lock: &LockName,
        who: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, BackendError> {
        let (lock, who) = (lock.clone(), OwnedReleaseTarget::from(who));
        let next = next.map(|claim| (claim.clone(), claim.arrived.elapsed()));
        let step = move |space: &mut NamespaceState, ctx: &mut TxnContext| {
            let next = next.as_ref().map(|(claim, waited)| IncomingClaim { claim, waited: *waited });
            space.release(ctx, &lock, who.leaving(), next)
        };
        self.step(step).await
    }

    async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, BackendError> {
        let lease = lease.clone();
        self.step(move |space, ctx| space.renew(ctx, &lease, ttl)).await
    }

    async fn inspect(&self, lock: &LockName, most: InspectLimit) -> Result<Queue, BackendError> {
        let lock = lock.clone();
        self.step(move |space, ctx| space.inspect(ctx, &lock, most)).await
    }

    async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, BackendError> {
        let lock = lock.clone();
        self.step(move |space, ctx| space.holder(ctx, &lock, token)).await
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        let prefix = prefix.to_owned();
        self.step(move |space, ctx| space.list(ctx, &prefix, &page)).await
    }

    fn notifications(&self) -> BoxStream<'static, Notification> {
        let (namespace, engine) = (self.namespace.clone(), Arc::clone(&self.store.engine));
        let opened = async move {
            loop {
                let namespace = namespace.clone();
                let open = engine.run(move |machine| {
                    let id = machine.namespace_id(&namespace);
                    machine.at(id).0.post.open()
                });
                match open.await {
                    Ok(notifications) => return notifications,
                    Err(_) if engine.is_closed() => return stream::empty().boxed(),
                    // Its file is away: nobody is granted anything until it is back.
                    Err(_) => tokio::time::sleep(ASK_AGAIN).await,
                }
            }
        };
        stream::once(opened).flatten().boxed()
    }

    fn watch(&self, lock: &LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
        let watching = Watching {
            store: self.store.clone(),
            namespace: self.namespace.clone(),
            lock: lock.clone(),
            changes: None,
        };
        stream::unfold(Some(watching), |watching| async move {
            let mut watching = watching?;
            match watching.next().await {
                Ok(seen) => Some((Ok(seen), Some(watching))),
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kind: "embedded",
            guarantee: self.store.guarantee,
            sharing: true,
            reentry: true,
            remembers_requests: true,
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
        let hang_up = self.store.engine.run(move |machine| {
            let id = machine.namespace_id(&namespace);
            machine.at(id).0.post.close();
            machine.at(id).0.watchers.clear();
        });
        // A store that is broken has nothing to hang up.
        let _ = hang_up.await;
        if self.store.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.store.engine.close().await;
        }
    }
}

/// Somebody who watches a lock.
struct Watching {
    store: Store,
    namespace: Namespace,
    lock: LockName,
    /// Nothing at first, and after the store has hung up on one who was too slow.
    changes: Option<mpsc::Receiver<WatchEvent>>,
}

impl Watching {
    async fn next(&mut self) -> Result<WatchEvent, BackendError> {
        if let Some(changes) = &mut self.changes
            && let Some(change) = changes.recv().await
        {
            return Ok(change);
        }
        let (namespace, lock) = (self.namespace.clone(), self.lock.clone());
        let watch = self.store.engine.run(move |machine| {
            let id = machine.namespace_id(&namespace);
            let (space, ctx) = machine.at(id);
            space.watch(ctx, &lock)
        });
        let (queue, changes) = watch.await?;
        self.changes = Some(changes);
        Ok(WatchEvent::State(queue))
    }
}
