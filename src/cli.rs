//! The commands of the program.
//!
//! Exit codes: 0 done, 1 failed while running (or `config check` found a fault), 2 wrong arguments
//! or configuration.

mod config;
mod output;
mod serve;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fencepost::config::Overrides;

use output::complain;

/// The arguments of the program.
#[derive(Debug, Parser)]
#[command(version, about = "A lock service: leases with fencing tokens", max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve locks until SIGTERM or SIGINT; a second signal ends at once
    Serve(Overrides),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(config::Command),
}

impl Cli {
    /// Does what the arguments say.
    pub fn run(self) -> ExitCode {
        let done = match self.command {
            Command::Serve(overrides) => serve::run(overrides),
            Command::Config(command) => config::run(command),
        };
        done.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
    }
}

/// Why a command failed, and whose fault that is.
#[derive(Debug)]
enum Failure {
    /// The caller's: wrong arguments or configuration.
    Usage(Box<dyn std::error::Error>),
    /// The world's.
    Runtime(Box<dyn std::error::Error>),
}

impl Failure {
    fn usage(error: impl std::error::Error + 'static) -> Self {
        Self::Usage(Box::new(error))
    }

    fn runtime(error: impl std::error::Error + 'static) -> Self {
        Self::Runtime(Box::new(error))
    }

    fn report(self) -> ExitCode {
        let (error, code) = match &self {
            Self::Usage(error) => (error, 2),
            Self::Runtime(error) => (error, 1),
        };
        complain(error.as_ref());
        ExitCode::from(code)
    }
}
