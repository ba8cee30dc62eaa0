//! The conditions under which the engine writes, each of which a mutant leaves out.

use fencepost_core::backend::tree::store::{Op, Reason};

/// What a path is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Fence,
    Base,
    Mint,
    Lock,
    Holder,
    Waiter,
    Request,
    End,
    Directory,
}

impl Role {
    pub fn of(path: &str) -> Self {
        let parts: Vec<_> = path.split('/').collect();
        let name = parts.last().copied().unwrap_or_default();
        match parts.len() {
            4 if name == "base" => Self::Base,
            4 if name == "mint" => Self::Mint,
            5 if parts[3] == "s" => Self::Fence,
            6 if parts[3] == "l" => Self::Lock,
            6 if name.starts_with("r-") => Self::Request,
            6 if name.starts_with("e-") => Self::End,
            7 if name.starts_with("h-") => Self::Holder,
            7 if name.starts_with("q-") => Self::Waiter,
            _ => Self::Directory,
        }
    }
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Check,
    Create,
    Set,
    Delete,
}

/// A condition of the engine's writes, by what its failure says: operations of this kind on nodes of this role are
/// refused for this reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Condition {
    pub kind: Kind,
    pub role: Role,
    pub reason: String,
}

impl Condition {
    /// The condition of an operation that was refused for this reason.
    pub fn of(op: &Op, reason: &Reason) -> Self {
        let (kind, path) = match op {
            Op::Check { path, .. } | Op::Readers { path } => (Kind::Check, path),
            Op::Create { path, .. } => (Kind::Create, path),
            Op::Set { path, .. } => (Kind::Set, path),
            Op::Delete { path, .. } => (Kind::Delete, path),
        };
        let (role, reason) = (Role::of(path), reason.to_string());
        Self { kind, role, reason }
    }
}
