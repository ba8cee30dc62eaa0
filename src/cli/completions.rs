//! `fencepost completions`: scripts for shells.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::output::print;
use super::{Cli, Failure};

const HELP: &str = "\
Examples:
  bash:  source <(fencepost completions bash)
  zsh:   fencepost completions zsh > \"${fpath[1]}/_fencepost\"
  fish:  fencepost completions fish > ~/.config/fish/completions/fencepost.fish";

/// Print a completion script.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub fn run(args: Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "fencepost", &mut script);
    let script = String::from_utf8(script).map_err(Failure::runtime)?;
    print(&script).map(drop).map_err(Failure::runtime)
}
