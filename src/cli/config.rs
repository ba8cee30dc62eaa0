//! `fencepost config`: look at a configuration before it is served.

use clap::Subcommand;
use fencepost::config::{Config, Overrides};
use fencepost::stores;

use super::Failure;
use super::output::print;

/// The commands about the configuration.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check the configuration: prints ok, or what is wrong with it and exits with 1
    Check(Overrides),
    /// Print the whole configuration as TOML, with the documentation and the default of each key
    Show(Overrides),
}

/// Does one of them.
pub fn run(command: Command) -> Result<(), Failure> {
    let text = match command {
        Command::Check(overrides) => check(overrides)?,
        Command::Show(overrides) => Config::load(overrides, stores::ALL).map_err(Failure::usage)?.show(),
    };
    print(&text).map(drop).map_err(Failure::runtime)
}

fn check(overrides: Overrides) -> Result<String, Failure> {
    // A fault is what this command looks for, not a wrong use of it.
    Config::check(overrides, stores::ALL).map_err(Failure::runtime)?;
    Ok("ok\n".to_owned())
}
