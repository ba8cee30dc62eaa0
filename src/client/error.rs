//! Why a call failed, by what its caller can do about it.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::api::status::DOMAIN;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A try found the lock held, or waited for.
    #[error("the lock is held{}", by(owner.as_deref(), *remaining))]
    LockHeld {
        /// The first holder, where one holds.
        owner: Option<String>,
        /// How long its lease still lives unless it is renewed.
        remaining: Option<Duration>,
    },
    /// The wait ran out.
    #[error("the lock was not granted within the wait")]
    WaitTimeout,
    /// The lease, or the token, is not held any more.
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
        /// What the last of them did.
        problem: String,
    },
    /// A server answered, but it or its store cannot serve now.
    #[error("{message} ({reason})")]
    Unavailable {
        /// `BACKEND_UNAVAILABLE`, `NO_QUORUM`, `BACKEND_QUARANTINED`, `DRAINING` or `OVERLOADED`.
        reason: String,
        /// What the server said.
        message: String,
    },
    /// What the client was given to prove who it is cannot be used.
    #[error("{problem}")]
    BadCredentials {
        /// Which file, and what is wrong.
        problem: String,
    },
    /// Anything else that a server refuses.
    #[error("{message} ({reason})")]
    Refused {
        /// As the API gives it, such as `INVALID_FIELD`; the status code where there is none.
        reason: String,
        /// What the server said.
        message: String,
    },
}

/// Whether another try may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retryable {
    /// No server answered this one: the next may.
    Elsewhere,
    /// A server answered that it cannot serve now.
    Later,
    /// The answer stands.
    Never,
}

/// A call that failed, and whether another may do better.
#[derive(Debug, Clone)]
pub(super) struct Failed {
    pub error: Error,
    pub again: Retryable,
}

impl From<Error> for Failed {
    /// What failed on this side, and would again.
    fn from(error: Error) -> Self {
        Self {
            error,
            again: Retryable::Never,
        }
    }
}

impl Failed {
    /// Nobody answered, for this reason.
    pub(super) fn silent(address: impl ToString, problem: impl ToString) -> Self {
        let error = Error::Unreachable {
            addresses: address.to_string(),
            problem: problem.to_string(),
        };
        Self {
            error,
            again: Retryable::Elsewhere,
        }
    }

    /// What a status from `address` says.
    pub(super) fn of(status: &Status, address: impl ToString) -> Self {
        let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN);
        match info {
            Some(info) => Self::told(&info.reason, &info.metadata, status.message()),
            None if is_of_transport(status.code()) => Self::silent(address, problem(status)),
            None => Self::refused(&format!("{:?}", status.code()), status.message()),
        }
    }

    fn told(reason: &str, metadata: &HashMap<String, String>, message: &str) -> Self {
        let (again, error) = match reason {
            "LOCK_HELD" => (Retryable::Never, held(metadata)),
            "WAIT_TIMEOUT" => (Retryable::Never, Error::WaitTimeout),
            "LEASE_LOST" => {
                let cause = metadata.get("cause").cloned().unwrap_or_else(|| "unknown".into());
                (Retryable::Never, Error::LeaseLost { cause })
            }
            "DRAINING" => (Retryable::Elsewhere, unavailable(reason, message)),
            "BACKEND_UNAVAILABLE" | "NO_QUORUM" | "BACKEND_QUARANTINED" | "OVERLOADED" => {
                (Retryable::Later, unavailable(reason, message))
            }
            _ => return Self::refused(reason, message),
        };
        Self { error, again }
    }

    /// The answer stands.
    pub(super) fn refused(reason: &str, message: &str) -> Self {
        let error = Error::Refused {
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        Self {
            error,
            again: Retryable::Never,
        }
    }
}

/// What the transport answers by itself when a connection or a deadline is gone.
fn is_of_transport(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Internal
    )
}

/// The innermost reason: what stands around it is the transport's own words.
fn problem(status: &Status) -> String {
    let source = std::error::Error::source(status);
    let innermost = std::iter::successors(source, |error| error.source()).last();
    innermost.map_or_else(|| status.message().to_owned(), ToString::to_string)
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
