//! The command: a process in a group of its own, and what happens to it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::sync::mpsc;

use crate::cli::{Failure, exit};

/// What can happen unseen before the waiting thread rests: far more than ever does.
const UNSEEN: usize = 16;

/// What happened to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEvent {
    /// It was stopped by this signal.
    Stopped(Signal),
    /// It ended with this code.
    Ended(u8),
}

/// A process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group(pub Pid);

impl Group {
    /// Sends it a signal. Whom it does not reach, has ended.
    pub fn signal(self, signal: Signal) {
        let _ = killpg(self.0, signal);
    }

    /// Whether nobody is in it.
    fn is_empty(self) -> bool {
        killpg(self.0, None) == Err(Errno::ESRCH)
    }
}

/// A running command.
#[derive(Debug)]
pub struct Child {
    group: Group,
    happened: mpsc::Receiver<ChildEvent>,
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
    /// Starts a command, the first of these words with the others as arguments.
    pub fn start(
        words: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> Result<Self, Failure> {
        let (program, arguments) = words
            .split_first()
            .ok_or_else(|| not_started("", io::ErrorKind::NotFound.into()))?;
        let mut command = Command::new(program);
        command.args(arguments).envs(environment).process_group(0);
        let process = command.spawn().map_err(|source| not_started(program, source))?;
        // Process ids are small: the system bounds them far below.
        let leader = Pid::from_raw(i32::try_from(process.id()).unwrap_or(i32::MAX));
        let (tell, happened) = mpsc::channel(UNSEEN);
        thread::spawn(move || wait(leader, &tell));
        Ok(Self {
            group: Group(leader),
            happened,
            ended: false,
        })
    }

    /// Its process group.
    pub fn group(&self) -> Group {
        self.group
    }

    /// What happens next.
    ///
    /// # Cancellation safety
    /// Dropped, nothing is missed.
    pub async fn next(&mut self) -> ChildEvent {
        match self.happened.recv().await {
            Some(ChildEvent::Ended(code)) => {
                self.ended = true;
                ChildEvent::Ended(code)
            }
            Some(stopped) => stopped,
            // Only after its end: there is nothing more to tell.
            None => std::future::pending().await,
        }
    }

    /// Lets something happen for so long.
    pub async fn happens_within(&mut self, time: Duration) {
        // What happens is kept in `ended`; else the time is over.
        let _ = tokio::time::timeout(time, self.next()).await;
    }

    /// Whether it has ended, and nobody of its group is left.
    pub fn is_over(&self) -> bool {
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

/// Waits for what happens to a process, until it has ended. The thread ends with it.
fn wait(leader: Pid, tell: &mpsc::Sender<ChildEvent>) {
    loop {
        let happened = match waitpid(leader, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Exited(_, code)) => ChildEvent::Ended(u8::try_from(code).unwrap_or(u8::MAX)),
            Ok(WaitStatus::Signaled(_, signal, _)) => ChildEvent::Ended(code_of(signal)),
            Ok(WaitStatus::Stopped(_, signal)) => ChildEvent::Stopped(signal),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(_) => ChildEvent::Ended(exit::LOCK_FAILED),
        };
        if tell.blocking_send(happened).is_err() || matches!(happened, ChildEvent::Ended(_)) {
            return;
        }
    }
}

/// The exit code of one that a signal ended, as shells have it.
pub fn code_of(signal: Signal) -> u8 {
    u8::try_from(exit::SIGNALLED + signal as i32).unwrap_or(u8::MAX)
}
