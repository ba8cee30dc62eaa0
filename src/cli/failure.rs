//! Why a command failed, whose fault that is, and what to do next.

use std::process::ExitCode;

use fencepost::client;
use fencepost::rpc::reason;

use super::exit;
use super::lock_name::LockName;
use super::output::{complain, complain_of_answer, say};
use super::unprintable::plain;

/// The exit code of what has none of its own.
const FAILED: u8 = 1;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The caller's fault: wrong arguments or configuration.
    Usage(Box<dyn std::error::Error>),
    /// The world's.
    Runtime(Box<dyn std::error::Error>),
    /// A server's answer, or that there was none.
    Call {
        error: client::Error,
        /// Which lock it is about, where it is about one.
        lock: Option<LockName>,
        /// The exit code, where the error has none of its own.
        otherwise: u8,
    },
    /// One with an exit code of its own.
    Coded(u8, Box<dyn std::error::Error>),
}

/// A call failed that is about no lock.
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

    /// A call failed that is about this lock.
    pub fn about(lock: &LockName, error: client::Error) -> Self {
        Self::Call {
            error,
            lock: Some(lock.clone()),
            otherwise: FAILED,
        }
    }

    /// With this exit code where it has none of its own.
    pub fn or_code(self, otherwise: u8) -> Self {
        match self {
            Self::Runtime(error) => Self::Coded(otherwise, error),
            Self::Call { error, lock, .. } => Self::Call { error, lock, otherwise },
            own => own,
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
                Error::WaitTimeout => exit::WAIT_OVER,
                Error::LeaseLost { .. } => exit::LOST,
                Error::Unreachable { .. } | Error::Unavailable { .. } => exit::NO_SERVER,
                _ => *otherwise,
            },
        }
    }

    /// Says it on standard error.
    pub fn report(self) -> ExitCode {
        let code = self.code();
        let advice = match &self {
            Self::Call { error, lock, .. } => advice(error, lock.as_ref()),
            _ => None,
        };
        match &self {
            // What is wrong with a configuration is shown with its lines.
            Self::Usage(error) | Self::Runtime(error) => complain(error.as_ref()),
            Self::Coded(_, error) => complain_of_answer(error.as_ref()),
            Self::Call { error, .. } => complain_of_answer(error),
        }
        if let Some(advice) = advice {
            say(&format!("  {}", plain(&advice)));
        }
        ExitCode::from(code)
    }
}

/// What to do next.
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
        Error::Unavailable { .. } => "try again soon, and see which store is away: fencepost namespaces".to_owned(),
        Error::Refused { reason, .. } => match reason.as_str() {
            reason::UNAUTHENTICATED => {
                "prove who asks with --bearer-file, or with --cert and --key over an https:// address".to_owned()
            }
            reason::NAMESPACE_NOT_FOUND => "see which there are: fencepost namespaces".to_owned(),
            reason::LIMIT_MISMATCH => format!("see what is in the queue: fencepost get {}", lock()),
            reason::UNSUPPORTED => "see what each namespace offers: fencepost namespaces".to_owned(),
            reason::QUEUE_FULL => format!("try again later, or see who waits: fencepost get {}", lock()),
            "Unimplemented" => "is this a Fencepost server? Name another with --addr or FENCEPOST_ADDR".to_owned(),
            _ => return None,
        },
        _ => return None,
    })
}
