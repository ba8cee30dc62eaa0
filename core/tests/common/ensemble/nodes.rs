//! The nodes of a simulated ensemble: what its servers agree on, transaction by transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fencepost_core::backend::tree::store::{ANY, Done, NodeKind, Op, Reason, Stat, Version};

use super::mutants::Condition;

/// A node.
#[derive(Debug, Clone)]
pub struct Node {
    pub data: Vec<u8>,
    pub stat: Stat,
    children: u32,
    /// The sequence number of its next sequential child. It is that of its changes, so it rises with deletions, too.
    next: i32,
    /// The session that it ends with; 0 if it is persistent.
    session: i64,
}

/// What happened to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    Created,
    Changed,
    Deleted,
}

/// A change of a node, as the log has it.
#[derive(Debug, Clone)]
pub struct Change {
    pub path: String,
    pub node: Option<Node>,
    /// What watches are told; a parent's counters change without notice.
    pub happened: Option<Happened>,
}

/// Nodes by their paths.
#[derive(Debug, Clone, Default)]
pub struct Nodes(BTreeMap<String, Node>);

fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/')
        .map(|(parent, _)| parent)
        .filter(|parent| !parent.is_empty())
}

impl Node {
    /// One without children, of this session; 0 if it is persistent.
    pub fn new(data: &[u8], stat: Stat, session: i64) -> Self {
        Self {
            data: data.to_vec(),
            stat,
            children: 0,
            next: 0,
            session,
        }
    }

    pub fn session(&self) -> i64 {
        self.session
    }
}

impl Nodes {
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.0.get(path)
    }

    /// The names of a node's children.
    pub fn children(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}/");
        let below = self.0.range(prefix.clone()..).map(|(path, _)| path);
        let below = below.map_while(|path| path.strip_prefix(&prefix));
        // A node that is not stored is there while it has children.
        let names: BTreeSet<_> = below.filter_map(|rest| rest.split('/').next()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// The paths that contain this.
    pub fn paths(&self, part: &str) -> Vec<String> {
        self.0.keys().filter(|path| path.contains(part)).cloned().collect()
    }

    /// The ephemeral nodes of a session.
    pub fn of_session(&self, session: i64) -> Vec<String> {
        let of = self.0.iter().filter(|(_, node)| node.session == session);
        of.map(|(path, _)| path.clone()).collect()
    }

    /// Applies a change that the log has.
    pub fn apply(&mut self, change: &Change) {
        match &change.node {
            Some(node) => self.0.insert(change.path.clone(), node.clone()),
            None => self.0.remove(&change.path),
        };
    }

    /// Applies the operations of a session in one transaction, or none of them. A condition that is `ignored` refuses
    /// nothing.
    ///
    /// # Errors
    /// The index of the first operation that cannot be applied, and why.
    pub fn multi(
        &mut self,
        ops: &[Op],
        (session, zxid): (i64, i64),
        ignored: impl Fn(Condition) -> bool,
    ) -> Result<(Vec<Done>, Vec<Change>), (usize, Reason)> {
        let mut step = Transaction {
            nodes: self,
            session,
            zxid,
            before: HashMap::new(),
            changes: Vec::new(),
        };
        let mut done = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            match step.op(op) {
                Ok(one) => done.push(one),
                Err(reason) if ignored(Condition::of(op, &reason)) => done.push(step.force(op)),
                Err(reason) => {
                    step.undo();
                    return Err((index, reason));
                }
            }
        }
        let changes = step.changes;
        Ok((done, changes))
    }
}

struct Transaction<'a> {
    nodes: &'a mut Nodes,
    session: i64,
    zxid: i64,
    /// The nodes that it has changed, as they were.
    before: HashMap<String, Option<Node>>,
    changes: Vec<Change>,
}

impl Transaction<'_> {
    fn undo(self) {
        for (path, node) in self.before {
            match node {
                Some(node) => self.nodes.0.insert(path, node),
                None => self.nodes.0.remove(&path),
            };
        }
    }

    fn write(&mut self, path: &str, node: Option<Node>, happened: Option<Happened>) {
        let before = self.nodes.0.get(path).cloned();
        self.before.entry(path.to_owned()).or_insert(before);
        let change = Change {
            path: path.to_owned(),
            node,
            happened,
        };
        self.nodes.apply(&change);
        self.changes.push(change);
    }

    /// The node, if it has this version.
    fn with_version(&self, path: &str, version: Version) -> Result<Node, Reason> {
        let node = self.nodes.0.get(path).cloned().ok_or(Reason::NoNode)?;
        match version == ANY || node.stat.version == version {
            true => Ok(node),
            false => Err(Reason::BadVersion),
        }
    }

    /// A child was created or deleted.
    fn count_child(&mut self, path: &str, more: i32) {
        if let Some(parent) = parent(path)
            && let Some(mut node) = self.nodes.0.get(parent).cloned()
        {
            node.next = node.next.wrapping_add(1);
            node.children = node.children.saturating_add_signed(more);
            self.write(parent, Some(node), None);
        }
    }

    /// Applies an operation whose condition fails, as far as it can be.
    fn force(&mut self, op: &Op) -> Done {
        let now = |path| self.nodes.0.get(path).map(|node| node.stat.version);
        let forced = match op {
            Op::Set { path, data, .. } => now(path).map(|version| Op::set(path.clone(), data.clone(), version)),
            Op::Create { path, data, .. } => now(path).map(|version| Op::set(path.clone(), data.clone(), version)),
            Op::Delete { path, .. } => {
                if let Some(mut node) = self.nodes.0.get(path).cloned() {
                    node.children = 0;
                    self.write(path, Some(node), None);
                }
                Some(Op::delete(path.clone(), ANY))
            }
            Op::Check { .. } | Op::Readers { .. } => None,
        };
        let done = forced.and_then(|forced| self.op(&forced).ok());
        match (op, done) {
            (Op::Create { path, .. }, _) => Done::Created(path.clone(), 0),
            (Op::Set { .. }, None) => Done::Set(Stat::of_new(self.zxid, 0)),
            (_, done) => done.unwrap_or(Done::Nothing),
        }
    }

    fn op(&mut self, op: &Op) -> Result<Done, Reason> {
        match op {
            Op::Readers { .. } => Err(Reason::Other("it does not know readers".into())),
            Op::Check { path, version } => self.with_version(path, *version).map(|_| Done::Nothing),
            Op::Create { path, data, kind } => self.create(path, data, *kind),
            Op::Set { path, data, version } => {
                let mut node = self.with_version(path, *version)?;
                node.data.clone_from(data);
                node.stat.version += 1;
                node.stat.modified = self.zxid;
                let stat = node.stat;
                self.write(path, Some(node), Some(Happened::Changed));
                Ok(Done::Set(stat))
            }
            Op::Delete { path, version } => {
                let node = self.with_version(path, *version)?;
                if node.children > 0 {
                    return Err(Reason::NotEmpty);
                }
                self.write(path, None, Some(Happened::Deleted));
                self.count_child(path, -1);
                Ok(Done::Nothing)
            }
        }
    }

    fn create(&mut self, path: &str, data: &[u8], kind: NodeKind) -> Result<Done, Reason> {
        let next = match parent(path) {
            Some(parent) => self.nodes.0.get(parent).ok_or(Reason::NoNode)?.next,
            None => 0,
        };
        let path = match kind {
            NodeKind::EphemeralSequential => format!("{path}{next:010}"),
            NodeKind::Persistent | NodeKind::Ephemeral => path.to_owned(),
        };
        if self.nodes.0.contains_key(&path) {
            return Err(Reason::NodeExists);
        }
        let session = if kind == NodeKind::Persistent { 0 } else { self.session };
        let node = Node::new(data, Stat::of_new(self.zxid, 0), session);
        self.write(&path, Some(node), Some(Happened::Created));
        self.count_child(&path, 1);
        Ok(Done::Created(path, 0))
    }
}
