//! What the exit codes mean. They lie above those that commands use, and below those of signals.

/// The lock is held by another.
pub const HELD: u8 = 120;
/// The wait ran out.
pub const WAIT_OVER: u8 = 121;
/// The lease is or may be lost, or the token is not held.
pub const LOST: u8 = 122;
/// No server answers, or it cannot serve now.
pub const NO_SERVER: u8 = 123;
/// `lock` itself failed, where 1 would be taken for its command's.
pub const LOCK_FAILED: u8 = 125;
/// The command cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// There is no such command.
pub const NOT_FOUND: u8 = 127;
/// What is added to the number of the signal that ended a command, as shells do.
pub const SIGNALLED: i32 = 128;

/// The codes, for the help.
pub const HELP: &str = "\
Exit codes:
    0  done
    1  failed otherwise, or `config check` found a fault
    2  wrong arguments or configuration
  120  the lock is held by another
  121  the wait ran out
  122  the lease is or may be lost, or the token is not held
  123  no server answers, or it or its store cannot serve now";
