//! The errors of calls, as JSON and as the status of HTTP.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::StatusCode;
use prost::Message;
use serde::Serialize;
use tonic::{Code, Status};
use tonic_types::pb::Status as Details;

use crate::api::json;

/// An error.
#[derive(Debug, Serialize)]
pub(super) struct Problem<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<Detail>,
}

/// A detail of an error.
#[derive(Debug, Serialize)]
struct Detail {
    /// The full name of its message.
    #[serde(rename = "type")]
    name: String,
    /// The encoded message in Base64.
    value: String,
    /// The message as JSON, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    debug: Option<serde_json::Value>,
}

impl<'a> Problem<'a> {
    /// The error of a request that is no call.
    pub(super) fn refused(status: StatusCode, message: &'a str) -> Self {
        let code = match status {
            StatusCode::FORBIDDEN => "permission_denied",
            _ => "invalid_argument",
        };
        Self {
            code,
            message,
            details: Vec::new(),
        }
    }

    /// The error with this status.
    pub(super) fn of(status: &'a Status) -> Self {
        let details = Details::decode(status.details()).map(|all| all.details);
        Self {
            code: code(status.code()),
            message: status.message(),
            details: details.unwrap_or_default().into_iter().map(Detail::of).collect(),
        }
    }
}

impl Detail {
    fn of(any: prost_types::Any) -> Self {
        let name = any.type_url.rsplit('/').next().unwrap_or_default().to_owned();
        let debug = json::message(&name).and_then(|message| json::value(message, &any.value).ok());
        Self {
            value: STANDARD_NO_PAD.encode(&any.value),
            name,
            debug,
        }
    }
}

/// The name of a code.
fn code(code: Code) -> &'static str {
    match code {
        Code::Ok | Code::Unknown => "unknown",
        Code::Cancelled => "canceled",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
    }
}

/// The status of HTTP for a code.
pub(super) fn http_status(code: Code) -> StatusCode {
    match code {
        // There is no constant for 499, with which the protocol answers a call that its client cancelled.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::REQUEST_TIMEOUT),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
