//! The errors of commands, their exit codes, and advice for the user.

use std::process::ExitCode;

use fencepost::rpc::reason;
use fencepost_client as client;

use super::exit;
use super::lock_name::LockName;
use super::output::{Format, print_error, print_line, print_response_error, with_causes};
use super::same_store::as_typed;
use super::unprintable::{escaped_json, plain};

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
        /// The command that shows what the call concerns, if it concerns locks.
        inspect: Option<String>,
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
        inspect: None,
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

    /// Makes it the failure of a call that concerns this lock.
    pub fn about(self, lock: &LockName) -> Self {
        self.inspected_by(format!("fencepost get {lock}"))
    }

    /// Makes it the failure of a call that concerns several locks of this namespace.
    pub fn about_several(self, namespace: &str) -> Self {
        self.inspected_by(format!("fencepost list {namespace}"))
    }

    fn inspected_by(mut self, command: String) -> Self {
        if let Self::Call { inspect, .. } = &mut self {
            *inspect = Some(as_typed(&command));
        }
        self
    }

    /// Sets the exit code of an error without its own.
    pub fn or_code(self, otherwise: u8) -> Self {
        match self {
            Self::Runtime(error) => Self::Coded(otherwise, error),
            Self::Call { error, inspect, .. } => Self::Call {
                error,
                inspect,
                otherwise,
            },
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

    /// The reason of the error: that of the API where it has one.
    fn reason(&self) -> &str {
        use client::Error;
        match self {
            Self::Usage(_) => "USAGE",
            Self::Runtime(_) | Self::Coded(..) => "FAILED",
            Self::Call { error, .. } => match error {
                Error::LockHeld { .. } => reason::LOCK_HELD,
                Error::WaitTimeout => reason::WAIT_TIMEOUT,
                Error::LeaseLost { .. } => reason::LEASE_LOST,
                Error::Unreachable { .. } => "UNREACHABLE",
                Error::BadCredentials { .. } => "BAD_CREDENTIALS",
                Error::Untrusted { .. } => "UNTRUSTED",
                Error::Unavailable { reason, .. } | Error::Refused { reason, .. } => reason,
                _ => "FAILED",
            },
        }
    }

    fn advice(&self) -> Option<String> {
        match self {
            Self::Call { error, inspect, .. } => advice(error, inspect.as_deref()),
            _ => None,
        }
    }

    /// Prints the error to standard error, in the format of the responses. In JSON it is one line.
    pub fn report_as(self, format: Format) -> ExitCode {
        if format == Format::Text {
            return self.report();
        }
        let message = match &self {
            Self::Usage(error) | Self::Runtime(error) | Self::Coded(_, error) => with_causes(error.as_ref()),
            Self::Call { error, .. } => with_causes(error),
        };
        let error = serde_json::json!({
            "reason": self.reason(),
            "message": message,
            "advice": self.advice(),
            "exitCode": self.code(),
        });
        print_line(&escaped_json(&serde_json::json!({ "error": error }).to_string()));
        ExitCode::from(self.code())
    }

    /// Prints the error to standard error, as text.
    pub fn report(self) -> ExitCode {
        let code = self.code();
        let advice = self.advice();
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
fn advice(error: &client::Error, inspect: Option<&str>) -> Option<String> {
    use client::Error;
    let inspect = inspect.unwrap_or("fencepost get NAMESPACE/NAME");
    Some(match error {
        Error::LockHeld { .. } => format!("wait for it with --wait 30s, or see who holds it: {inspect}"),
        Error::WaitTimeout => format!("wait longer, or see who holds it: {inspect}"),
        Error::LeaseLost { cause } if cause == "expired" => {
            "take the lock again, with a longer --ttl or a renewal in time: fencepost lock renews by itself".to_owned()
        }
        Error::LeaseLost { .. } => format!("see who holds the lock now: {inspect}"),
        Error::Unreachable { .. } => {
            "start one with `fencepost serve`, or name another with --addr or FENCEPOST_ADDR".to_owned()
        }
        Error::Untrusted { .. } => {
            "name the CA certificate of the server, or its own one, with --ca or FENCEPOST_CA_FILE".to_owned()
        }
        Error::Unavailable { reason, .. } if reason == reason::BACKEND_QUARANTINED => {
            let (show, admit) = (as_typed("fencepost namespaces"), as_typed("fencepost admit NAMESPACE"));
            format!("see how long it lasts: {show}; or end it, if no lease can be left: {admit}")
        }
        Error::Unavailable { .. } => {
            "try again soon, and see which store is unavailable: fencepost namespaces".to_owned()
        }
        Error::Refused { reason, .. } => match reason.as_str() {
            reason::UNAUTHENTICATED => {
                "authenticate with --bearer-file, or with --cert and --key over an https:// address".to_owned()
            }
            reason::NAMESPACE_NOT_FOUND => "list the namespaces: fencepost namespaces".to_owned(),
            reason::LIMIT_MISMATCH => format!("see the claims in the queue: {inspect}"),
            reason::UNSUPPORTED => "see what each namespace supports: fencepost namespaces".to_owned(),
            reason::QUEUE_FULL => format!("try again later, or see who waits: {inspect}"),
            "Unimplemented" => "is this a Fencepost server? Name another with --addr or FENCEPOST_ADDR".to_owned(),
            _ => return None,
        },
        _ => return None,
    })
}
