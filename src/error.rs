//! Everything that can end a call without its answer; `api::status` alone turns it into a gRPC
//! status.

use std::time::Duration;

use crate::auth::{Denied, Unproven};
use crate::backend::{BackendError, Refusal};
use crate::claim::{Cause, Holder};
use crate::name::{InvalidField, Mode};
use crate::quota::OverLimit;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A try found the lock held, or waited for.
    #[error("the lock is held{}", holder.as_ref().map(|h| format!(" by {:?}", h.owner.as_str())).unwrap_or_default())]
    LockHeld {
        /// The first holder, where one holds.
        holder: Option<Box<Holder>>,
    },
    /// The wait ran out.
    #[error("the lock was not granted within {waited:?}")]
    WaitTimeout {
        /// How long the call waited.
        waited: Duration,
    },
    /// A later call with the same request id took this wait over.
    #[error("a later call with the same request_id took this wait over")]
    Superseded,
    /// The lease, or the token to force, is not held.
    #[error("the lease is gone: {}", cause.map_or("unknown", Cause::word))]
    LeaseLost {
        /// Why, while that is remembered.
        cause: Option<Cause>,
    },
    /// The namespace's backend does not offer this.
    #[error("not offered here: {what}")]
    Unsupported {
        /// What is not offered, and why.
        what: String,
    },
    /// The request's lease was already released.
    #[error("the lease of this request_id was already released")]
    AlreadyReleased,
    /// The mode cannot share the lock with a claim in its queue.
    #[error("cannot share the lock with a claim of mode {there} in its queue")]
    LimitMismatch {
        /// The mode of that claim.
        there: Mode,
    },
    /// A field is outside its bounds.
    #[error(transparent)]
    InvalidField(#[from] InvalidField),
    /// There is no such namespace.
    #[error("there is no namespace {namespace:?}")]
    NamespaceNotFound {
        /// Its name, as asked.
        namespace: String,
    },
    /// The lock's queue, or the claim's holds, are at their limit.
    #[error("full: the limit of {limit} is reached")]
    QueueFull {
        /// The limit.
        limit: u32,
    },
    /// The server has too much to do.
    #[error("overloaded: {what}")]
    Overloaded {
        /// Which limit was reached.
        what: String,
    },
    /// The caller, or the namespace, has reached a limit of its own.
    #[error("overloaded: {0}")]
    OverLimit(OverLimit),
    /// It was not proven who the caller is.
    #[error("not authenticated: {cause}")]
    Unauthenticated {
        /// Why not.
        cause: Unproven,
    },
    /// No rule allows the caller to do this.
    #[error("{0}")]
    PermissionDenied(Box<Denied>),
    /// The store failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
}

impl From<OverLimit> for Error {
    fn from(over: OverLimit) -> Self {
        Self::OverLimit(over)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full { limit } => Self::QueueFull { limit },
            Refusal::StoreFull { limit } => Self::Overloaded {
                what: format!("the namespace holds as many claims as it may, {limit}"),
            },
            Refusal::LimitMismatch { there } => Self::LimitMismatch { there },
            Refusal::OtherParameters { field } => Self::InvalidField(InvalidField::new(
                field,
                "differs from that of the claim with this request_id, or of the holder to re-enter",
            )),
        }
    }
}
