//! `fencepost config`: checks or prints a configuration.

use clap::Subcommand;
use fencepost::config::{Config, Overrides};
use fencepost::stores;

use super::Failure;
use super::output::print;

/// The commands for configurations.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check the configuration: prints ok, or the errors and exits with 1
    Check(Overrides),
    /// Print the complete configuration as TOML, with the documentation and the default of each key
    Show(Overrides),
}

/// Runs a command.
pub fn run(command: Command) -> Result<(), Failure> {
    let text = match command {
        Command::Check(overrides) => check(overrides)?,
        Command::Show(overrides) => Config::load(overrides, stores::ALL).map_err(Failure::usage)?.show(),
    };
    print(&text).map(drop).map_err(Failure::runtime)
}

fn check(overrides: Overrides) -> Result<String, Failure> {
    // Exit code 1, not 2: an error in the configuration is a result of this command, not a usage
    // error.
    Config::check(overrides, stores::ALL).map_err(Failure::runtime)?;
    Ok("ok\n".to_owned())
}
