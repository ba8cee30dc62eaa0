//! The errors of commands, their exit codes, and advice for the user.

use std::process::ExitCode;

use fencepost::client;

use super::exit;
use super::lock_name::LockName;
use super::output::{print_error, print_line, print_response_error};
use super::unprintable::plain;

/// The exit code of errors without their own.
const FAILED: u8 = 1;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Wrong arguments or configuration.
    Usage(Box<dyn std::error::Error>),
    /// An error that is not the caller's fault.
    Runtime(Box<dyn std::error::Error>),
    /// An error of a call.
    Call {
        error: client::Error,
        /// The lock that the call concerns, if any.
        lock: Option<LockName>,
        /// The exit code if the error has no code of its own.
        otherwise: u8,
    },
    /// An error with its own exit code.
    Coded(u8, Box<dyn std::error::Error>),
}

/// The failure of a call that concerns no lock.
pub fn failure(error: client::Error) -> Failure {
    Failure::Call {
        error,
        lock: None,
        otherwise: FAILED,
    }
}

impl Failure {
    pub fn usage(error: impl std::error::Error + 'static) -> Self {
        Self::Usage(Box::new(error))
    }

    pub fn runtime(error: impl std::error::Error + 'static) -> Self {
        Self::Runtime(Box::new(error))
    }

    pub fn coded(code: u8, error: impl std::error::Error + 'static) -> Self {
        Self::Coded(code, Box::new(error))
    }

    /// The failure of a call that concerns this lock.
    pub fn about(lock: &LockName, error: client::Error) -> Self {
        Self::Call {
            error,
            lock: Some(lock.clone()),
            otherwise: FAILED,
        }
    }

    /// Sets the exit code of an error without its own.
    pub fn or_code(self, otherwise: u8) -> Self {
        match self {
            Self::Runtime(error) => Self::Coded(otherwise, error),
            Self::Call { error, lock, .. } => Self::Call { error, lock, otherwise },
            coded => coded,
        }
    }

    fn code(&self) -> u8 {
        use client::Error;
        match self {
            Self::Usage(_) => 2,
            Self::Runtime(_) => FAILED,
            Self::Coded(code, _) => *code,
            Self::Call { error, otherwise, .. } => match error {
                Error::LockHeld { .. } => exit::HELD,
                Error::WaitTimeout => exit::WAIT_TIMEOUT,
                Error::LeaseLost { .. } => exit::LOST,
                Error::Unreachable { .. } | Error::Unavailable { .. } => exit::NO_SERVER,
                _ => *otherwise,
            },
        }
    }

    /// Prints the error to standard error.
    pub fn report(self) -> ExitCode {
        let code = self.code();
        let advice = match &self {
            Self::Call { error, lock, .. } => advice(error, lock.as_ref()),
            _ => None,
        };
        match &self {
            // The error of a configuration spans several lines.
            Self::Usage(error) | Self::Runtime(error) => print_error(error.as_ref()),
            Self::Coded(_, error) => print_response_error(error.as_ref()),
            Self::Call { error, .. } => print_response_error(error),
        }
        if let Some(advice) = advice {
            print_line(&format!("  {}", plain(&advice)));
        }
        ExitCode::from(code)
    }
}

/// Advice for the user.
fn advice(error: &client::Error, lock: Option<&LockName>) -> Option<String> {
    use client::Error;
    let lock = || lock.map_or_else(|| "NAMESPACE/NAME".to_owned(), ToString::to_string);
    Some(match error {
        Error::LockHeld { .. } => format!(
            "wait for it with --wait 30s, or see who holds it: fencepost get {}",
            lock()
        ),
        Error::WaitTimeout => format!("wait longer, or see who holds it: fencepost get {}", lock()),
        Error::LeaseLost { cause } if cause == "expired" => {
            "take the lock again, with a longer --ttl or a renewal in time: fencepost lock renews by itself".to_owned()
        }
        Error::LeaseLost { .. } => format!("see who holds the lock now: fencepost get {}", lock()),
        Error::Unreachable { .. } => {
            "start one with `fencepost serve`, or name another with --addr or FENCEPOST_ADDR".to_owned()
        }
        Error::Unavailable { .. } => {
            "try again soon, and see which store is unavailable: fencepost namespaces".to_owned()
        }
        Error::Refused { reason, .. } => match reason.as_str() {
            "UNAUTHENTICATED" => {
                "authenticate with --bearer-file, or with --cert and --key over an https:// address".to_owned()
            }
            "NAMESPACE_NOT_FOUND" => "list the namespaces: fencepost namespaces".to_owned(),
            "LIMIT_MISMATCH" => format!("see the claims in the queue: fencepost get {}", lock()),
            "UNSUPPORTED" => "see what each namespace supports: fencepost namespaces".to_owned(),
            "QUEUE_FULL" => format!("try again later, or see who waits: fencepost get {}", lock()),
            "Unimplemented" => "is this a Fencepost server? Name another with --addr or FENCEPOST_ADDR".to_owned(),
            _ => return None,
        },
        _ => return None,
    })
}
