//! The command: a process in its own group, and its events.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::sync::mpsc;

use crate::cli::{Failure, Role, exit};

/// The capacity of the event channel: events that the receiver has not read yet.
const EVENTS: usize = 16;

/// How a command ended, and how this process ends after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandExit {
    /// It exited with this code.
    Code(u8),
    /// It was ended by this signal.
    Signal(Signal),
}

impl CommandExit {
    /// Ends this process in the same way, or returns the exit code that shells define for it. Only SIGINT ends it by
    /// the signal itself: a shell that runs a script or a loop stops only then.
    pub fn pass_on(self) -> ExitCode {
        match self {
            Self::Code(code) => ExitCode::from(code),
            Self::Signal(signal) => {
                // The system delivers no such signal to the first process of a container.
                if signal == Signal::SIGINT && std::process::id() != 1 {
                    // It returns only if it fails.
                    let _ = Role::Interrupted.replace_this_process();
                }
                ExitCode::from(u8::try_from(exit::SIGNALLED + signal as i32).unwrap_or(u8::MAX))
            }
        }
    }
}

/// An event of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEvent {
    /// It was stopped by this signal.
    Stopped(Signal),
    /// It ended.
    Ended(CommandExit),
}

/// A process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group(pub Pid);

impl Group {
    /// Sends a signal to the group. An error means that its processes have ended.
    pub fn signal(self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    /// Whether the group has no process. Its ended ones whose parents have ended are taken from the system before, or they
    /// would count. Called only after the command has ended, whose exit status another thread takes.
    fn is_empty(self) -> bool {
        let ended = || waitpid(Pid::from_raw(-self.0.as_raw()), Some(WaitPidFlag::WNOHANG));
        while ended().is_ok_and(|status| status != WaitStatus::StillAlive) {}
        killpg(self.0, None) == Err(Errno::ESRCH)
    }
}

/// A running command.
#[derive(Debug)]
pub struct Child {
    group: Group,
    events: mpsc::Receiver<ChildEvent>,
    ended: bool,
}

/// A command that cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot run {command:?}")]
struct NotStarted {
    command: OsString,
    source: io::Error,
}

impl Child {
    /// Starts a command: the program, then its arguments.
    pub fn start(
        command_line: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> Result<Self, Failure> {
        let (program, arguments) = command_line
            .split_first()
            .ok_or_else(|| not_started("", io::ErrorKind::NotFound.into()))?;
        // The parent of processes whose own parents end: another one might not take their exit status for long. It can fail
        // only where the system does not know it.
        #[cfg(target_os = "linux")]
        let _ = nix::sys::prctl::set_child_subreaper(true);
        let mut command = Command::new(program);
        command.args(arguments).envs(environment).process_group(0);
        let process = command.spawn().map_err(|source| not_started(program, source))?;
        // The system limits process ids to far less than `i32::MAX`.
        let leader = Pid::from_raw(i32::try_from(process.id()).unwrap_or(i32::MAX));
        let (sender, events) = mpsc::channel(EVENTS);
        thread::spawn(move || wait(leader, &sender));
        Ok(Self {
            group: Group(leader),
            events,
            ended: false,
        })
    }

    /// The process group of the command.
    pub fn group(&self) -> Group {
        self.group
    }

    /// The next event.
    ///
    /// # Cancellation safety
    /// When dropped, no event is lost.
    pub async fn next(&mut self) -> ChildEvent {
        match self.events.recv().await {
            Some(event) => {
                self.ended |= matches!(event, ChildEvent::Ended(_));
                event
            }
            // The channel closes only after `Ended`: there are no further events.
            None => std::future::pending().await,
        }
    }

    /// Waits at most `time` for an event.
    pub async fn wait_for_event(&mut self, time: Duration) {
        // `next` records the end in `ended`; other events and the timeout need no action.
        let _ = tokio::time::timeout(time, self.next()).await;
    }

    /// Whether the command and all other processes of its group have ended.
    pub fn has_ended(&self) -> bool {
        self.ended && self.group.is_empty()
    }
}

fn not_started(program: impl Into<OsString>, source: io::Error) -> Failure {
    let code = match source.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_RUN,
    };
    let command = program.into();
    Failure::coded(code, NotStarted { command, source })
}

/// Waits for events of a process until it has ended. Runs in its own thread.
fn wait(leader: Pid, sender: &mpsc::Sender<ChildEvent>) {
    loop {
        let event = match waitpid(leader, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Exited(_, code)) => {
                ChildEvent::Ended(CommandExit::Code(u8::try_from(code).unwrap_or(u8::MAX)))
            }
            Ok(WaitStatus::Signaled(_, signal, _)) => ChildEvent::Ended(CommandExit::Signal(signal)),
            Ok(WaitStatus::Stopped(_, signal)) => ChildEvent::Stopped(signal),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(_) => ChildEvent::Ended(CommandExit::Code(exit::LOCK_FAILED)),
        };
        if sender.blocking_send(event).is_err() || matches!(event, ChildEvent::Ended(_)) {
            return;
        }
    }
}
