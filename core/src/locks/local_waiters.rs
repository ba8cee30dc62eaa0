//! The calls of this replica that wait, by lock: the recipients of notifications and the candidates
//! for promotion.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::in_use::InUse;
use crate::backend::{Grant, NewClaim, Notification};
use crate::name::{CallId, ClaimId, LockName};

/// A message to a waiting call.
#[derive(Debug, Clone)]
pub enum WaiterMessage {
    /// Promote the claim: it may be eligible.
    Promote,
    /// The store lost the claim.
    Gone,
    /// A release of this replica has promoted the claim.
    Granted(Grant),
}

impl WaiterMessage {
    /// Whether this message makes the other one superfluous.
    fn supersedes(&self, other: &Self) -> bool {
        let weight = |message: &Self| match message {
            Self::Promote => 0,
            Self::Gone => 1,
            Self::Granted(_) => 2,
        };
        weight(self) >= weight(other)
    }
}

/// An Acquire call that waits or may begin to wait.
#[derive(Debug)]
pub struct Waiter {
    /// The claim that the call has sent.
    pub claim: NewClaim,
    message: Mutex<Option<WaiterMessage>>,
    notify: Notify,
    first: Notify,
}

impl Waiter {
    /// A waiter without a message.
    pub fn new(claim: NewClaim) -> Arc<Self> {
        Arc::new(Self {
            claim,
            message: Mutex::default(),
            notify: Notify::new(),
            first: Notify::new(),
        })
    }

    /// Sends a message to the waiter. Of two messages the more important one is kept.
    pub fn post(&self, message: WaiterMessage) {
        let mut pending = self.message.lock();
        if pending.as_ref().is_none_or(|pending| message.supersedes(pending)) {
            *pending = Some(message);
        }
        drop(pending);
        self.notify.notify_one();
    }

    /// Takes the pending message, if any.
    pub fn take(&self) -> Option<WaiterMessage> {
        self.message.lock().take()
    }

    /// Waits for a message. Cancel safe: a message that was not returned is kept.
    pub async fn message(&self) -> WaiterMessage {
        loop {
            if let Some(message) = self.take() {
                return message;
            }
            self.notify.notified().await;
        }
    }

    /// Returns when the call may have become the first local waiter of its lock.
    pub async fn became_first(&self) {
        self.first.notified().await;
    }
}

/// The waiters of one lock.
#[derive(Debug, Default)]
struct LockWaiters {
    /// The waiting calls by claim. An older and a newer call with one request id wait on one claim.
    by_claim: HashMap<ClaimId, Vec<Arc<Waiter>>>,
    /// The calls whose claims wait, in the store's order.
    queue: BTreeMap<Key, Arc<Waiter>>,
    /// When the store last confirmed that a call left the queue whose wait had ended.
    removed: Option<Instant>,
    /// Notified of the claims whose places are kept although their calls have ended.
    kept: HashMap<ClaimId, Vec<Arc<Notify>>>,
}

impl LockWaiters {
    fn is_empty(&self) -> bool {
        self.by_claim.is_empty() && self.kept.is_empty()
    }
}

/// The waiters of one namespace.
#[derive(Debug, Default)]
pub struct LocalWaiters {
    by_lock: Mutex<HashMap<LockName, LockWaiters>>,
    /// The bytes of owner and metadata that the waiting calls occupy.
    bytes: Mutex<InUse>,
}

impl LocalWaiters {
    /// The bytes of owner and metadata that the waiting calls occupy.
    pub fn bytes(&self) -> MutexGuard<'_, InUse> {
        self.bytes.lock()
    }

    /// Registers a waiter until the returned entry is dropped.
    pub fn join(self: &Arc<Self>, name: &LockName, waiter: Arc<Waiter>) -> WaiterEntry {
        let mut by_lock = self.by_lock.lock();
        let lock_waiters = by_lock.entry(name.clone()).or_default();
        lock_waiters
            .by_claim
            .entry(waiter.claim.id)
            .or_default()
            .push(Arc::clone(&waiter));
        WaiterEntry {
            waiters: Arc::clone(self),
            name: name.clone(),
            waiter,
            position: None,
        }
    }

    /// Registers the kept place of a claim until the returned entry is dropped.
    pub fn keep(self: &Arc<Self>, name: &LockName, claim: ClaimId) -> KeptEntry {
        let notify = Arc::<Notify>::default();
        let mut by_lock = self.by_lock.lock();
        let kept = &mut by_lock.entry(name.clone()).or_default().kept;
        kept.entry(claim).or_default().push(Arc::clone(&notify));
        KeptEntry {
            waiters: Arc::clone(self),
            name: name.clone(),
            claim,
            notify,
        }
    }

    /// The first local waiter of a lock.
    pub fn first(&self, name: &LockName) -> Option<Arc<Waiter>> {
        let by_lock = self.by_lock.lock();
        by_lock.get(name)?.queue.values().next().cloned()
    }

    /// Notes that the store has confirmed now that a call left the queue of this lock.
    pub fn note_removal(&self, name: &LockName) {
        if let Some(lock_waiters) = self.by_lock.lock().get_mut(name) {
            lock_waiters.removed = Some(Instant::now());
        }
    }

    /// Whether the store has confirmed that since then, while calls were waiting for the lock all the time.
    pub fn has_removed_since(&self, name: &LockName, since: Instant) -> bool {
        let by_lock = self.by_lock.lock();
        let removed = by_lock.get(name).and_then(|lock_waiters| lock_waiters.removed);
        removed.is_some_and(|at| at > since)
    }

    /// The number of calls whose claims wait.
    pub fn waiting(&self) -> usize {
        self.by_lock
            .lock()
            .values()
            .map(|lock_waiters| lock_waiters.queue.len())
            .sum()
    }

    /// Delivers a notification to the waiters that it concerns.
    pub fn deliver(&self, notification: &Notification) {
        match notification {
            Notification::Next(name, claim) => self.post_to(name, claim, &WaiterMessage::Promote),
            Notification::Gone(name, claim) => self.post_to(name, claim, &WaiterMessage::Gone),
            Notification::Changed(name) => {
                if let Some(first) = self.first(name) {
                    first.post(WaiterMessage::Promote);
                }
            }
            Notification::Gap => {
                let by_lock = self.by_lock.lock();
                let waiters = by_lock
                    .values()
                    .flat_map(|lock_waiters| lock_waiters.by_claim.values().flatten());
                waiters.for_each(|waiter| waiter.post(WaiterMessage::Promote));
                let kept = by_lock.values().flat_map(|lock_waiters| lock_waiters.kept.values());
                kept.flatten().for_each(|kept| kept.notify_one());
            }
        }
    }

    fn post_to(&self, name: &LockName, claim: &ClaimId, message: &WaiterMessage) {
        let by_lock = self.by_lock.lock();
        let Some(lock_waiters) = by_lock.get(name) else { return };
        for waiter in lock_waiters.by_claim.get(claim).into_iter().flatten() {
            waiter.post(message.clone());
        }
        for kept in lock_waiters.kept.get(claim).into_iter().flatten() {
            kept.notify_one();
        }
    }
}

/// The registration of a kept place; dropping it removes the place.
#[derive(Debug)]
pub struct KeptEntry {
    waiters: Arc<LocalWaiters>,
    name: LockName,
    claim: ClaimId,
    notify: Arc<Notify>,
}

impl KeptEntry {
    /// Returns when the store has told something of the claim.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }
}

impl Drop for KeptEntry {
    fn drop(&mut self) {
        let mut by_lock = self.waiters.by_lock.lock();
        let Some(lock_waiters) = by_lock.get_mut(&self.name) else {
            return;
        };
        if let Some(same) = lock_waiters.kept.get_mut(&self.claim) {
            same.retain(|other| !Arc::ptr_eq(other, &self.notify));
            if same.is_empty() {
                lock_waiters.kept.remove(&self.claim);
            }
        }
        if lock_waiters.is_empty() {
            by_lock.remove(&self.name);
        }
    }
}

/// A waiter's registration; dropping it removes the waiter.
#[derive(Debug)]
pub struct WaiterEntry {
    waiters: Arc<LocalWaiters>,
    name: LockName,
    waiter: Arc<Waiter>,
    position: Option<u64>,
}

impl WaiterEntry {
    /// The registered waiter.
    pub fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    /// Records that the claim waits, and its position in the store's order.
    pub fn waits(&mut self, position: u64) {
        if self.position == Some(position) {
            return;
        }
        let mut by_lock = self.waiters.by_lock.lock();
        let Some(lock_waiters) = by_lock.get_mut(&self.name) else {
            return;
        };
        if let Some(before) = self.position.replace(position) {
            lock_waiters.queue.remove(&key(before, &self.waiter));
        }
        lock_waiters
            .queue
            .insert(key(position, &self.waiter), Arc::clone(&self.waiter));
    }

    /// Whether the call is the first local waiter of its lock.
    pub fn is_first(&self) -> bool {
        let Some(position) = self.position else { return false };
        let by_lock = self.waiters.by_lock.lock();
        let first = by_lock
            .get(&self.name)
            .and_then(|lock_waiters| lock_waiters.queue.keys().next());
        first == Some(&key(position, &self.waiter))
    }
}

impl Drop for WaiterEntry {
    fn drop(&mut self) {
        let mut by_lock = self.waiters.by_lock.lock();
        let Some(lock_waiters) = by_lock.get_mut(&self.name) else {
            return;
        };
        if let Some(same) = lock_waiters.by_claim.get_mut(&self.waiter.claim.id) {
            same.retain(|other| !Arc::ptr_eq(other, &self.waiter));
            if same.is_empty() {
                lock_waiters.by_claim.remove(&self.waiter.claim.id);
            }
        }
        if let Some(position) = self.position {
            let own = key(position, &self.waiter);
            let was_first = lock_waiters.queue.keys().next() == Some(&own);
            lock_waiters.queue.remove(&own);
            if let Some(first) = lock_waiters.queue.values().next().filter(|_| was_first) {
                first.first.notify_one();
            }
        }
        if lock_waiters.is_empty() {
            by_lock.remove(&self.name);
        }
    }
}

/// The sort key of a waiter.
type Key = (u64, Instant, ClaimId, CallId);

/// The sort key of a waiter: a store may give several claims the same position, which arrival then
/// orders.
fn key(position: u64, waiter: &Waiter) -> Key {
    (position, waiter.claim.arrived, waiter.claim.id, waiter.claim.call)
}
