//! Internal roles of this program, in processes that it starts itself: the watchdog of `lock`, and
//! the echo of `bench`. They are not commands, so that neither help nor completions list them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::{Failure, bench, lock};

/// This program, even if its file was replaced meanwhile.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The first argument that selects each role.
const WATCHDOG: &str = "role:watchdog";
const ECHO: &str = "role:echo";

/// An internal role.
#[derive(Debug)]
pub enum Role {
    /// Kills a command when its lease ends.
    Watchdog,
    /// Runs the bare echo, with this lease id in each response.
    Echo(String),
}

impl Role {
    /// The role that these arguments select, if any.
    pub fn of(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut words = arguments.into_iter().skip(1).map_while(|word| word.into_string().ok());
        match words.next()?.as_str() {
            WATCHDOG => Some(Self::Watchdog),
            ECHO => words.next().map(Self::Echo),
            _ => None,
        }
    }

    /// The command that starts the role, in its own process group, so that Ctrl-C does not
    /// interrupt it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0("fencepost").process_group(0);
        match self {
            Self::Watchdog => command.arg(WATCHDOG),
            Self::Echo(lease_id) => command.args([ECHO, lease_id]),
        };
        command
    }

    /// Runs the role to its end.
    pub fn run(self) -> ExitCode {
        match self {
            Self::Watchdog => lock::watchdog(),
            Self::Echo(lease_id) => bench::echo(lease_id).map_or_else(Failure::report, |()| ExitCode::SUCCESS),
        }
    }
}
