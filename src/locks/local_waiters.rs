//! Who of this replica waits for which lock: where wakes are delivered, and who is named as the
//! next of a release.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::waiting_bytes::BytesInUse;
use crate::backend::{Grant, NewClaim, Notification};
use crate::name::{CallId, ClaimId, LockName};

/// What a waiter is told.
#[derive(Debug, Clone)]
pub enum WaiterMessage {
    /// Ask the store again.
    Ask,
    /// The store lost the claim.
    Gone,
    /// A release of this replica has taken the claim up.
    Granted(Grant),
}

impl WaiterMessage {
    /// Whether this news makes the other one pointless.
    fn outweighs(&self, other: &Self) -> bool {
        let weight = |mail: &Self| match mail {
            Self::Ask => 0,
            Self::Gone => 1,
            Self::Granted(_) => 2,
        };
        weight(self) >= weight(other)
    }
}

/// One Acquire call that may come to wait.
#[derive(Debug)]
pub struct Waiter {
    /// The claim as its call entered it.
    pub claim: NewClaim,
    mail: Mutex<Option<WaiterMessage>>,
    notify: Notify,
    first: Notify,
}

impl Waiter {
    /// A waiter that has not been told anything.
    pub fn new(claim: NewClaim) -> Arc<Self> {
        Arc::new(Self {
            claim,
            mail: Mutex::default(),
            notify: Notify::new(),
            first: Notify::new(),
        })
    }

    /// Tells it something; the weightiest news is kept.
    pub fn post(&self, mail: WaiterMessage) {
        let mut kept = lock(&self.mail);
        if kept.as_ref().is_none_or(|kept| mail.outweighs(kept)) {
            *kept = Some(mail);
        }
        drop(kept);
        self.notify.notify_one();
    }

    /// What it was told, if anything.
    pub fn take(&self) -> Option<WaiterMessage> {
        lock(&self.mail).take()
    }

    /// Waits for news. Cancel safe: news that was not returned is kept.
    pub async fn message(&self) -> WaiterMessage {
        loop {
            if let Some(mail) = self.take() {
                return mail;
            }
            self.notify.notified().await;
        }
    }

    /// Returns when it may have become the first waiter of its lock here.
    pub async fn became_first(&self) {
        self.first.notified().await;
    }
}

/// The waiters of one lock.
#[derive(Debug, Default)]
struct LockWaiters {
    /// With a request id, an older and a newer call may wait on one claim.
    by_claim: HashMap<ClaimId, Vec<Arc<Waiter>>>,
    /// Those that are known to wait, in the store's order.
    queue: BTreeMap<Key, Arc<Waiter>>,
}

/// The waiters of one namespace.
#[derive(Debug, Default)]
pub struct LocalWaiters {
    by_lock: Mutex<HashMap<LockName, LockWaiters>>,
    /// How many bytes of their own the waiters have brought.
    bytes: Mutex<BytesInUse>,
}

impl LocalWaiters {
    /// How many bytes of their own the waiters have brought.
    pub fn bytes(&self) -> MutexGuard<'_, BytesInUse> {
        lock(&self.bytes)
    }

    /// Lets a waiter be found. It goes when the answer is dropped.
    pub fn join(self: &Arc<Self>, name: &LockName, waiter: Arc<Waiter>) -> WaiterEntry {
        let mut lines = lock(&self.by_lock);
        let line = lines.entry(name.clone()).or_default();
        line.by_claim
            .entry(waiter.claim.id)
            .or_default()
            .push(Arc::clone(&waiter));
        WaiterEntry {
            lines: Arc::clone(self),
            name: name.clone(),
            waiter,
            turn: None,
        }
    }

    /// The first waiter of a lock here.
    pub fn first(&self, name: &LockName) -> Option<Arc<Waiter>> {
        let lines = lock(&self.by_lock);
        lines.get(name)?.queue.values().next().cloned()
    }

    /// How many calls are known to wait.
    pub fn waiting(&self) -> usize {
        lock(&self.by_lock).values().map(|line| line.queue.len()).sum()
    }

    /// Delivers a wake to whom it concerns.
    pub fn deliver(&self, wake: &Notification) {
        match wake {
            Notification::Next(name, claim) => self.post_to(name, claim, &WaiterMessage::Ask),
            Notification::Gone(name, claim) => self.post_to(name, claim, &WaiterMessage::Gone),
            Notification::Changed(name) => {
                if let Some(first) = self.first(name) {
                    first.post(WaiterMessage::Ask);
                }
            }
            Notification::Gap => {
                let lines = lock(&self.by_lock);
                let waiters = lines.values().flat_map(|line| line.by_claim.values().flatten());
                waiters.for_each(|waiter| waiter.post(WaiterMessage::Ask));
            }
        }
    }

    fn post_to(&self, name: &LockName, claim: &ClaimId, mail: &WaiterMessage) {
        let lines = lock(&self.by_lock);
        let waiters = lines.get(name).and_then(|line| line.by_claim.get(claim));
        for waiter in waiters.into_iter().flatten() {
            waiter.post(mail.clone());
        }
    }
}

/// A waiter's place among those of its lock; dropped, it is no longer found.
#[derive(Debug)]
pub struct WaiterEntry {
    lines: Arc<LocalWaiters>,
    name: LockName,
    waiter: Arc<Waiter>,
    turn: Option<u64>,
}

impl WaiterEntry {
    /// The waiter itself.
    pub fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    /// Notes that it waits, and where in the store's order.
    pub fn waits(&mut self, turn: u64) {
        if self.turn == Some(turn) {
            return;
        }
        let mut lines = lock(&self.lines.by_lock);
        let Some(line) = lines.get_mut(&self.name) else { return };
        if let Some(before) = self.turn.replace(turn) {
            line.queue.remove(&key(before, &self.waiter));
        }
        line.queue.insert(key(turn, &self.waiter), Arc::clone(&self.waiter));
    }

    /// Whether it is the first one that waits here.
    pub fn is_first(&self) -> bool {
        let Some(turn) = self.turn else { return false };
        let lines = lock(&self.lines.by_lock);
        let first = lines.get(&self.name).and_then(|line| line.queue.keys().next());
        first == Some(&key(turn, &self.waiter))
    }
}

impl Drop for WaiterEntry {
    fn drop(&mut self) {
        let mut lines = lock(&self.lines.by_lock);
        let Some(line) = lines.get_mut(&self.name) else { return };
        if let Some(same) = line.by_claim.get_mut(&self.waiter.claim.id) {
            same.retain(|other| !Arc::ptr_eq(other, &self.waiter));
            if same.is_empty() {
                line.by_claim.remove(&self.waiter.claim.id);
            }
        }
        if let Some(turn) = self.turn {
            let own = key(turn, &self.waiter);
            let was_first = line.queue.keys().next() == Some(&own);
            line.queue.remove(&own);
            if let Some(first) = line.queue.values().next().filter(|_| was_first) {
                first.first.notify_one();
            }
        }
        if line.by_claim.is_empty() {
            lines.remove(&self.name);
        }
    }
}

/// Where a waiter stands.
type Key = (u64, Instant, ClaimId, CallId);

/// A store may give several the same turn: they are in the order of their arrival.
fn key(turn: u64, waiter: &Waiter) -> Key {
    (turn, waiter.claim.arrived, waiter.claim.id, waiter.claim.call)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
