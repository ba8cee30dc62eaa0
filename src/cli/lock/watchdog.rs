//! The warden: a process beside the command that kills its group when the lease ends, or when the
//! process that keeps the lease is gone. Otherwise a keeper that is killed or stopped would leave a
//! command behind that works without a lock.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use fencepost::clock;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::child::Group;
use crate::cli::Role;

/// How long it looks away from the clock, which may have run on through a suspend.
const SLICE: Duration = Duration::from_millis(500);

/// The warden as its keeper sees it. Dropped, it does its duty.
#[derive(Debug)]
pub struct Watchdog {
    process: std::process::Child,
    /// What it is told: a line for each end of the lease, `GROUP NANOSECONDS`.
    line: UnixStream,
}

impl Watchdog {
    /// Starts one.
    pub fn start() -> io::Result<Self> {
        let (line, other) = UnixStream::pair()?;
        // One that does not read must not hold its keeper up: it then acts earlier, never later.
        line.set_nonblocking(true)?;
        let process = Role::Watchdog
            .command()
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .spawn()?;
        Ok(Self { process, line })
    }

    /// Tells it whom to kill, and when at the latest on the clock since boot.
    pub fn watch(&mut self, group: Group, end: Duration) {
        // A line that cannot be written leaves the earlier end.
        let _ = writeln!(self.line, "{} {}", group.0, end.as_nanos());
    }

    /// Nothing is left to watch.
    pub fn dismiss(mut self) {
        // It fails only for one that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whom to kill, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KillDeadline {
    group: Group,
    end: Duration,
}

/// The process itself: waits for the end of the lease or of its keeper.
pub fn watchdog() -> ExitCode {
    match duty_due() {
        Ok(Some(duty)) => duty.group.signal(Signal::SIGKILL),
        // It was told of nobody, or was not started by a keeper.
        Ok(None) | Err(_) => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn duty_due() -> io::Result<Option<KillDeadline>> {
    let mut line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut told = Vec::new();
    let mut duty: Option<KillDeadline> = None;
    loop {
        let left = duty.map_or(SLICE, |duty| duty.end.saturating_sub(clock::since_boot()));
        if left.is_zero() {
            return Ok(duty);
        }
        line.set_read_timeout(Some(left.min(SLICE)))?;
        let mut part = [0; 256];
        match line.read(&mut part) {
            Ok(0) => return Ok(duty),
            Ok(length) => {
                told.extend_from_slice(&part[..length]);
                duty = latest(&mut told).or(duty);
            }
            Err(error) if is_pause(error.kind()) => {}
            // A line that breaks is a keeper that is gone.
            Err(_) => return Ok(duty),
        }
    }
}

fn is_pause(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// The last whole line; what follows it is kept for when it is whole.
fn latest(told: &mut Vec<u8>) -> Option<KillDeadline> {
    let end = told.iter().rposition(|byte| *byte == b'\n')?;
    let whole: Vec<u8> = told.drain(..=end).collect();
    let text = String::from_utf8(whole).ok()?;
    let (group, end) = text.lines().last()?.split_once(' ')?;
    let group: i32 = group.parse().ok().filter(|group| *group > 1)?;
    Some(KillDeadline {
        group: Group(Pid::from_raw(group)),
        end: Duration::from_nanos(end.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_counts() {
        let mut told = b"12 5\n12 7000000000\n12 9".to_vec();
        let duty = latest(&mut told).expect("a line");
        assert_eq!((duty.group.0.as_raw(), duty.end), (12, Duration::from_secs(7)));
        assert_eq!(told, b"12 9");
        assert_eq!(latest(&mut told), None);
        assert_eq!(latest(&mut b"1 5\n".to_vec()), None, "that would be everybody");
    }
}
