//! What an error of the client means here.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::backend::BackendError;

/// The store cannot be used, for this reason.
pub fn away(reason: impl ToString) -> BackendError {
    BackendError::Away {
        reason: reason.to_string(),
    }
}

/// The store cannot be used, for this reason, and was not asked: the step has had no effect.
pub fn unsent(reason: impl ToString) -> BackendError {
    BackendError::Unsent {
        reason: reason.to_string(),
    }
}

/// The store answered what it never should.
pub fn broken(reason: impl ToString) -> BackendError {
    BackendError::Broken {
        reason: reason.to_string(),
    }
}

/// What a failed script call says about the store. A script that failed by itself is a bug; all
/// else (no connection, no answer, no memory, no permission, a demoted master) is a store away.
pub fn of_script(error: &RedisError) -> BackendError {
    let by_itself = matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ResponseError));
    if by_itself { broken(error) } else { away(error) }
}

/// Whether the connection, or the server behind it, should be looked at before it is used again.
pub fn is_suspect(error: &RedisError) -> bool {
    use ServerErrorKind::{ClusterDown, MasterDown, ReadOnly};
    error.is_io_error()
        || matches!(
            error.kind(),
            ErrorKind::Parse | ErrorKind::Server(ReadOnly | MasterDown | ClusterDown)
        )
}
