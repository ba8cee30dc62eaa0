//! The leases of a stream that keeps leases. Its keeper changes them, and ListSessions shows them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use super::concurrency_limit::Permit;
use crate::ledger::EndWatch;
use crate::name::{LeaseKey, LockKey, Secret};

/// The leases of a stream.
#[derive(Debug, Default)]
pub(super) struct StreamLeases(Mutex<HashMap<Secret, WatchedLease>>);

/// A lease of the stream, and the watch of its end. It holds no namespace open, so that one can be removed.
#[derive(Debug)]
pub(super) struct WatchedLease {
    pub key: Arc<LeaseKey>,
    pub _watch: EndWatch,
    pub place: Option<LeasePlace>,
}

/// The place of one attached lease within the limits.
#[derive(Debug)]
pub(super) struct LeasePlace {
    _stream: [OwnedSemaphorePermit; 2],
    _server: Permit,
    /// The permit to wait for the lease.
    _wait: Option<Permit>,
}

impl LeasePlace {
    /// A place that counts for a stream and for the server, and for the waits if its lease is waited for.
    pub(super) fn new(stream: [OwnedSemaphorePermit; 2], server: Permit, wait: Option<Permit>) -> Self {
        Self {
            _stream: stream,
            _server: server,
            _wait: wait,
        }
    }

    /// The same place once its lease is held.
    pub(super) fn held(self) -> Self {
        Self { _wait: None, ..self }
    }
}

impl StreamLeases {
    /// Replaces all of them, and returns those that were there.
    pub(super) fn replace(&self, leases: HashMap<Secret, WatchedLease>) -> HashMap<Secret, WatchedLease> {
        std::mem::replace(&mut self.0.lock(), leases)
    }

    /// Adds a lease.
    pub(super) fn insert(&self, secret: Secret, lease: WatchedLease) {
        self.0.lock().insert(secret, lease);
    }

    /// Removes a lease.
    pub(super) fn remove(&self, secret: &Secret) -> Option<WatchedLease> {
        self.0.lock().remove(secret)
    }

    /// The key of the lease with this secret, if it is there.
    pub(super) fn get(&self, secret: &Secret) -> Option<Arc<LeaseKey>> {
        self.0.lock().get(secret).map(|lease| Arc::clone(&lease.key))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Their first locks, in order, each once.
    pub(super) fn locks(&self, limit: usize) -> BTreeSet<LockKey> {
        let mut first = BTreeSet::new();
        for lease in self.0.lock().values() {
            let lock = &lease.key.lock;
            if first.len() < limit || first.last().is_some_and(|last| lock < last) {
                first.insert(lock.clone());
            }
            if first.len() > limit {
                first.pop_last();
            }
        }
        first
    }
}
