//! The `fencepost` program: arguments in, an exit code out.

#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Role::of(std::env::args_os()) {
        Some(role) => role.run(),
        None => cli::Cli::parse().run(),
    }
}
