//! Internal roles of this program, in processes that it starts itself: the watchdog of `lock`, and
//! its end by a signal. They are not commands, so that neither help nor completions list them.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sys::signal::{Signal, raise};

use super::lock;

/// This program, even if its file was replaced meanwhile.
pub const OWN_PROGRAM: &str = "/proc/self/exe";
/// The first argument that selects each role.
const WATCHDOG: &str = "role:watchdog";
const INTERRUPTED: &str = "role:interrupted";

/// An internal role.
#[derive(Debug)]
pub enum Role {
    /// Kills a command when its lease ends.
    Watchdog,
    /// Ends by SIGINT, which a process that handled the signal cannot do without a new program.
    Interrupted,
}

impl Role {
    /// The role that these arguments select, if any.
    pub fn of(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut words = arguments.into_iter().skip(1).map_while(|word| word.into_string().ok());
        match words.next()?.as_str() {
            WATCHDOG => Some(Self::Watchdog),
            INTERRUPTED => Some(Self::Interrupted),
            _ => None,
        }
    }

    /// The command that starts the role, in its own process group, so that Ctrl-C does not
    /// interrupt it.
    pub fn command(&self) -> Command {
        let mut command = self.program();
        command.process_group(0);
        command
    }

    /// Runs the role in this process instead of what it runs now. Returns only an error.
    pub fn replace_this_process(&self) -> io::Error {
        self.program().exec()
    }

    fn program(&self) -> Command {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0("fencepost");
        match self {
            Self::Watchdog => command.arg(WATCHDOG),
            Self::Interrupted => command.arg(INTERRUPTED),
        };
        command
    }

    /// Runs the role to its end.
    pub fn run(self) -> ExitCode {
        match self {
            Self::Watchdog => lock::watchdog(),
            Self::Interrupted => {
                // It returns only if the signal is blocked or ignored.
                let _ = raise(Signal::SIGINT);
                ExitCode::FAILURE
            }
        }
    }
}
