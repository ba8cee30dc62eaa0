//! What an error of the client means here.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::backend::BackendError;

/// The store cannot be used, for this reason.
pub fn away(reason: impl ToString) -> BackendError {
    BackendError::Unavailable {
        reason: reason.to_string(),
    }
}

/// The store cannot be used, for this reason, and was not asked: the step has had no effect.
pub fn unsent(reason: impl ToString) -> BackendError {
    BackendError::NotSent {
        reason: reason.to_string(),
    }
}

/// The store answered what it never should.
pub fn broken(reason: impl ToString) -> BackendError {
    BackendError::Broken {
        reason: reason.to_string(),
    }
}

/// How a script says that it cannot read a lock's record: it is of another release, or no record.
const RECORDS: &[&str] = &["LAYOUT", "WRONGTYPE"];
/// What such an error begins with.
const UNREADABLE: &str = "the lock's record cannot be read";

/// Whether this is about one lock's record, which is damaged or of another release, and not about the store.
pub fn is_of_record(error: &BackendError) -> bool {
    match error {
        BackendError::Broken { .. } => true,
        BackendError::Unavailable { reason } => reason.starts_with(UNREADABLE),
        _ => false,
    }
}

/// How a server refuses what it has not begun: it has no memory left, its data cannot be had or not be
/// kept, it is no master any more, or too few replicas follow it.
const REFUSALS: &[&str] = &[
    "OOM",
    "READONLY",
    "LOADING",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
];

/// What a failed script call says about the store. A script that failed by itself is a bug, and one
/// that was refused has had no effect; all else (no connection, no answer, no permission) is a store
/// away.
pub fn of_script(error: &RedisError) -> BackendError {
    let by_itself = matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ResponseError));
    if by_itself {
        broken(error)
    } else if is_refusal(error) {
        unsent(error)
    } else if error.code().is_some_and(|code| RECORDS.contains(&code)) {
        away(format!("{UNREADABLE}: {error}"))
    } else {
        away(error)
    }
}

fn is_refusal(error: &RedisError) -> bool {
    // What a command within a script was refused tells of the script.
    let within = error.detail().is_some_and(|detail| detail.contains("script:"));
    !within && error.code().is_some_and(|code| REFUSALS.contains(&code))
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
