//! The exit codes. They are above those that commands use, and below those of signals.

/// Another claim holds the lock.
pub const HELD: u8 = 120;
/// The wait timed out.
pub const WAIT_TIMEOUT: u8 = 121;
/// The lease is or may be lost, or the token does not hold the lock.
pub const LOST: u8 = 122;
/// No server answers, or it cannot serve now.
pub const NO_SERVER: u8 = 123;
/// `lock` itself failed. 1 would be indistinguishable from the command's own exit code.
pub const LOCK_FAILED: u8 = 125;
/// The command cannot be executed.
pub const CANNOT_RUN: u8 = 126;
/// The command does not exist.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended a command, as shells do.
pub const SIGNALLED: i32 = 128;

/// The exit codes, for the help.
pub const HELP: &str = "\
Exit codes:
    0  done
    1  failed otherwise, or `config check` found a fault
    2  wrong arguments or configuration
  120  the lock is held by another
  121  the wait ran out
  122  the lease is or may be lost, or the token is not held
  123  no server answers, or it or its store cannot serve now";
