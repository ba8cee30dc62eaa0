//! What all namespaces of a store share while a step runs: the time, the tokens, the expiry table,
//! what is to be written, and what is to be told once it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::clock::{Clock, micros};
use crate::backend::{Change, Notification};
use crate::name::{FencingToken, LockName, Secret};

/// The number of a namespace in its store.
pub type NamespaceId = usize;

/// Where a record lies in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// A holder, by its lock and its place in the queue.
    Holder(NamespaceId, LockName, u64),
    /// A finished hold, by its secret.
    Finished(NamespaceId, [u8; 16]),
}

impl RecordKey {
    pub fn finished(space: NamespaceId, secret: &Secret) -> Self {
        Self::Finished(space, *secret.as_bytes())
    }
}

/// What a turn changes in the file: the last word on each record, and the highest token.
#[derive(Debug, Default)]
pub struct WriteSet {
    /// Records to put, or to delete.
    pub records: BTreeMap<RecordKey, Option<Vec<u8>>>,
    /// The highest token, if the turn minted one.
    pub high_water: Option<u64>,
}

impl WriteSet {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.high_water.is_none()
    }
}

/// What is told once a turn is durable.
#[derive(Debug)]
pub enum PendingMessage {
    /// To the namespace's waiters.
    Notification(NamespaceId, Notification),
    /// To whoever watches the lock since before this step.
    Change(NamespaceId, LockName, u64, Change),
}

/// See the module.
#[derive(Debug)]
pub struct TxnContext {
    clock: Arc<dyn Clock>,
    /// The time of the present turn.
    pub now: Duration,
    /// Its wall time.
    pub wall: SystemTime,
    /// The highest token ever minted: the last one of any lock.
    pub high_water: u64,
    /// When which holder ends.
    pub ends: BTreeSet<(Duration, NamespaceId, LockName, u64)>,
    /// What the turn changes in the file; nothing for a store without one.
    writes: Option<WriteSet>,
    /// What is to be told after the turn.
    pub outbox: Vec<PendingMessage>,
    /// Counts the changes told.
    pub changes: u64,
}

impl TxnContext {
    pub fn new(clock: Arc<dyn Clock>, durable: bool) -> Self {
        Self {
            now: clock.now(),
            wall: clock.wall(),
            clock,
            high_water: 0,
            ends: BTreeSet::new(),
            writes: durable.then(WriteSet::default),
            outbox: Vec::new(),
            changes: 0,
        }
    }

    pub fn read_clock(&mut self) {
        self.now = self.clock.now();
        self.wall = self.clock.wall();
    }

    /// A token above all before it: `max(last + 1, now in µs)`. None is left past 2^53, in 2255.
    pub fn mint(&mut self) -> Option<FencingToken> {
        let wall = micros(self.wall);
        // A wall clock beyond all tokens is broken, and must not end the scale for ever.
        let floor = if wall > FencingToken::MAX / 2 { 0 } else { wall };
        let token = FencingToken::new(floor.max(self.high_water + 1)).ok()?;
        self.high_water = token.get();
        if let Some(writes) = &mut self.writes {
            writes.high_water = Some(token.get());
        }
        Some(token)
    }

    /// Whether there is a file that records are for.
    pub fn is_durable(&self) -> bool {
        self.writes.is_some()
    }

    /// Notes a record to put, encoded only if there is a file.
    pub fn put(&mut self, slot: RecordKey, record: impl FnOnce() -> Vec<u8>) {
        if let Some(writes) = &mut self.writes {
            writes.records.insert(slot, Some(record()));
        }
    }

    /// Notes a record to delete.
    pub fn delete(&mut self, slot: RecordKey) {
        if let Some(writes) = &mut self.writes {
            writes.records.insert(slot, None);
        }
    }

    /// What the turn changed.
    pub fn take_writes(&mut self) -> WriteSet {
        self.writes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub fn wake(&mut self, space: NamespaceId, wake: Notification) {
        self.outbox.push(PendingMessage::Notification(space, wake));
    }
}
