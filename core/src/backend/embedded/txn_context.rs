//! The state that all namespaces of a store share while a step runs: the time, the tokens, the
//! expiry table, the pending writes, and the messages to send once they are durable.
//!
//! One high-water mark per file makes the tokens: `max(mark + 1, now in microseconds)`, written in every granting
//! commit. An idle lock therefore needs no record, and a wall clock that went back lowers no token.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::backend::clock::{LATEST, micros};
use crate::backend::local_clock::{Clock, NO_BOOT};
use crate::backend::{Change, Notification};
use crate::name::{FencingToken, LockName};

/// The index of a namespace in its store.
pub type NamespaceId = usize;

/// The key of a record in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// A holder, by its lock and its position in the queue.
    Holder(NamespaceId, LockName, u64),
    /// A finished hold, by its position in the order of their ends.
    Finished(NamespaceId, u64),
}

/// A batch's changes to the file: the last value of each record, and the highest token.
#[derive(Debug, Default)]
pub struct WriteSet {
    /// Records to put, or to delete.
    pub records: BTreeMap<RecordKey, Option<Vec<u8>>>,
    /// The highest token, if the batch made one.
    pub high_water: Option<u64>,
    /// The boot by whose clock the ends in all holders' records are right from now on, or [`NO_BOOT`].
    pub ends_of: Option<u64>,
}

impl WriteSet {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.high_water.is_none() && self.ends_of.is_none()
    }
}

/// A message that is sent once a batch is durable.
#[derive(Debug)]
pub enum PendingMessage {
    /// To the namespace's waiters.
    Notification(NamespaceId, Notification),
    /// To the watchers that have watched the lock since before this change, which has this number.
    Change(NamespaceId, LockName, u64, Change),
}

/// See the module.
#[derive(Debug)]
pub struct TxnContext {
    clock: Arc<dyn Clock>,
    /// The time of the current batch.
    pub now: Duration,
    /// The wall time of the current batch.
    pub wall: SystemTime,
    /// The highest token ever made, over all locks.
    pub high_water: u64,
    /// The boot by whose clock the ends in all holders' records are right, or [`NO_BOOT`].
    pub ends_of: u64,
    /// This boot of the machine with this file, or [`NO_BOOT`].
    pub boot: u64,
    /// The holders by the time at which they expire.
    pub expiries: BTreeSet<(Duration, NamespaceId, LockName, u64)>,
    /// The batch's changes to the file; absent for a store without a file.
    writes: Option<WriteSet>,
    /// The messages to send after the batch.
    pub outbox: Vec<PendingMessage>,
    /// The number of changes so far; numbers each change.
    pub changes: u64,
}

impl TxnContext {
    pub fn new(clock: Arc<dyn Clock>, durable: bool) -> Self {
        Self {
            now: clock.now(),
            wall: clock.wall(),
            clock,
            high_water: 0,
            ends_of: NO_BOOT,
            boot: NO_BOOT,
            expiries: BTreeSet::new(),
            writes: durable.then(WriteSet::default),
            outbox: Vec::new(),
            changes: 0,
        }
    }

    pub fn read_clock(&mut self) {
        self.now = self.clock.now();
        self.wall = self.clock.wall();
    }

    /// Makes a token above all earlier ones: `max(last + 1, now in µs)`. Tokens run out at 2^53, in
    /// 2255.
    pub fn next_token(&mut self) -> Option<FencingToken> {
        let wall = micros(self.wall);
        // A wall clock beyond that is wrong, and must not use up the remaining tokens.
        let floor = if wall > LATEST { 0 } else { wall };
        let token = FencingToken::new(floor.max(self.high_water + 1)).ok()?;
        self.high_water = token.get();
        if let Some(writes) = &mut self.writes {
            writes.high_water = Some(token.get());
        }
        Some(token)
    }

    /// Identifies this boot of the machine together with the file: leases may have been renewed since a copy of it was made.
    pub fn identify_boot(&mut self, inode: (u64, u64)) {
        self.boot = self.clock.boot().map_or(NO_BOOT, |boot| {
            let mut hash = DefaultHasher::new();
            (boot, inode).hash(&mut hash);
            hash.finish()
        });
    }

    /// Notes by which boot's clock the ends in all records are right. A renewal writes no record, so it makes them wrong.
    pub fn set_ends_of(&mut self, boot: u64) {
        if let Some(writes) = self.writes.as_mut().filter(|_| self.ends_of != boot) {
            (self.ends_of, writes.ends_of) = (boot, Some(boot));
        }
    }

    /// Whether the store has a file.
    pub fn is_durable(&self) -> bool {
        self.writes.is_some()
    }

    /// Adds a record to the batch's changes; encodes it only if the store has a file.
    pub fn put(&mut self, key: RecordKey, record: impl FnOnce() -> Vec<u8>) {
        if let Some(writes) = &mut self.writes {
            writes.records.insert(key, Some(record()));
        }
    }

    /// Adds the deletion of a record to the batch's changes.
    pub fn delete(&mut self, key: RecordKey) {
        if let Some(writes) = &mut self.writes {
            writes.records.insert(key, None);
        }
    }

    /// Takes the batch's changes to the file.
    pub fn take_writes(&mut self) -> WriteSet {
        self.writes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub fn notify(&mut self, namespace: NamespaceId, notification: Notification) {
        self.outbox.push(PendingMessage::Notification(namespace, notification));
    }
}
