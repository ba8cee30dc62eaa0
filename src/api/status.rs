//! Turns an [`Error`] into a gRPC status. Nothing else does.
//!
//! Each status carries a `google.rpc.ErrorInfo` with the domain [`DOMAIN`] and a reason and, where
//! useful, a `RetryInfo` or a `BadRequest`; the reason and the cause are also trailers of their own. An internal error is
//! answered INTERNAL without details; its cause is the status's source, which stays in the server for the request log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_client::reason::DOMAIN;
use http::HeaderMap;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::auth::Denied;
use crate::backend::BackendError;
use crate::claim::{Cause, Holder};
use crate::error::Error;
use crate::name::{InvalidField, Mode};
use crate::quota::QuotaExceeded;
use crate::rpc::reason;

/// The trailer with the reason of an error, for clients that cannot decode its details.
pub const REASON_TRAILER: &str = "fencepost-reason";

/// The trailer with the cause of LEASE_LOST and of UNAUTHENTICATED, beside the reason.
pub const CAUSE_TRAILER: &str = "fencepost-cause";

/// The longest status message, in bytes. Clients accept some 8 KiB of headers; each byte may take
/// three bytes there, and the message is sent twice.
const MESSAGE_BYTES: usize = 1024;

/// The retry delay for an overloaded server.
const RETRY_OVERLOADED: Duration = Duration::from_millis(200);
/// The retry delay for a full queue, an unavailable store, and a server that is stopping.
const RETRY_LATER: Duration = Duration::from_secs(1);

/// The parts of a status, except its message.
struct StatusDetails {
    code: Code,
    reason: &'static str,
    metadata: Vec<(&'static str, String)>,
    retry: Option<Duration>,
}

/// The status of an error, with everything that a caller may know about it.
pub fn of(error: impl Into<Error>) -> Status {
    let error = error.into();
    let cause = match &error {
        Error::OfLock { error, .. } => &**error,
        error => error,
    };
    if let Error::Backend(BackendError::Broken { .. }) = cause {
        return internal(error);
    }
    let parts = parts_of(&error);
    let mut details = ErrorDetails::new();
    let mut trailers = reason_trailer(parts.reason);
    let cause_word = parts.metadata.iter().find(|(key, _)| *key == "cause");
    if let Some(word) = cause_word.and_then(|(_, word)| word.parse().ok()) {
        trailers.insert(CAUSE_TRAILER, word);
    }
    let metadata: HashMap<_, _> = parts
        .metadata
        .into_iter()
        .map(|(key, value)| (key.into(), value))
        .collect();
    details.set_error_info(parts.reason, DOMAIN, metadata);
    if parts.retry.is_some() {
        details.set_retry_info(parts.retry);
    }
    if let Error::InvalidField(InvalidField { field, problem }) = cause {
        details.add_bad_request_violation(*field, shortened(problem.clone()));
    }
    Status::with_error_details_and_metadata(parts.code, shortened(error.to_string()), details, trailers)
}

fn reason_trailer(reason: &'static str) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    metadata.insert(REASON_TRAILER, MetadataValue::from_static(reason));
    metadata
}

/// The status of an internal error: it contains no details; the error is kept as the source, for
/// the log.
pub fn internal(bug: impl std::error::Error + Send + Sync + 'static) -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info(reason::INTERNAL, DOMAIN, HashMap::new());
    let metadata = reason_trailer(reason::INTERNAL);
    let mut status = Status::with_error_details_and_metadata(Code::Internal, "internal error", details, metadata);
    status.set_source(Arc::new(bug));
    status
}

/// The status of a call of an unknown method.
pub fn unknown_method() -> Status {
    Status::unimplemented(
        "this server has no such method: the client may be for a later version, or for another service",
    )
}

/// The status of a call whose deadline has passed.
pub fn deadline_passed() -> Status {
    Status::deadline_exceeded("the call's deadline has passed")
}

/// This failure of a stream of messages, if a reset of the stream must not be taken for the end of the messages.
pub fn with_resets(failure: Status) -> Status {
    match failure.code() {
        Code::Cancelled => Status::unknown("the client has reset the stream"),
        _ => failure,
    }
}

/// The status of a failure in the headers or the trailers of an answer.
pub fn failure(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)
}

/// The status of a call over plain HTTP of a method that takes a stream.
pub fn takes_stream() -> Status {
    Status::unimplemented("this method takes a stream of messages: call it with gRPC")
}

/// The status of a message that is too large, as the transport answers it.
pub fn too_large() -> Status {
    Status::out_of_range("the message is too large")
}

/// The status of an Acquire of a session whose wait was cancelled.
pub fn wait_cancelled() -> Status {
    Status::cancelled("the wait was cancelled")
}

/// The status of a request that ended early: its client cancelled it, disconnected, or broke the
/// protocol. None of these is an internal error.
pub fn broken_off() -> Status {
    Status::cancelled("the request broke off")
}

/// The reason in a status of this service; absent in other statuses.
pub fn reason(status: &Status) -> Option<String> {
    let info = status.get_details_error_info()?;
    (info.domain == DOMAIN).then_some(info.reason)
}

/// Whether a status tells that the store did not answer.
pub fn is_outage(status: &Status) -> bool {
    status.code() == Code::Unavailable
        && reason(status).is_some_and(|reason| [reason::BACKEND_UNAVAILABLE, reason::NO_QUORUM].contains(&&*reason))
}

/// The reason of an error, and the cause of a lost lease or else nothing, as [`of`] answers them.
pub fn reason_and_cause(error: &Error) -> (String, String) {
    let cause = match error {
        Error::LeaseLost { cause } => cause_word(*cause),
        Error::OfLock { error, .. } => return reason_and_cause(error),
        _ => "",
    };
    (parts_of(error).reason.into(), cause.into())
}

fn parts_of(error: &Error) -> StatusDetails {
    match error {
        Error::LockHeld { holder } => aborted(reason::LOCK_HELD, holder.as_deref().map(held_by).unwrap_or_default()),
        Error::WaitTimeout { waited } => aborted(reason::WAIT_TIMEOUT, vec![("waited_ms", millis(*waited))]),
        Error::Superseded => aborted(reason::SUPERSEDED, vec![]),
        Error::LeaseLost { cause } => precondition(reason::LEASE_LOST, vec![("cause", cause_word(*cause).into())]),
        Error::Unsupported { what } => precondition(reason::UNSUPPORTED, vec![("what", what.clone())]),
        Error::AlreadyReleased => precondition(reason::ALREADY_RELEASED, vec![]),
        Error::LimitMismatch { existing } => precondition(reason::LIMIT_MISMATCH, mode_metadata(*existing)),
        Error::InvalidField(invalid) => invalid_field(invalid),
        Error::NamespaceNotFound { namespace } => {
            let namespace = shortened(namespace.clone());
            parts(
                Code::NotFound,
                reason::NAMESPACE_NOT_FOUND,
                vec![("namespace", namespace)],
            )
        }
        Error::QueueFull { limit } => {
            exhausted(reason::QUEUE_FULL, vec![("limit", limit.to_string())]).retry_in(RETRY_LATER)
        }
        Error::Overloaded { what } => {
            exhausted(reason::OVERLOADED, vec![("what", what.clone())]).retry_in(RETRY_OVERLOADED)
        }
        Error::QuotaExceeded(over) => exhausted(reason::OVERLOADED, quota_exceeded(over)).retry_in(over.retry),
        Error::Unauthenticated { cause } => {
            let metadata = vec![("cause", cause.as_str().into())];
            parts(Code::Unauthenticated, reason::UNAUTHENTICATED, metadata)
        }
        Error::PermissionDenied(denied) => parts(Code::PermissionDenied, reason::PERMISSION_DENIED, denial(denied)),
        Error::Backend(store) => parts_of_store_error(store),
        Error::Draining => unavailable(reason::DRAINING, vec![]).retry_in(RETRY_LATER),
        Error::OfLock { name, error } => {
            let mut details = parts_of(error);
            details.metadata.push(("name", name.as_str().to_owned()));
            details
        }
    }
}

fn parts_of_store_error(error: &BackendError) -> StatusDetails {
    match error {
        BackendError::Unavailable { .. } | BackendError::NotSent { .. } => {
            unavailable(reason::BACKEND_UNAVAILABLE, vec![]).retry_in(RETRY_LATER)
        }
        BackendError::NoQuorum { .. } => unavailable(reason::NO_QUORUM, vec![]).retry_in(RETRY_LATER),
        BackendError::Quarantined { left, .. } => {
            unavailable(reason::BACKEND_QUARANTINED, vec![("left_ms", millis(*left))]).retry_in(*left)
        }
        BackendError::Unsupported { what } => precondition(reason::UNSUPPORTED, vec![("what", (*what).into())]),
        BackendError::Broken { .. } => parts(Code::Internal, reason::INTERNAL, vec![]),
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

fn parts(code: Code, reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    StatusDetails {
        code,
        reason,
        metadata,
        retry: None,
    }
}

fn aborted(reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    parts(Code::Aborted, reason, metadata)
}

fn precondition(reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    parts(Code::FailedPrecondition, reason, metadata)
}

fn exhausted(reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    parts(Code::ResourceExhausted, reason, metadata)
}

fn unavailable(reason: &'static str, metadata: Vec<(&'static str, String)>) -> StatusDetails {
    parts(Code::Unavailable, reason, metadata)
}

fn invalid_field(InvalidField { field, problem }: &InvalidField) -> StatusDetails {
    let metadata = vec![("field", (*field).into()), ("bounds", shortened(problem.clone()))];
    parts(Code::InvalidArgument, reason::INVALID_FIELD, metadata)
}

fn quota_exceeded(over: &QuotaExceeded) -> Vec<(&'static str, String)> {
    vec![
        ("what", over.to_string()),
        ("limit", over.limit.into()),
        ("scope", over.scope.as_str().into()),
    ]
}

fn denial(denied: &Denied) -> Vec<(&'static str, String)> {
    let mut metadata = vec![("missing", denied.missing.as_str().into())];
    metadata.extend(denied.verb.map(|verb| ("verb", verb.as_str().into())));
    metadata.extend(denied.namespace.clone().map(|namespace| ("namespace", namespace)));
    metadata
}

fn held_by(holder: &Holder) -> Vec<(&'static str, String)> {
    vec![
        ("owner", holder.owner.as_str().into()),
        ("remaining_ttl_ms", millis(holder.remaining)),
    ]
}

fn mode_metadata(mode: Mode) -> Vec<(&'static str, String)> {
    let mut metadata = vec![("mode", mode.as_str().into())];
    if let Mode::Semaphore { limit, .. } = mode {
        metadata.push(("limit", limit.to_string()));
    }
    metadata
}

/// The cause as its client knows it: an undone grant counts as released, and a claim that never
/// held has no known cause.
fn cause_word(cause: Option<Cause>) -> &'static str {
    match cause {
        Some(Cause::Undone) => Cause::Released.as_str(),
        Some(Cause::Cancelled) | None => "unknown",
        Some(cause) => cause.as_str(),
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
