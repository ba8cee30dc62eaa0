//! The trait [`Tree`]: what the engine asks of a store.
//!
//! A tree has small nodes with data, a version and children. One request changes several nodes or none, each on a
//! condition. The nodes of a session end with it. The store numbers nodes in the order in which they are appended. A
//! watch tells what changes below a node.

use std::fmt::Debug;

use futures::future::BoxFuture;
use tokio::sync::watch;

pub use self::failure::{Failure, Reason};

mod failure;

/// The answer to a request. One that writes is queued when its method is called, before this is polled, and it is sent even
/// if this is dropped.
pub type Answer<T> = BoxFuture<'static, Result<T, Failure>>;

/// A tree of small nodes, over one session.
///
/// Each request names the connection over which it may be sent, so that it is known what was sent before and after. The
/// requests of one connection take effect in the order in which their methods were called, and a read sees what earlier
/// requests of its session wrote; it may lack what other sessions have written since. Of a store whose steps are
/// independent ([`CommitBounds`]), a request follows only those that were answered before its method was called. A request
/// that a broken connection left without an answer may take effect later, until a write over the next connection keeps it
/// out.
///
/// # Errors
/// Every method fails with [`Failure::NotSent`] if the connection is gone, and with [`Failure::Unavailable`] if the
/// answer is lost.
pub trait Tree: Debug + Send + Sync + 'static {
    /// The state of the session.
    fn state(&self) -> watch::Receiver<ConnectionState>;

    /// Applies steps in one transaction: each takes effect whole or not at all, and none unless the guards apply.
    /// [`Failure::Refused`] says which guard does not; then nothing is written.
    fn commit(&self, generation: u64, guards: &[Op], steps: &[Vec<Op>]) -> Answer<Committed>;

    /// What a commit may have.
    fn bounds(&self) -> CommitBounds;

    /// Applies operations in one atomic step. [`Failure::Refused`] says which one could not be applied; then none is.
    fn apply(&self, generation: u64, ops: &[Op]) -> Answer<Vec<Done>> {
        let answer = self.commit(generation, &[], &[ops.to_vec()]);
        Box::pin(async move {
            match answer.await?.steps.pop() {
                Some(Outcome::Done(done)) => Ok(done),
                Some(Outcome::Refused { index, reason }) => Err(Failure::Refused { index, reason }),
                Some(Outcome::NotJudged) | None => Err(Failure::malformed()),
            }
        })
    }

    /// A node's data; `None` if it is absent.
    fn get(&self, generation: u64, path: &str) -> Answer<Option<(Vec<u8>, Stat)>>;

    /// The names of a node's children; `None` if it is absent.
    fn children(&self, generation: u64, path: &str) -> Answer<Option<(Vec<String>, Stat)>>;

    /// Catches up: reads that are sent after this call see what any session wrote before it.
    fn sync(&self, generation: u64, path: &str) -> Answer<()>;

    /// Watches a node and those below it until [`Self::unwatch`] or the end of the connection. What a read that is sent
    /// later does not show is told.
    fn watch(&self, generation: u64, path: &str) -> Answer<()>;

    /// Ends a watch.
    fn unwatch(&self, generation: u64, path: &str) -> Answer<()>;

    /// Ends the session, and with it its nodes and watches, over whichever connection it has.
    fn close(&self) -> Answer<()>;
}

/// What a commit may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitBounds {
    /// The most steps of a commit.
    pub steps: usize,
    /// A step of more operations is sent alone.
    pub step_ops: usize,
    /// The most commits under way.
    pub in_flight: usize,
    /// A refused step leaves the others of its commit, and all conditions of a commit are judged before it writes.
    /// Otherwise a step sees the steps before it. Commits that are under way have no order.
    pub independent: bool,
    /// The numbers of transactions may get far ahead of the clock, so that the base of the tokens is lowered again.
    pub numbers_leap: bool,
}

impl CommitBounds {
    /// Those of a store that applies all operations of a commit, in their order, or none.
    pub const ALL_OR_NONE: Self = Self {
        steps: 64,
        step_ops: usize::MAX,
        in_flight: 4,
        independent: false,
        numbers_leap: true,
    };
}

/// The answer to a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The answers to the guards.
    pub guards: Vec<Done>,
    /// What became of each step.
    pub steps: Vec<Outcome>,
    /// The number of the transaction, if the store says it.
    pub number: Option<i64>,
}

/// What became of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect.
    Done(Vec<Done>),
    /// Nothing of it was written, because this operation of it could not be applied.
    Refused {
        /// The index of the operation.
        index: usize,
        /// Why.
        reason: Reason,
    },
    /// Nothing of it was written, because another step of the commit was refused.
    NotJudged,
}

impl Committed {
    /// The operations of a commit in one list, for a store that applies all or none.
    pub fn ops(guards: &[Op], steps: &[Vec<Op>]) -> Vec<Op> {
        guards.iter().chain(steps.iter().flatten()).cloned().collect()
    }

    /// The answer of such a store to that list, of so many guards and steps of these lengths.
    ///
    /// # Errors
    /// If a guard was refused, or for the answer's own failure.
    pub fn of(answer: Result<Vec<Done>, Failure>, guards: usize, steps: &[usize]) -> Result<Self, Failure> {
        match answer {
            Ok(mut done) => {
                let mut rest = done.split_off(guards.min(done.len())).into_iter();
                let steps = steps
                    .iter()
                    .map(|count| Outcome::Done(rest.by_ref().take(*count).collect()));
                let steps = steps.collect();
                Ok(Self {
                    guards: done,
                    steps,
                    number: None,
                })
            }
            Err(Failure::Refused { index, reason }) if index >= guards => {
                let mut first = guards;
                let steps = steps.iter().map(|count| {
                    let own = first..first + count;
                    first = own.end;
                    match own.contains(&index) {
                        true => Outcome::Refused {
                            index: index - own.start,
                            reason: reason.clone(),
                        },
                        false => Outcome::NotJudged,
                    }
                });
                Ok(Self {
                    guards: Vec::new(),
                    steps: steps.collect(),
                    number: None,
                })
            }
            Err(failure) => Err(failure),
        }
    }
}

/// The state of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not connected, and why.
    Disconnected(String),
    /// Connected.
    Connected(Connected),
}

/// A connection of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    /// Counts the connections.
    pub generation: u64,
    /// The session.
    pub session: i64,
    /// The server.
    pub server: String,
    /// Why it takes no writes but deletions, if it does not.
    pub refusal: Option<String>,
}

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kind.
    pub kind: EventKind,
    /// The node.
    pub path: String,
}

/// The kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The node was created.
    Created,
    /// The node was deleted.
    Deleted,
    /// The data of the node was changed.
    Changed,
}

/// What the store knows about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The number of the transaction that created it. Transactions of the whole store are counted.
    pub created: i64,
    /// The number of the transaction that last changed its data.
    pub modified: i64,
    /// It changes with the data, and rises.
    pub version: Version,
}

impl Stat {
    /// The state of a node that this transaction has created in this version.
    pub fn of_new(transaction: i64, version: Version) -> Self {
        Self {
            created: transaction,
            modified: transaction,
            version,
        }
    }
}

/// The kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// It stays until it is deleted.
    Persistent,
    /// It ends with the session that created it.
    Ephemeral,
    /// The same; the store appends a number to its name, higher for each node of the same parent, until it wraps around.
    EphemeralSequential,
}

/// The version of a node.
pub type Version = i64;

/// Any version of a node.
pub const ANY: Version = -1;

/// An operation of a commit, which is also a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// The node is there with this version.
    Check {
        /// The node.
        path: String,
        /// Its version.
        version: Version,
    },
    /// The node has no children but those of readers. Only a store whose steps are independent knows it.
    Readers {
        /// The node.
        path: String,
    },
    /// The node is absent and its parent is there; it is created.
    Create {
        /// The node.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// Its kind.
        kind: NodeKind,
    },
    /// The node has this version, and gets this data.
    Set {
        /// The node.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// Its version before.
        version: Version,
    },
    /// The node has this version and no children, and is deleted.
    Delete {
        /// The node.
        path: String,
        /// Its version.
        version: Version,
    },
}

impl Op {
    /// See [`Self::Check`].
    pub fn check(path: impl Into<String>, version: Version) -> Self {
        let path = path.into();
        Self::Check { path, version }
    }

    /// See [`Self::Create`]; of a persistent node.
    pub fn create(path: impl Into<String>, data: Vec<u8>) -> Self {
        let (path, kind) = (path.into(), NodeKind::Persistent);
        Self::Create { path, data, kind }
    }

    /// See [`Self::Set`].
    pub fn set(path: impl Into<String>, data: Vec<u8>, version: Version) -> Self {
        let path = path.into();
        Self::Set { path, data, version }
    }

    /// See [`Self::Delete`].
    pub fn delete(path: impl Into<String>, version: Version) -> Self {
        let path = path.into();
        Self::Delete { path, version }
    }

    /// The node that it writes.
    pub fn written(&self) -> Option<&str> {
        match self {
            Self::Check { .. } | Self::Readers { .. } => None,
            // A sequential node gets a name of its own.
            Self::Create {
                kind: NodeKind::EphemeralSequential,
                ..
            } => None,
            Self::Create { path, .. } | Self::Set { path, .. } | Self::Delete { path, .. } => Some(path),
        }
    }

    /// About how many bytes it has in a request.
    pub fn size(&self) -> usize {
        const FIXED: usize = 64;
        FIXED
            + match self {
                Self::Check { path, .. } | Self::Readers { path } | Self::Delete { path, .. } => path.len(),
                Self::Create { path, data, .. } | Self::Set { path, data, .. } => path.len() + data.len(),
            }
    }
}

/// What an applied operation answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// A check or a deletion.
    Nothing,
    /// The path of a new node, with its number, and its version.
    Created(String, Version),
    /// The new state of a changed node.
    Set(Stat),
}
