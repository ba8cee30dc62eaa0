//! The watchdog: a separate process that kills the command's group when the lease ends, or when the
//! process that renews the lease has ended. Without it, a command could continue without a lock
//! after that process is killed or stopped.

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

/// The interval between checks of the clock, which includes suspends.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The watchdog, as the process under `fencepost lock` sees it. When dropped, the watchdog kills
/// the group.
#[derive(Debug)]
pub struct Watchdog {
    process: std::process::Child,
    /// One line is sent per deadline: `GROUP NANOSECONDS`.
    socket: UnixStream,
}

impl Watchdog {
    /// Starts a watchdog process.
    pub fn start() -> io::Result<Self> {
        let (socket, child_end) = UnixStream::pair()?;
        // A watchdog that does not read must not block this process. It then kills too early, never
        // too late.
        socket.set_nonblocking(true)?;
        let process = Role::Watchdog
            .command()
            .stdin(Stdio::from(OwnedFd::from(child_end)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .spawn()?;
        Ok(Self { process, socket })
    }

    /// Sets the group to kill, and the deadline on the clock since boot.
    pub fn set_deadline(&mut self, group: Group, end: Duration) {
        // If the line cannot be written, the earlier deadline remains.
        let _ = writeln!(self.socket, "{} {}", group.0, end.as_nanos());
    }

    /// Ends the watchdog without killing the group.
    pub fn stop(mut self) {
        // It fails only if the process has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The group to kill, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KillDeadline {
    group: Group,
    end: Duration,
}

/// The watchdog process: waits for the deadline or for the end of its parent.
pub fn watchdog() -> ExitCode {
    match wait_for_deadline() {
        Ok(Some(deadline)) => deadline.group.signal(Signal::SIGKILL),
        // It received no deadline, or its standard input is not a socket.
        Ok(None) | Err(_) => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn wait_for_deadline() -> io::Result<Option<KillDeadline>> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut received = Vec::new();
    let mut deadline: Option<KillDeadline> = None;
    loop {
        let left = deadline.map_or(CHECK_INTERVAL, |deadline| {
            deadline.end.saturating_sub(clock::since_boot())
        });
        if left.is_zero() {
            return Ok(deadline);
        }
        socket.set_read_timeout(Some(left.min(CHECK_INTERVAL)))?;
        let mut chunk = [0; 256];
        match socket.read(&mut chunk) {
            Ok(0) => return Ok(deadline),
            Ok(length) => {
                received.extend_from_slice(&chunk[..length]);
                deadline = latest(&mut received).or(deadline);
            }
            Err(error) if is_retryable(error.kind()) => {}
            // A broken connection means that the parent has ended.
            Err(_) => return Ok(deadline),
        }
    }
}

fn is_retryable(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Parses the last complete line and keeps the incomplete rest for later.
fn latest(received: &mut Vec<u8>) -> Option<KillDeadline> {
    let end = received.iter().rposition(|byte| *byte == b'\n')?;
    let whole: Vec<u8> = received.drain(..=end).collect();
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
    fn the_last_complete_line_applies() {
        let mut received = b"12 5\n12 7000000000\n12 9".to_vec();
        let deadline = latest(&mut received).expect("a line");
        assert_eq!((deadline.group.0.as_raw(), deadline.end), (12, Duration::from_secs(7)));
        assert_eq!(received, b"12 9");
        assert_eq!(latest(&mut received), None);
        assert_eq!(latest(&mut b"1 5\n".to_vec()), None, "group 1 would be all processes");
    }
}
