//! The errors of calls. Only `api::status` converts them to gRPC statuses.

use std::fmt::Write as _;
use std::time::Duration;

use crate::auth::{AuthenticationFailure, Denied};
use crate::backend::{BackendError, Refusal};
use crate::claim::{Cause, Holder};
use crate::name::{InvalidField, LockName, Mode};
use crate::quota::QuotaExceeded;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The lock is held, or has waiters, and the call does not wait.
    #[error("the lock is held{}", holder.as_ref().map(|h| format!(" by {:?}", h.owner.as_str())).unwrap_or_default())]
    LockHeld {
        /// The first holder, where one holds.
        holder: Option<Box<Holder>>,
    },
    /// The wait timed out.
    #[error("the lock was not granted within {waited:?}")]
    WaitTimeout {
        /// The time since the call's arrival.
        waited: Duration,
    },
    /// A later call with the same request id adopted the waiting claim.
    #[error("a later call with the same request_id adopted the waiting claim")]
    Superseded,
    /// The lease, or the token to force-release, does not hold the lock.
    #[error("the lease is gone: {}", cause.map_or("unknown", Cause::as_str))]
    LeaseLost {
        /// Why it ended, while the store remembers.
        cause: Option<Cause>,
    },
    /// The namespace's backend does not support this.
    #[error("unsupported: {what}")]
    Unsupported {
        /// The unsupported feature.
        what: String,
    },
    /// The request's lease was already released.
    #[error("the lease of this request_id was already released")]
    AlreadyReleased,
    /// The mode cannot share the lock with a claim in its queue.
    #[error("cannot share the lock with a claim of mode {existing} in its queue")]
    LimitMismatch {
        /// The mode of the queued claim.
        existing: Mode,
    },
    /// A field is outside its bounds.
    #[error(transparent)]
    InvalidField(#[from] InvalidField),
    /// There is no such namespace.
    #[error("there is no namespace {namespace:?}")]
    NamespaceNotFound {
        /// The requested name.
        namespace: String,
    },
    /// The lock's queue, or the claim's number of holds, is at its limit.
    #[error("full: the limit of {limit} is reached")]
    QueueFull {
        /// The limit.
        limit: u32,
    },
    /// The server is overloaded.
    #[error("overloaded: {what}")]
    Overloaded {
        /// The limit that was reached.
        what: String,
    },
    /// The caller or the namespace has reached its own limit.
    #[error("overloaded: {0}")]
    QuotaExceeded(#[from] QuotaExceeded),
    /// The caller was not authenticated.
    #[error("not authenticated: {cause}")]
    Unauthenticated {
        /// The reason.
        cause: AuthenticationFailure,
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
    /// What happened to one lock of several.
    #[error("{:?}: {error}", name.as_str())]
    OfLock {
        /// The lock.
        name: LockName,
        /// What happened.
        error: Box<Self>,
    },
}

impl Error {
    /// Whether the same call may succeed soon: nothing is known about its lock or lease.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Backend(error) => error.is_transient(),
            Self::Overloaded { .. } | Self::QuotaExceeded(_) | Self::Draining => true,
            Self::OfLock { error, .. } => error.is_transient(),
            _ => false,
        }
    }

    /// This error of one lock of several.
    pub fn of_lock(self, name: LockName) -> Self {
        Self::OfLock {
            name,
            error: Box::new(self),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full { limit } => Self::QueueFull { limit },
            Refusal::StoreFull { limit } => Self::Overloaded {
                what: format!("the namespace has reached its limit of {limit} claims"),
            },
            Refusal::LockFull { limit } => Self::Overloaded {
                what: format!("the claims of this lock take {limit} bytes, which is the limit"),
            },
            Refusal::LimitMismatch { existing } => Self::LimitMismatch { existing },
            Refusal::OtherParameters { field } => Self::InvalidField(InvalidField::new(
                field,
                "differs from that of the claim with this request_id, or of the holder to re-enter",
            )),
        }
    }
}

/// An error and its causes in one line. A cause that the error before it names already is not repeated.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut previous = error.to_string();
    let mut line = previous.clone();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
        let cause = cause.to_string();
        if !previous.contains(&cause) {
            // Writing to a String cannot fail.
            let _ = write!(line, ": {cause}");
        }
        previous = cause;
    }
    line
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the store failed")]
    struct Quiet(#[source] Telling);

    #[derive(Debug, thiserror::Error)]
    #[error("the connection failed: {0}")]
    struct Telling(#[source] io::Error);

    #[test]
    fn no_cause_is_named_twice() {
        let error = Quiet(Telling(io::ErrorKind::ConnectionRefused.into()));
        let line = "the store failed: the connection failed: connection refused";
        assert_eq!(with_causes(&error), line);
    }
}
