//! The commands of the program: `serve` and `config` for operators of the server, the others for
//! its users.
//!
//! [`exit`] and the help document the exit codes.

mod admin;
mod bench;
mod completions;
mod config;
mod election;
mod exit;
mod failure;
mod inspect;
mod lease_id;
mod leases;
mod lock;
mod lock_name;
mod lock_request;
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
    /// Lead an election while a command runs
    Campaign(election::Campaign),
    /// Show the leader of an election, then each change
    Observe(election::Observe),
    /// Acquire a lock and print its lease, which is not renewed
    Acquire(leases::Acquire),
    /// Renew a lease
    Renew(leases::Renew),
    /// Release a lease
    Release(leases::Release),
    /// Replace the metadata of a lease
    UpdateMetadata(leases::UpdateMetadata),
    /// Show the holders and waiters of a lock
    Get(inspect::Get),
    /// List the locks in use
    List(inspect::List),
    /// Show the state of a lock, then each change
    Watch(inspect::Watch),
    /// Show whether a fencing token is held now
    CheckToken(inspect::CheckToken),
    /// Forcibly release the holder with a fencing token
    ForceRelease(admin::ForceRelease),
    /// Show all namespaces with their store, limits and health
    Namespaces(admin::Namespaces),
    /// Measure a running server
    Bench(bench::Bench),
    /// Print a script that completes these commands in a shell
    Completions(completions::Completions),
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        self.command.run().unwrap_or_else(Failure::report)
    }
}

impl Command {
    fn run(self) -> Result<ExitCode, Failure> {
        let done = match self {
            Self::Lock(lock) => return lock::run(lock),
            Self::Campaign(campaign) => return election::campaign(campaign),
            Self::Observe(observe) => election::observe(observe),
            Self::CheckToken(check) => return inspect::check_token(check),
            Self::Serve(overrides) => serve::run(overrides),
            Self::Config(command) => config::run(command),
            Self::Acquire(acquire) => leases::acquire(acquire),
            Self::Renew(renew) => leases::renew(renew),
            Self::Release(release) => leases::release(release),
            Self::UpdateMetadata(update) => leases::update_metadata(update),
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
