//! The errors of calls, by what the caller can do about them.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tonic_types::pb::{ErrorInfo, RetryInfo};

use super::tls_failure::{self, TlsFailure};
use crate::backoff::{Backoff, jitter};
use crate::proto::session_event::CommandError;
use crate::reason;
use crate::reason::DOMAIN;

/// The type of the detail of an error with its reason.
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
/// The type of the detail with the pause before a repetition.
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
/// The reason of a response without a required field.
const INCOMPLETE: &str = "INCOMPLETE";

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock is held, or has waiters, and the call does not wait.
    #[error("the lock is held{}", by(owner.as_deref(), *remaining))]
    LockHeld {
        /// The first holder, where one holds.
        owner: Option<String>,
        /// The time until its lease expires without a renewal.
        remaining: Option<Duration>,
    },
    /// The wait timed out.
    #[error("the lock was not granted within the wait")]
    WaitTimeout,
    /// The lease has ended, or the token does not hold the lock.
    #[error("the lease is gone: {cause}")]
    LeaseLost {
        /// `expired`, `released`, `forced`, or `unknown`.
        cause: String,
    },
    /// No server answered.
    #[error("no server answers at {addresses}: {problem}")]
    Unreachable {
        /// All addresses that were tried.
        addresses: String,
        /// The problem with the last of them.
        problem: String,
    },
    /// The certificate of a server is not trusted.
    #[error("{address} is not trusted: {problem}")]
    Untrusted {
        /// The server.
        address: String,
        /// What is wrong with its certificate.
        problem: String,
    },
    /// A server answered, but it or its store cannot serve now.
    #[error("{message} ({reason})")]
    Unavailable {
        /// `BACKEND_UNAVAILABLE`, `NO_QUORUM`, `BACKEND_QUARANTINED`, `DRAINING` or `OVERLOADED`.
        reason: String,
        /// The server's message.
        message: String,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// The client's credentials cannot be used.
    #[error("{problem}")]
    BadCredentials {
        /// Which file, and what is wrong with it.
        problem: String,
    },
    /// Any other error of a server.
    #[error("{message} ({reason})")]
    Refused {
        /// The reason of the API, such as `INVALID_FIELD`; without one, the status code.
        reason: String,
        /// The server's message.
        message: String,
    },
}

/// Whether a repetition may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retryable {
    /// No server answered: another one may.
    Elsewhere,
    /// A server answered that it cannot serve now.
    Later,
    /// The lock has no place for the claim now, which another server would answer too.
    LaterHere,
    /// The error is final.
    Never,
}

/// A failed call, and whether a repetition may succeed.
#[derive(Debug, Clone)]
pub(super) struct Failed {
    pub error: Error,
    pub retry: Retryable,
    /// The pause before it that the server asks for.
    pub retry_after: Option<Duration>,
}

impl From<Error> for Failed {
    /// An error of the client, which a repetition does not fix.
    fn from(error: Error) -> Self {
        Self::new(error, Retryable::Never)
    }
}

impl Error {
    /// Whether a server may have granted a lock all the same.
    pub(super) fn may_hold(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Untrusted { .. } | Self::Unavailable { .. } | Self::Closed => true,
            Self::Refused { reason, .. } => reason == INCOMPLETE,
            _ => false,
        }
    }
}

impl Failed {
    fn new(error: Error, retry: Retryable) -> Self {
        Self {
            error,
            retry,
            retry_after: None,
        }
    }

    /// The pause before a repetition: what the server asks for, or else the next one, which is shortened at random.
    pub(super) fn pause(&self, backoff: &mut Backoff) -> Duration {
        let next = backoff.pause();
        self.retry_after.unwrap_or_else(|| jitter(next))
    }

    /// No server answered, because of this problem.
    pub(super) fn no_response(address: impl ToString, problem: impl ToString) -> Self {
        let error = Error::Unreachable {
            addresses: address.to_string(),
            problem: problem.to_string(),
        };
        Self::new(error, Retryable::Elsewhere)
    }

    /// A connection that failed.
    pub(super) fn of_transport(error: &(dyn std::error::Error + 'static), address: impl ToString) -> Self {
        match tls_failure::of(error) {
            Some(TlsFailure::Certificate(problem)) => {
                let address = address.to_string();
                Self::new(Error::Untrusted { address, problem }, Retryable::Elsewhere)
            }
            Some(TlsFailure::Protocol(problem)) => Self::no_response(address, problem),
            None => Self::no_response(address, innermost(error)),
        }
    }

    /// The failure for a status from `address`.
    pub(super) fn of(status: &Status, address: impl ToString) -> Self {
        let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN);
        match info {
            Some(info) => Self {
                retry_after: status.get_details_retry_info().and_then(|info| info.retry_delay),
                ..Self::of_reason(&info.reason, &info.metadata, status.message())
            },
            None if is_of_transport(status.code()) => match std::error::Error::source(status) {
                Some(error) => Self::of_transport(error, address),
                None => Self::no_response(address, status.message()),
            },
            None => Self::refused(&format!("{:?}", status.code()), status.message()),
        }
    }

    /// The failure of a command of a session.
    pub(super) fn of_command(error: &CommandError) -> Self {
        let mut infos = details::<ErrorInfo>(error, ERROR_INFO);
        let mut retries = details::<RetryInfo>(error, RETRY_INFO);
        match infos.find(|info| info.domain == DOMAIN) {
            Some(info) => Self {
                retry_after: retries.next().and_then(|info| info.retry_delay?.try_into().ok()),
                ..Self::of_reason(&info.reason, &info.metadata, &error.message)
            },
            None => Self::refused(&format!("{:?}", Code::from(error.code)), &error.message),
        }
    }

    /// The failure for a response without a required field.
    pub(super) fn incomplete() -> Self {
        Self::refused(INCOMPLETE, "the server's response lacks a required field")
    }

    /// The failure for an error with this reason and this metadata.
    pub(super) fn of_reason(reason: &str, metadata: &HashMap<String, String>, message: &str) -> Self {
        let (retry, error) = match reason {
            reason::LOCK_HELD => (Retryable::Never, held(metadata)),
            reason::WAIT_TIMEOUT => (Retryable::Never, Error::WaitTimeout),
            reason::LEASE_LOST => {
                let cause = metadata.get("cause").cloned().unwrap_or_else(|| "unknown".into());
                (Retryable::Never, Error::LeaseLost { cause })
            }
            reason::DRAINING => (Retryable::Elsewhere, unavailable(reason, message)),
            reason::BACKEND_UNAVAILABLE | reason::NO_QUORUM | reason::BACKEND_QUARANTINED | reason::OVERLOADED => {
                (Retryable::Later, unavailable(reason, message))
            }
            reason::QUEUE_FULL => (Retryable::LaterHere, Self::refused(reason, message).error),
            _ => return Self::refused(reason, message),
        };
        Self::new(error, retry)
    }

    /// A final error.
    pub(super) fn refused(reason: &str, message: &str) -> Self {
        let error = Error::Refused {
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        error.into()
    }
}

/// The details of this type of a command's error.
fn details<'a, D: Message + Default>(error: &'a CommandError, kind: &'a str) -> impl Iterator<Item = D> + 'a {
    let details = error.details.iter().filter(move |detail| detail.type_url == kind);
    details.filter_map(|detail| D::decode(detail.value.as_slice()).ok())
}

/// Codes that the transport returns when a connection is lost or a deadline passes.
fn is_of_transport(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Internal
    )
}

/// The innermost cause: the outer errors only say that there is one.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.last().unwrap_or(error).to_string()
}

fn held(metadata: &HashMap<String, String>) -> Error {
    let remaining = metadata.get("remaining_ttl_ms").and_then(|text| text.parse().ok());
    Error::LockHeld {
        owner: metadata.get("owner").cloned(),
        remaining: remaining.map(Duration::from_millis),
    }
}

fn unavailable(reason: &str, message: &str) -> Error {
    Error::Unavailable {
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

fn by(owner: Option<&str>, remaining: Option<Duration>) -> String {
    let owner = owner.map(|owner| format!(" by {owner:?}"));
    let remaining = remaining.map(|left| format!(", for {:.1} s unless it is renewed", left.as_secs_f64()));
    owner.unwrap_or_default() + &remaining.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    const AFTER: Duration = Duration::from_secs(9);

    fn overloaded(details: &ErrorDetails) -> Status {
        Status::with_error_details(Code::ResourceExhausted, "too much", details.clone())
    }

    #[test]
    fn the_pause_is_what_the_server_asks_for_or_else_grows_with_jitter() {
        let mut details = ErrorDetails::with_error_info(reason::OVERLOADED, DOMAIN, HashMap::new());
        let (first, longest) = (Duration::from_millis(100), Duration::from_millis(200));
        let mut backoff = Backoff::new(first, longest);
        let own = Failed::of(&overloaded(&details), "address");
        let pauses = [(); 2].map(|()| own.pause(&mut backoff));
        assert!((first / 2..=first).contains(&pauses[0]), "{pauses:?}");
        assert!((first..=longest).contains(&pauses[1]), "{pauses:?}");
        details.set_retry_info(Some(AFTER));
        let asked = Failed::of(&overloaded(&details), "address");
        assert_eq!(asked.pause(&mut backoff), AFTER);
        assert_eq!(asked.retry, Retryable::Later);
    }

    #[test]
    fn the_error_of_a_command_names_the_pause_too() {
        let mut details = ErrorDetails::with_error_info(reason::OVERLOADED, DOMAIN, HashMap::new());
        details.set_retry_info(Some(AFTER));
        let status = tonic_types::pb::Status::decode(overloaded(&details).details()).expect("details");
        let details = status.details.into_iter().map(|detail| prost_types::Any {
            type_url: detail.type_url,
            value: detail.value,
        });
        let error = CommandError {
            code: status.code,
            message: status.message,
            details: details.collect(),
            ..CommandError::default()
        };
        let failed = Failed::of_command(&error);
        assert_eq!((failed.retry, failed.retry_after), (Retryable::Later, Some(AFTER)));
    }
}
