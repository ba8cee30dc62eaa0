//! The commands of the program: `serve` and `config` for who runs it, the rest for who uses it.
//!
//! What exit codes mean stands in [`exit`], and in the help.

mod admin;
mod lock_request;
mod bench;
mod completions;
mod config;
mod exit;
mod failure;
mod lease_id;
mod leases;
mod lock;
mod lock_name;
mod inspect;
mod output;
mod role;
mod serve;
mod server;
mod signals;
mod table;
mod unprintable;
mod waiting;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fencepost::config::Overrides;

use failure::{Failure, failure};
pub use role::Role;

/// The arguments of the program.
#[derive(Debug, Parser)]
#[command(
    version,
    about = "A lock service: leases with fencing tokens",
    after_help = exit::HELP,
    max_term_width = 100
)]
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
    /// Run a command under a lock
    Lock(lock::Lock),
    /// Take a lock and print its lease, which nobody renews
    Acquire(leases::Acquire),
    /// Give a lease more time
    Renew(leases::Renew),
    /// Give a lease back
    Release(leases::Release),
    /// Show who holds a lock and who waits for it
    Get(inspect::Get),
    /// List the locks in use
    List(inspect::List),
    /// Show a lock's state, then each change of it
    Watch(inspect::Watch),
    /// Say whether a fencing token is held at this moment
    CheckToken(inspect::CheckToken),
    /// Take a lock away from the claim that a fencing token names
    ForceRelease(admin::ForceRelease),
    /// Show every namespace with its store, limits and health
    Namespaces(admin::Namespaces),
    /// Measure a running server
    Bench(bench::Bench),
    /// Print a script that completes these commands in a shell
    Completions(completions::Completions),
}

impl Cli {
    /// Does what the arguments say.
    pub fn run(self) -> ExitCode {
        self.command.run().unwrap_or_else(Failure::report)
    }
}

impl Command {
    fn run(self) -> Result<ExitCode, Failure> {
        let done = match self {
            Self::Lock(lock) => return lock::run(lock),
            Self::CheckToken(check) => return inspect::check_token(check),
            Self::Serve(overrides) => serve::run(overrides),
            Self::Config(command) => config::run(command),
            Self::Acquire(acquire) => leases::acquire(acquire),
            Self::Renew(renew) => leases::renew(renew),
            Self::Release(release) => leases::release(release),
            Self::Get(get) => inspect::get(get),
            Self::List(list) => inspect::list(list),
            Self::Watch(watch) => inspect::watch(watch),
            Self::ForceRelease(force) => admin::force_release(force),
            Self::Namespaces(namespaces) => admin::namespaces(namespaces),
            Self::Bench(bench) => bench::run(bench),
            Self::Completions(completions) => completions::run(completions),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}
