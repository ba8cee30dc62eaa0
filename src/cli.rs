//! The commands of the program: `serve` and `config` for operators of the server, the others for
//! its users.
//!
//! [`exit`] and the help document the exit codes.

mod admin;
mod arguments;
mod bench;
mod completions;
mod config;
mod copy_to;
mod direct;
mod election;
mod exit;
mod failure;
mod following;
mod health;
mod inspect;
mod known_variables;
mod lease_id;
mod leases;
mod listing;
mod lock;
mod lock_name;
mod lock_request;
mod man;
mod output;
mod progress_line;
mod role;
mod same_store;
mod screen;
mod serve;
mod server;
mod signals;
mod status;
mod table;
mod top;
mod unprintable;
mod watch;
mod width;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use failure::{Failure, failure};
use output::Format;
pub use role::Role;
use server::Call;

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
    Serve(serve::Serve),
    /// Serve locks in memory, with the console and metrics, to write programs against
    Dev(serve::Dev),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Run a command under a lock
    Lock(lock::Lock),
    /// Lead an election while a command runs
    Campaign(election::Campaign),
    /// Show the leader of an election, then each change
    Observe(Call<election::Observe>),
    /// Acquire a lock and print its lease, which is not renewed
    Acquire(Call<leases::Acquire>),
    /// Renew a lease
    Renew(Call<leases::Renew>),
    /// Release a lease
    Release(Call<leases::Release>),
    /// Replace the metadata of a lease
    UpdateMetadata(Call<leases::UpdateMetadata>),
    /// Show the holders and waiters of a lock
    Get(Call<inspect::Get>),
    /// List the locks in use
    List(Call<listing::List>),
    /// Show the state of a lock or of several, then each change
    Watch(Call<watch::Watch>),
    /// Show whether a fencing token is held now
    CheckToken(Call<inspect::CheckToken>),
    /// Forcibly release the holder with a fencing token
    ForceRelease(Call<admin::ForceRelease>),
    /// End the quarantine of the stores of namespaces
    Admit(Call<admin::Admit>),
    /// Show all namespaces with their store, limits and health
    Namespaces(Call<admin::Namespaces>),
    /// Check that a server answers and serves
    Health(health::Health),
    /// Show whether each of several servers answers and serves
    Status(Call<status::Status>),
    /// Show the open KeepAlive and Session streams of a server
    Sessions(Call<admin::Sessions>),
    /// Show the busiest namespaces and the locks with the longest queues and holds
    Top(top::Top),
    /// Measure a running server
    Bench(bench::Bench),
    /// Copy this program, for images without a shell
    CopyTo(copy_to::CopyTo),
    /// Print a script that completes these commands in a shell
    Completions(completions::Completions),
    /// Write a manual page for each of these commands
    Man(man::Man),
}

impl Cli {
    /// The command that these arguments say. Without a valid one, the process ends.
    pub fn of(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let arguments = arguments::ordered(arguments);
        let program = known_variables::without_empty(Self::command());
        let program = arguments::over_variables(program, &arguments);
        let arguments = program.get_matches_from(arguments);
        Self::from_arg_matches(&arguments).unwrap_or_else(|error| error.exit())
    }

    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let format = self.command.format();
        known_variables::warn(&Self::command());
        self.command.run().unwrap_or_else(|failure| failure.report_as(format))
    }
}

impl Command {
    /// The format of its responses and errors.
    fn format(&self) -> Format {
        let output = match self {
            Self::Observe(args) => args.output,
            Self::Acquire(args) => args.output,
            Self::Renew(args) => args.output,
            Self::Release(args) => args.output,
            Self::UpdateMetadata(args) => args.output,
            Self::Get(args) => args.output,
            Self::List(args) => args.output,
            Self::Watch(args) => args.output,
            Self::CheckToken(args) => args.output,
            Self::ForceRelease(args) => args.output,
            Self::Admit(args) => args.output,
            Self::Namespaces(args) => args.output,
            Self::Sessions(args) => args.output,
            Self::Status(args) => args.output,
            Self::Top(args) => args.output,
            Self::Serve(_)
            | Self::Dev(_)
            | Self::Config(_)
            | Self::Lock(_)
            | Self::Campaign(_)
            | Self::Bench(_)
            | Self::Health(_)
            | Self::CopyTo(_)
            | Self::Completions(_)
            | Self::Man(_) => return Format::Text,
        };
        output.output
    }

    fn run(self) -> Result<ExitCode, Failure> {
        let done = match self {
            Self::Lock(lock) => return lock::run(lock),
            Self::Campaign(campaign) => return election::campaign(campaign),
            Self::Observe(observe) => election::observe(observe),
            Self::CheckToken(check) => return inspect::check_token(check),
            Self::Status(status) => return status::status(status),
            Self::Top(top) => return top::run(top),
            Self::Serve(args) => serve::run(args),
            Self::Dev(args) => serve::run_dev(args),
            Self::Config(command) => config::run(command),
            Self::Acquire(acquire) => leases::acquire(acquire),
            Self::Renew(renew) => leases::renew(renew),
            Self::Release(release) => leases::release(release),
            Self::UpdateMetadata(update) => leases::update_metadata(update),
            Self::Get(get) => inspect::get(get),
            Self::List(list) => listing::list(list),
            Self::Watch(watch) => watch::watch(watch),
            Self::ForceRelease(force) => admin::force_release(force),
            Self::Admit(admit) => admin::admit(admit),
            Self::Namespaces(namespaces) => admin::namespaces(namespaces),
            Self::Health(health) => health::run(health),
            Self::Sessions(sessions) => admin::sessions(sessions),
            Self::Bench(bench) => bench::run(bench),
            Self::CopyTo(copy) => copy_to::run(copy),
            Self::Completions(completions) => completions::run(completions),
            Self::Man(man) => man::run(man),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}
