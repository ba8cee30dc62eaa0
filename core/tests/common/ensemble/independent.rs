//! Commits of independent steps, as the driver of etcd has them: all conditions of a commit are judged before it writes, a
//! refused step leaves the others, and a refused guard all.
//!
//! The node of a lock is not stored: it is there while it has children. No other node needs a parent. A version is the
//! revision that wrote it. The path of a lock's child ends with the revision that created it, so none is made twice.

use std::collections::HashMap;

use fencepost_core::backend::tree::store::{ANY, Committed, Done, NodeKind, Op, Outcome, Reason, Stat, Version};

use super::mutants::{Condition, Role};
use super::nodes::{Change, Happened, Node, Nodes};

/// The numbers of the appended nodes of one commit are below this.
const TOGETHER: i64 = 128;

/// Why nothing of a commit is written.
#[derive(Debug)]
pub enum Refusal {
    /// The guard of this index is not met.
    Guard(usize, Reason),
    /// The session has ended, and one of its nodes would be written.
    SessionGone,
    /// Etcd takes no request that puts a key and writes it once more.
    WrittenTwice(String),
}

/// A commit that is being applied.
pub struct Commit<'a, Ignored> {
    pub nodes: &'a mut Nodes,
    /// The session, if it lives.
    pub session: Option<i64>,
    pub revision: i64,
    /// Whether a condition refuses nothing.
    pub ignored: Ignored,
    /// The conditions that have refused something.
    pub refused: Vec<Condition>,
    pub changes: Vec<Change>,
    pub appended: i64,
}

impl<Ignored: Fn(&Condition) -> bool> Commit<'_, Ignored> {
    /// Applies the steps, unless a guard is refused.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn apply(&mut self, guards: &[Op], steps: &[Vec<Op>]) -> Result<Committed, Refusal> {
        if let Some(path) = written_twice(guards, steps) {
            return Err(Refusal::WrittenTwice(path));
        }
        if let Err((index, reason)) = self.judge(guards) {
            return Err(Refusal::Guard(index, reason));
        }
        let judged: Vec<_> = steps.iter().map(|step| self.judge(step)).collect();
        let mut written = steps.iter().zip(&judged).filter(|(_, judged)| judged.is_ok());
        if self.session.is_none() && written.any(|(step, _)| step.iter().any(is_of_session)) {
            return Err(Refusal::SessionGone);
        }
        let guards = guards.iter().map(|op| self.write(op)).collect();
        let steps = steps.iter().zip(judged).map(|(step, judged)| match judged {
            Ok(()) => Outcome::Done(step.iter().map(|op| self.write(op)).collect()),
            Err((index, reason)) => Outcome::Refused { index, reason },
        });
        let steps = steps.collect();
        Ok(Committed {
            guards,
            steps,
            number: Some(self.revision),
        })
    }

    fn judge(&mut self, ops: &[Op]) -> Result<(), (usize, Reason)> {
        for (index, op) in ops.iter().enumerate() {
            if let Err(reason) = self.judge_one(op, (&ops[..index], &ops[index..])) {
                let condition = Condition::of(op, &reason);
                if !(self.ignored)(&condition) {
                    self.refused.push(condition);
                    return Err((index, reason));
                }
            }
        }
        Ok(())
    }

    fn judge_one(&self, op: &Op, (before, after): (&[Op], &[Op])) -> Result<(), Reason> {
        let creates = |ops: &[Op], path| {
            ops.iter()
                .any(|op| matches!(op, Op::Create { path: other, .. } if other == path))
        };
        match op {
            Op::Check { path, version } => self.require(path, *version),
            Op::Readers { path } => match self.nodes.children(path).iter().all(|name| is_reader(name)) {
                true => Ok(()),
                false => Err(Reason::NodeExists),
            },
            Op::Create { path, .. } => match Role::of(path) {
                Role::Lock if self.nodes.children(path).is_empty() => Ok(()),
                // Each child has a path of its own.
                Role::Holder | Role::Waiter => Ok(()),
                Role::Lock => Err(Reason::NodeExists),
                _ if self.nodes.get(path).is_some() => Err(Reason::NodeExists),
                _ => Ok(()),
            },
            Op::Set { path, .. } if creates(before, path) => Ok(()),
            Op::Set { path, version, .. } => self.require(path, *version),
            Op::Delete { path, .. } if Role::of(path) == Role::Lock => {
                match creates(after, path) && !self.nodes.children(path).is_empty() {
                    true => Err(Reason::NotEmpty),
                    false => Ok(()),
                }
            }
            Op::Delete { path, version } => self.require(path, *version),
        }
    }

    fn require(&self, path: &str, version: Version) -> Result<(), Reason> {
        let node = self.nodes.get(path).ok_or(Reason::NoNode)?;
        match version == ANY || node.stat.version == version {
            true => Ok(()),
            false => Err(Reason::BadVersion),
        }
    }

    fn write(&mut self, op: &Op) -> Done {
        let revision = self.revision;
        match op {
            Op::Check { .. } | Op::Readers { .. } => Done::Nothing,
            Op::Create { path, .. } if Role::of(path) == Role::Lock => Done::Created(path.clone(), revision),
            Op::Create { path, data, kind } => {
                let path = match (Role::of(path), kind) {
                    (Role::Waiter, NodeKind::EphemeralSequential) => {
                        let number = revision * TOGETHER + self.appended % TOGETHER;
                        self.appended += 1;
                        format!("{path}{number:010}~{revision:x}")
                    }
                    (Role::Holder | Role::Waiter, _) => format!("{path}~{revision:x}"),
                    _ => path.clone(),
                };
                let session = match kind {
                    NodeKind::Persistent => 0,
                    _ => self.session.unwrap_or(0),
                };
                let node = Node::new(data, Stat::of_new(revision, revision), session);
                self.change(&path, Some(node), Happened::Created);
                Done::Created(path, revision)
            }
            Op::Set { path, data, .. } => {
                let mut stat = Stat::of_new(revision, revision);
                let known = self.nodes.get(path);
                let happened = known.map_or(Happened::Created, |_| Happened::Changed);
                stat.created = known.map_or(revision, |node| node.stat.created);
                let session = known.map_or(0, Node::session);
                self.change(path, Some(Node::new(data, stat, session)), happened);
                Done::Set(Stat { created: 0, ..stat })
            }
            Op::Delete { path, .. } => {
                if self.nodes.get(path).is_some() {
                    self.change(path, None, Happened::Deleted);
                }
                Done::Nothing
            }
        }
    }

    fn change(&mut self, path: &str, node: Option<Node>, happened: Happened) {
        let change = Change {
            path: path.to_owned(),
            node,
            happened: Some(happened),
        };
        self.nodes.apply(&change);
        self.changes.push(change);
    }
}

/// Whether a child of this name is a reader.
fn is_reader(name: &str) -> bool {
    name.split('-').nth(1).is_some_and(|mode| mode.starts_with('s'))
}

/// Whether what it puts ends with the session.
fn is_of_session(op: &Op) -> bool {
    match op {
        Op::Create { kind, .. } => *kind != NodeKind::Persistent,
        Op::Set { path, .. } => Role::of(path) == Role::Fence,
        Op::Check { .. } | Op::Readers { .. } | Op::Delete { .. } => false,
    }
}

/// A stored node that one step puts and another puts or deletes, or that a step puts and deletes.
fn written_twice(guards: &[Op], steps: &[Vec<Op>]) -> Option<String> {
    // By its path: the step, and whether that puts it.
    let mut written: HashMap<&str, (usize, bool)> = HashMap::new();
    for (number, step) in std::iter::once(guards)
        .chain(steps.iter().map(Vec::as_slice))
        .enumerate()
    {
        for op in step {
            let is_put = !matches!(op, Op::Delete { .. });
            let is_stored = |path: &&str| match Role::of(path) {
                Role::Lock => false,
                // A new one has a path of its own.
                Role::Holder | Role::Waiter => !matches!(op, Op::Create { .. }),
                _ => true,
            };
            let Some(path) = op.written().filter(is_stored) else {
                continue;
            };
            let (first, was_put) = *written.entry(path).or_insert((number, is_put));
            if (is_put || was_put) && (first != number || is_put != was_put) {
                return Some(path.to_owned());
            }
        }
    }
    None
}
