//! Maps errors of the Redis client to [`BackendError`].

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::backend::BackendError;
pub use crate::backend::failure::{broken, not_sent, unavailable};

/// The error codes of a script that cannot read a lock's record, and has written nothing: it has the format of another
/// release, is no record, or is damaged.
const RECORDS: &[&str] = &["LAYOUT", "WRONGTYPE", "BROKEN"];
/// The beginning of such an error's message.
const UNREADABLE: &str = "the lock's record cannot be read";

/// Whether the error is about one lock's record, which is damaged or of another release, and not
/// about the store.
pub fn is_of_record(error: &BackendError) -> bool {
    match error {
        BackendError::Broken { .. } => true,
        BackendError::NotSent { reason } => reason.starts_with(UNREADABLE),
        _ => false,
    }
}

/// The error codes with which a server refuses a command before it begins: it is out of memory,
/// cannot load or persist its data, is no master any more, or has too few replicas. A script that the user may not run in
/// full answers DENIED, and has written nothing.
const REFUSALS: &[&str] = &[
    "OOM",
    "READONLY",
    "LOADING",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "DENIED",
];

/// Maps the error of a script call. An error raised by the script itself is a bug. A refused script
/// had no effect. Every other error (no connection, no reply, no permission) means that the store
/// is unavailable.
pub fn of_script(error: &RedisError) -> BackendError {
    let is_script_error = matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ResponseError));
    if is_script_error {
        broken(error)
    } else if is_refusal(error) {
        not_sent(error)
    } else if error.code().is_some_and(|code| RECORDS.contains(&code)) {
        not_sent(format!("{UNREADABLE}: {error}"))
    } else {
        unavailable(error)
    }
}

fn is_refusal(error: &RedisError) -> bool {
    // The refusal of a command within the script is an error of the script.
    let is_in_script = error.detail().is_some_and(|detail| detail.contains("script:"));
    !is_in_script && error.code().is_some_and(|code| REFUSALS.contains(&code))
}

/// Whether the connection, or its server, should be checked before it is used again.
pub fn is_suspect(error: &RedisError) -> bool {
    use ServerErrorKind::{ClusterDown, MasterDown, ReadOnly};
    error.is_io_error()
        || matches!(
            error.kind(),
            ErrorKind::Parse | ErrorKind::Server(ReadOnly | MasterDown | ClusterDown)
        )
}
