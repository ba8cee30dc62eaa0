//! The other roles of this program, which only it itself starts: beside a command under a lock, and
//! beside a measurement. They are no commands, so no help and no completion shows them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::{Failure, bench, lock};

/// This program, also where its file was replaced since.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The argument that asks for each.
const WARDEN: &str = "role:warden";
const ECHO: &str = "role:echo";

/// One of them.
#[derive(Debug)]
pub enum Role {
    /// Ends a command when its lease ends.
    Watchdog,
    /// Answers as a bare echo, with this lease id.
    Echo(String),
}

impl Role {
    /// The role that these arguments ask for, if one.
    pub fn of(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut words = arguments.into_iter().skip(1).map_while(|word| word.into_string().ok());
        match words.next()?.as_str() {
            WARDEN => Some(Self::Watchdog),
            ECHO => words.next().map(Self::Echo),
            _ => None,
        }
    }

    /// What starts it: in a process group of its own, which no key of a terminal reaches.
    pub fn command(&self) -> Command {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0("fencepost").process_group(0);
        match self {
            Self::Watchdog => command.arg(WARDEN),
            Self::Echo(lease_id) => command.args([ECHO, lease_id]),
        };
        command
    }

    /// Plays it to its end.
    pub fn run(self) -> ExitCode {
        match self {
            Self::Watchdog => lock::watchdog(),
            Self::Echo(lease_id) => bench::echo(lease_id).map_or_else(Failure::report, |()| ExitCode::SUCCESS),
        }
    }
}
