//! `fencepost config`: checks or prints a configuration.

use std::io;
use std::time::Duration;

use clap::Subcommand;
use fencepost::backend::{Health, whole_seconds};
use fencepost::config::{Config, Overrides};
use fencepost::stores;
use humantime::format_duration;
use tokio::runtime::Builder;
use tokio::time::Instant;

use super::Failure;
use super::output::print;

/// How long a store may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The commands for configurations.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check the configuration: prints ok, or the errors and exits with 1
    Check(Check),
    /// Print the complete configuration as TOML, with the documentation and the default of each key
    Show(Overrides),
}

/// The arguments of `fencepost config check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "--config - reads standard input.\n\nExamples:\n  \
                        fencepost config check --config /etc/fencepost/fencepost.toml --connect\n  \
                        helm get values locks | fencepost config check --syntax --config -")]
pub struct Check {
    #[command(flatten)]
    overrides: Overrides,
    /// Check the text alone, and none of the files with certificates, tokens, keys and passwords that it names
    #[arg(long)]
    syntax: bool,
    /// Connect to the stores too, as a server does: missing tables are created, an empty Redis gets its marker, and a longer
    /// ttl_max is noted for good
    #[arg(long, conflicts_with = "syntax")]
    connect: bool,
}

/// Runs a command.
pub fn run(command: Command) -> Result<(), Failure> {
    let text = match command {
        Command::Check(args) => check(args)?,
        Command::Show(overrides) => Config::load(overrides, stores::ALL).map_err(Failure::usage)?.show(),
    };
    print(&text).map(drop).map_err(Failure::runtime)
}

fn check(args: Check) -> Result<String, Failure> {
    // Exit code 1, not 2: an error in the configuration is a result of this command, not a usage
    // error.
    let check = if args.syntax { Config::load } else { Config::check };
    let config = check(args.overrides, stores::ALL).map_err(Failure::runtime)?;
    let asked = if args.connect { ask(&config)? } else { String::new() };
    Ok(format!("{asked}ok\n"))
}

/// A line for each namespace whose store answers.
fn ask(config: &Config) -> Result<String, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::runtime)?;
    let asked = runtime
        .block_on(stores::ask(config, ANSWER))
        .map_err(Failure::runtime)?;
    let (mut answers, mut problems) = (String::new(), Vec::new());
    for (namespace, health) in asked {
        match health {
            Health::Serving => answers += &format!("{namespace}: serving\n"),
            Health::Quarantined { until, reason } => {
                let left = format_duration(whole_seconds(until.saturating_duration_since(Instant::now())));
                answers += &format!("{namespace}: in quarantine for another {left}: {reason}\n");
            }
            Health::Unavailable { reason } => problems.push(format!("namespace {namespace}: {reason}")),
        }
    }
    match problems.is_empty() {
        true => Ok(answers),
        false => Err(Failure::runtime(io::Error::other(problems.join("\n")))),
    }
}
