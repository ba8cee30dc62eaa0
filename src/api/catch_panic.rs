//! Replaces answers that must not reach the caller: panics, the transport's messages about a request
//! that it could not read, and its answer without a message to an unknown method.

use std::any::Any;
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use http::{HeaderMap, HeaderValue, Response};
use tonic::{Code, Status};

use super::status;
use crate::name::InvalidField;

/// The answer that a caller gets. Requests may have `request_bytes`.
pub(super) fn readable<B: Default>(answer: Response<B>, request_bytes: usize) -> Response<B> {
    if is_of_unknown_method(answer.headers()) {
        return status::unknown_method().into_http();
    }
    let status = answer.extensions().get::<Status>();
    match status.and_then(|status| unreadable(status, request_bytes)) {
        Some(invalid) => invalid.into_http(),
        None => answer,
    }
}

/// Polls a call, or returns the status of its panic.
pub(super) fn caught<T>(poll: impl FnOnce() -> T) -> Result<T, Status> {
    // A call that panicked is never polled again, so its incomplete state is never used.
    let polled = catch_unwind(AssertUnwindSafe(poll));
    polled.map_err(|payload| status::internal(Panicked::new(payload.as_ref())))
}

/// A panic of a handler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a handler panicked: {message}")]
pub(super) struct Panicked {
    message: String,
}

impl Panicked {
    fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self {
            message: text.unwrap_or("without a message").into(),
        }
    }
}

/// Whether the transport knows no such method: it answers UNIMPLEMENTED without a message.
fn is_of_unknown_method(headers: &HeaderMap) -> bool {
    let code = headers.get(Status::GRPC_STATUS).map(HeaderValue::as_bytes);
    code.map(Code::from_bytes) == Some(Code::Unimplemented) && !headers.contains_key(Status::GRPC_MESSAGE)
}

/// The status in place of the transport's about a request that it could not read; `None` for any other status.
///
/// The transport answers INTERNAL for an unparsable message and OUT_OF_RANGE for one that is too large. An INTERNAL of
/// this service is recognised by its source.
pub(super) fn unreadable(status: &Status, request_bytes: usize) -> Option<Status> {
    let problem = match status.code() {
        Code::OutOfRange => format!("must be at most {request_bytes} bytes"),
        Code::Internal if status.source().is_none() => "must be one whole message of the method's request type".into(),
        _ => return None,
    };
    Some(status::of(InvalidField::new("request", problem)))
}
