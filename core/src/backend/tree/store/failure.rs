//! Why a request to a store, or a verb that sent requests, failed.

use crate::backend::BackendError;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// A node that it names, or the parent of a new one, is absent.
    #[error("no such node")]
    NoNode,
    /// A node that it creates is there.
    #[error("the node is there already")]
    NodeExists,
    /// A node has another version.
    #[error("the node has another version")]
    BadVersion,
    /// A node that it deletes has children.
    #[error("the node has children")]
    NotEmpty,
    /// The account has no right to it.
    #[error("this server's account may not do that")]
    NoAuth,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// Why a request, or a verb that sent requests, failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An operation of a commit could not be applied; nothing was written.
    #[error("operation {index}: {reason}")]
    Refused {
        /// The index of the operation.
        index: usize,
        /// Why.
        reason: Reason,
    },
    /// A request was refused; nothing was written.
    #[error("{0}")]
    Error(Reason),
    /// No answer. Whether the request took effect is unknown.
    #[error("{0}")]
    Unavailable(String),
    /// The same: the servers have no majority, or no leader.
    #[error("{0}")]
    NoQuorum(String),
    /// Nothing with an effect was sent.
    #[error("{0}")]
    NotSent(String),
    /// A node's data, or an answer, cannot be read.
    #[error("{0}")]
    Damaged(String),
    /// The engine's own: the lock changed before each of several attempts. The last one had no effect.
    #[error("the lock changes too fast")]
    Contended,
    /// The engine's own: the call of a step had ended, so the step was not sent.
    #[error("the call has ended")]
    CallEnded,
    /// The engine's own: a step was not sent, because what it rests on was read over an earlier connection.
    #[error("the lock was read over an earlier connection")]
    Outdated,
    /// The engine's own: a step is larger than a request may be; it was not sent.
    #[error("a step of {0} bytes is larger than a request may be")]
    TooLarge(usize),
}

impl Failure {
    /// An answer that cannot be read.
    pub fn malformed() -> Self {
        Self::Damaged("an answer cannot be read".into())
    }

    /// The error of a store of this kind.
    pub fn of(self, kind: &str) -> BackendError {
        let reason = format!("{kind}: {self}");
        match self {
            Self::NotSent(reason) => BackendError::NotSent { reason },
            Self::CallEnded => BackendError::NotSent { reason },
            Self::NoQuorum(_) => BackendError::NoQuorum { reason, sent: true },
            Self::Damaged(_) | Self::TooLarge(_) => BackendError::Broken { reason },
            Self::Refused { .. } | Self::Error(_) | Self::Unavailable(_) | Self::Contended | Self::Outdated => {
                BackendError::Unavailable { reason }
            }
        }
    }

    /// Why it was refused, if it was.
    fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Error(reason) | Self::Refused { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Whether a node that the request names is absent.
    pub fn is_no_node(&self) -> bool {
        self.reason() == Some(&Reason::NoNode)
    }

    /// Whether a node that the request creates is there.
    pub fn is_node_exists(&self) -> bool {
        self.reason() == Some(&Reason::NodeExists)
    }
}
