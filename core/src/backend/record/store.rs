//! The trait [`RecordStore`]: what the engine asks of a store.
//!
//! A lock is one *root* with numbered *parts*. A commit replaces the root if it is still at the version that the engine
//! has read, within bounds on the store's own clock. Nothing else is asked: who holds, waits or has ended is decided by
//! `crate::queue`, on a copy of the root.

use std::fmt::Debug;
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::sync::watch;

use crate::backend::failure::broken;
use crate::backend::{BackendError, Health};
use crate::name::LockName;

/// The version of a root: 63 random bits, drawn anew for each commit. It also names the commit. Versions are never
/// counted: a lock that was deleted and made anew would reach the same number again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version(pub NonZeroU64);

/// A server of this service: 63 random bits, drawn when it opens the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub NonZeroU64);

impl Version {
    /// Draws one.
    ///
    /// # Errors
    /// [`BackendError::Broken`] without random numbers.
    pub fn random() -> Result<Self, BackendError> {
        random().map(Self)
    }
}

impl ServerId {
    /// Draws one.
    ///
    /// # Errors
    /// [`BackendError::Broken`] without random numbers.
    pub fn random() -> Result<Self, BackendError> {
        random().map(Self)
    }
}

fn random() -> Result<NonZeroU64, BackendError> {
    let random = getrandom::u64().map_err(|error| broken(format_args!("no random numbers: {error}")))?;
    Ok(NonZeroU64::new(random >> 1).unwrap_or(NonZeroU64::MIN))
}

/// A time of one lock's clock, in microseconds. It begins at the store's time, advances with it, and stands still
/// while the store's clock goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockTime(pub u64);

/// A time of the store's clock, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreTime(pub u64);

/// Both clocks at one moment of the store. Of a commit: those that it was stamped with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The lock's clock.
    pub clock: LockTime,
    /// The store's clock.
    pub time: StoreTime,
}

/// A root as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Its version.
    pub version: Version,
    /// When it was committed.
    pub stamp: Stamp,
    /// The engine's record.
    pub body: Vec<u8>,
}

/// Replaces the root of a lock, and parts with it, in one atomic step of the store.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The lock.
    pub lock: LockName,
    /// The version that the root must have; `None`: there must be no root.
    pub expected: Option<Version>,
    /// The version of the new root.
    pub version: Version,
    /// The new root's record.
    pub body: Vec<u8>,
    /// The commit is refused while the lock's clock is before this time: what the record takes for ended must be over.
    pub not_before: LockTime,
    /// The commit is refused from this time of the lock's clock on: what the record takes for held must not be over.
    pub not_after: LockTime,
    /// The commit is refused after this time of the store's clock. A late first write (`expected` is `None`) may
    /// otherwise come after the root that settled it was removed as idle.
    pub latest: StoreTime,
    /// The parts to write.
    pub put: Vec<(u64, Vec<u8>)>,
    /// The parts to delete.
    pub delete: Range<u64>,
    /// The floor of tokens that the engine knows: a first write is refused if the store's is higher.
    pub floor: u64,
    /// The messages that are sent after the commit was applied, and may be lost.
    pub messages: Vec<Message>,
    /// The server that commits.
    pub server: ServerId,
    /// If the version does not match, this server gets a reservation for so long: until then, by the lock's clock, the store
    /// refuses the commits of others. The server's next commit ends it. While another server has a reservation, this one
    /// gets the next, from the other's commit on, unless a third one has it. Absent: no reservation is asked.
    pub reserve: Option<Duration>,
    /// How long the longest lease of the new root goes on. A store that lets unused roots expire keeps this one for longer.
    pub keep: Duration,
    /// Whether it may grant: a store that is in quarantine, or full, refuses such a commit with an error that says that it
    /// had no effect.
    pub grants: bool,
    /// Whether it grants or extends a lease, or changes what a holder shows: a store may be asked to let replicas confirm
    /// it.
    pub extends: bool,
    /// Whether it changes only places in the queue: a store may make it durable later. A loss costs a place, never
    /// exclusion.
    pub soft: bool,
}

/// The answer to a [`Commit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    /// It took effect.
    Applied(Stamp),
    /// It took effect, but for this reason the store may lose it in a failover: too few replicas have confirmed it.
    Unconfirmed(Stamp, String),
    /// It had no effect, and never will.
    Refused(Found),
}

/// What a read found, or a commit that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The clocks now. Those of a lock without a root are the store's clock.
    pub now: Stamp,
    /// The root.
    pub root: FoundRoot,
    /// Until when only this server may commit, by the lock's clock.
    pub reserved: Option<(ServerId, LockTime)>,
    /// The store's floor of tokens: the largest one of a lock whose root was removed.
    pub floor: u64,
}

/// The root that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundRoot {
    /// There is none.
    Absent,
    /// It is at the version that the reader knows.
    Known,
    /// Another one.
    Root(Root),
}

/// A message from one server to another about a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// To whom.
    pub to: ServerId,
    /// The engine's words. A store that cannot carry so many bytes delivers none, which means: read the lock.
    pub body: Vec<u8>,
}

/// What a server hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A message to this server about this lock, with the stamp of the commit that sent it. The stamp decides what the
    /// commit left open: the tokens that it made, and the ends of leases.
    Message(LockName, Stamp, Vec<u8>),
    /// Messages may have been lost.
    Gap,
}

/// A store of one namespace's records, which are replaced by compare-and-set on the store's own clock.
///
/// # Errors
/// [`BackendError::NotSent`] says that a step had no effect and will have none. After any other error of
/// [`Self::commit`] its outcome is unknown: it may take effect later, but only while its version is expected.
///
/// # Cancellation safety
/// Dropping a future leaves the outcome of its step unknown.
#[async_trait]
pub trait RecordStore: Debug + Send + Sync + 'static {
    /// Commits. The engine has one commit in flight for each lock; a store may batch those of many locks. The same
    /// commit may be sent again: it is applied at most once, because it replaces the version that it expects.
    async fn commit(&self, commit: Commit) -> Result<Committed, BackendError>;

    /// Reads a root, unless it is at `known`, with the clocks of that moment. Sees every commit that was answered
    /// before.
    async fn read(&self, lock: &LockName, known: Option<Version>) -> Result<Found, BackendError>;

    /// Reads those of these parts that exist, in order. They are never changed once they are written.
    async fn parts(&self, lock: &LockName, parts: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>, BackendError>;

    /// At most `limit` roots whose names begin with `prefix` and sort after `after`, by name; the clocks of that moment
    /// stand beside each.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root, Stamp)>, BackendError>;

    /// At most `limit` roots that were not written for so long and whose names sort after `after`, by name, for
    /// [`Self::remove`]. Leases may be held for a day without a renewal: such roots must not hide those behind them.
    async fn idle(
        &self,
        unused_for: Duration,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root)>, BackendError>;

    /// Raises the floor of tokens to at least `floor`, and removes those of these roots, with their parts, that are
    /// still at these versions, in one atomic step.
    async fn remove(&self, roots: &[(LockName, Version)], floor: u64) -> Result<(), BackendError>;

    /// Adds 1 to this server's counter, and returns all counters of the namespace: a server is alive while its counter
    /// rises. Counters that stand still are removed after a while.
    async fn beat(&self, server: ServerId) -> Result<Vec<(ServerId, u64)>, BackendError>;

    /// Removes this server's counter. A server whose counter is missing is dead after as long as one whose counter stands
    /// still.
    async fn leave(&self, server: ServerId) -> Result<(), BackendError>;

    /// The messages to this server. Called once.
    fn messages(&self, server: ServerId) -> BoxStream<'static, Heard>;

    /// Whether the store sends messages at all.
    fn has_messages(&self) -> bool {
        true
    }

    /// How soon after its last change the engine reads the root of a lock with local waiters or watchers again, in case a
    /// message was lost. If it has not changed, the engine reads it again after twice as long, up to 250 ms.
    fn poll(&self) -> Duration;

    /// Whether a commit may be [`Committed::Unconfirmed`]. One that was found after its answer was lost counts as such.
    fn confirms(&self) -> bool {
        false
    }

    /// Ends a quarantine, if there is one.
    async fn admit(&self) -> Result<(), BackendError>;

    /// Ends the quarantine of one of its nodes.
    async fn admit_node(&self, _node: &str) -> Result<(), BackendError> {
        Err(BackendError::Unsupported {
            what: "this backend has no nodes to admit one by one",
        })
    }

    /// The store's current health.
    fn health(&self) -> watch::Receiver<Health>;

    /// What operators should know of the store although it serves.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Finishes the steps in flight and disconnects.
    async fn close(&self);
}
