//! The one place that turns an [`Error`] into a gRPC status.
//!
//! Each status carries a `google.rpc.ErrorInfo` with the domain [`DOMAIN`] and a reason, and where
//! it helps a `RetryInfo` or a `BadRequest`. A bug is answered INTERNAL without any detail; what
//! went wrong travels as the status's source, inside the server only, to the request log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::auth::Denied;
use crate::backend::BackendError;
use crate::claim::{Cause, Holder};
use crate::error::Error;
use crate::name::{InvalidField, Mode};
use crate::quota::OverLimit;

/// The domain of every `ErrorInfo` of the service.
pub const DOMAIN: &str = "fencepost";

/// The longest status message, in bytes: clients accept some 8 KiB of headers, and each byte may
/// take three there and comes twice.
const MESSAGE_BYTES: usize = 1024;

/// When an overloaded server is worth another call.
const RETRY_OVERLOADED: Duration = Duration::from_millis(200);
/// When a full queue, a store that is away, or the successor of a stopping server is.
const RETRY_LATER: Duration = Duration::from_secs(1);

/// How an error is shown: everything but its message.
struct StatusDetails {
    code: Code,
    reason: &'static str,
    metadata: Vec<(&'static str, String)>,
    retry: Option<Duration>,
}

/// The status of an error, with all that a caller may know about it.
pub fn of(error: impl Into<Error>) -> Status {
    let error = error.into();
    if let Error::Backend(BackendError::Broken { .. }) = error {
        return internal(error);
    }
    let shown = shown(&error);
    let mut details = ErrorDetails::new();
    let metadata: HashMap<_, _> = shown
        .metadata
        .into_iter()
        .map(|(key, value)| (key.into(), value))
        .collect();
    details.set_error_info(shown.reason, DOMAIN, metadata);
    if shown.retry.is_some() {
        details.set_retry_info(shown.retry);
    }
    if let Error::InvalidField(InvalidField { field, problem }) = &error {
        details.add_bad_request_violation(*field, shortened(problem.clone()));
    }
    Status::with_error_details(shown.code, shortened(error.to_string()), details)
}

/// The status of a bug: nothing of it is shown, all of it is kept as the source for the log.
pub fn internal(bug: impl std::error::Error + Send + Sync + 'static) -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info("INTERNAL", DOMAIN, HashMap::new());
    let mut status = Status::with_error_details(Code::Internal, "internal error", details);
    status.set_source(Arc::new(bug));
    status
}

/// The answer to a call whose caller's deadline is over.
pub fn too_late() -> Status {
    Status::cancelled("the deadline of the call is over")
}

/// What is said of a request of which the rest will not come: its client gave it up, or is gone, or broke the
/// protocol. None of that is a bug.
pub fn broken_off() -> Status {
    Status::cancelled("the request broke off")
}

/// The reason that a status of this service carries; nothing for one of another origin.
pub fn reason(status: &Status) -> Option<String> {
    let info = status.get_details_error_info()?;
    (info.domain == DOMAIN).then_some(info.reason)
}

fn shown(error: &Error) -> StatusDetails {
    match error {
        Error::LockHeld { holder } => aborted("LOCK_HELD", holder.as_deref().map(held_by).unwrap_or_default()),
        Error::WaitTimeout { waited } => aborted("WAIT_TIMEOUT", vec![("waited_ms", millis(*waited))]),
        Error::Superseded => aborted("SUPERSEDED", vec![]),
        Error::LeaseLost { cause } => precondition("LEASE_LOST", vec![("cause", cause_word(*cause).into())]),
        Error::Unsupported { what } => precondition("UNSUPPORTED", vec![("what", what.clone())]),
        Error::AlreadyReleased => precondition("ALREADY_RELEASED", vec![]),
        Error::LimitMismatch { there } => precondition("LIMIT_MISMATCH", what_is_there(*there)),
        Error::InvalidField(invalid) => invalid_field(invalid),
        Error::NamespaceNotFound { namespace } => {
            let namespace = shortened(namespace.clone());
            show(Code::NotFound, "NAMESPACE_NOT_FOUND", vec![("namespace", namespace)])
        }
        Error::QueueFull { limit } => exhausted("QUEUE_FULL", vec![("limit", limit.to_string())]).retry_in(RETRY_LATER),
        Error::Overloaded { what } => exhausted("OVERLOADED", vec![("what", what.clone())]).retry_in(RETRY_OVERLOADED),
        Error::OverLimit(over) => exhausted("OVERLOADED", over_limit(over)).retry_in(over.retry),
        Error::Unauthenticated { cause } => {
            let metadata = vec![("cause", cause.word().into())];
            show(Code::Unauthenticated, "UNAUTHENTICATED", metadata)
        }
        Error::PermissionDenied(denied) => show(Code::PermissionDenied, "PERMISSION_DENIED", denial(denied)),
        Error::Backend(store) => shown_of_store(store),
        Error::Draining => unavailable("DRAINING", vec![]).retry_in(RETRY_LATER),
    }
}

fn shown_of_store(error: &BackendError) -> StatusDetails {
    match error {
        BackendError::Unavailable { .. } | BackendError::NotSent { .. } => {
            unavailable("BACKEND_UNAVAILABLE", vec![]).retry_in(RETRY_LATER)
        }
        BackendError::NoQuorum { .. } => unavailable("NO_QUORUM", vec![]).retry_in(RETRY_LATER),
        BackendError::Quarantined { left, .. } => {
            unavailable("BACKEND_QUARANTINED", vec![("left_ms", millis(*left))]).retry_in(*left)
        }
        BackendError::Unsupported { what } => precondition("UNSUPPORTED", vec![("what", (*what).into())]),
        BackendError::Broken { .. } => show(Code::Internal, "INTERNAL", vec![]),
    }
}

impl StatusDetails {
    fn retry_in(self, delay: Duration) -> Self {
        Self {
            retry: Some(delay),
            ..self
        }
    }
}

fn show(code: Code, reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    StatusDetails {
        code,
        reason,
        metadata,
        retry: None,
    }
}

fn aborted(reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    show(Code::Aborted, reason, metadata)
}

fn precondition(reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    show(Code::FailedPrecondition, reason, metadata)
}

fn exhausted(reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    show(Code::ResourceExhausted, reason, metadata)
}

fn unavailable(reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    show(Code::Unavailable, reason, metadata)
}

fn invalid_field(InvalidField { field, problem }: &InvalidField) -> StatusDetails {
    let metadata = vec![("field", (*field).into()), ("bounds", shortened(problem.clone()))];
    show(Code::InvalidArgument, "INVALID_FIELD", metadata)
}

fn over_limit(over: &OverLimit) -> Vec<(&'static str, String)> {
    vec![
        ("what", over.to_string()),
        ("limit", over.limit.into()),
        ("scope", over.scope.word().into()),
    ]
}

fn denial(denied: &Denied) -> Vec<(&'static str, String)> {
    let mut metadata = vec![("missing", denied.missing.word().into())];
    metadata.extend(denied.verb.map(|verb| ("verb", verb.word().into())));
    metadata.extend(denied.namespace.clone().map(|namespace| ("namespace", namespace)));
    metadata
}

fn held_by(holder: &Holder) -> Vec<(&'static str, String)> {
    vec![
        ("owner", holder.owner.as_str().into()),
        ("remaining_ttl_ms", millis(holder.remaining)),
    ]
}

fn what_is_there(mode: Mode) -> Vec<(&'static str, String)> {
    let mut metadata = vec![("mode", mode.word().into())];
    if let Mode::Semaphore { limit, .. } = mode {
        metadata.push(("limit", limit.to_string()));
    }
    metadata
}

/// To its client, a grant that was taken back was given back; a claim that never held leaves
/// nothing to tell.
fn cause_word(cause: Option<Cause>) -> &'static str {
    match cause {
        Some(Cause::TakenBack) => Cause::Released.word(),
        Some(Cause::Left) | None => "unknown",
        Some(told) => told.word(),
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

fn shortened(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES {
        let end = (0..=MESSAGE_BYTES).rfind(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests;
