//! The `fencepost` program: arguments in, an exit code out.

#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

/// It takes less CPU time than that of the C library, and returns what a crowd of waiters took. Programs that use the
/// library choose their own.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: fencepost_allocator::Allocator = fencepost_allocator::Allocator;

fn main() -> ExitCode {
    match cli::Role::of(std::env::args_os()) {
        Some(role) => role.run(),
        None => cli::Cli::of(std::env::args_os()).run(),
    }
}
