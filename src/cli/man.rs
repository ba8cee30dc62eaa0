//! `fencepost man`: manual pages.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::CommandFactory;

use super::{Cli, Failure};

const HELP: &str = "\
Examples:
  fencepost man /usr/local/share/man/man1 && man fencepost-lock
  fencepost man . && man ./fencepost.1";

/// Write manual pages.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Man {
    /// The directory, which is made if it is missing
    #[arg(value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
}

/// A directory in which the pages cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write manual pages in {}", directory.display())]
struct NotWritten {
    directory: PathBuf,
    #[source]
    source: io::Error,
}

/// Writes a page for the program and one for each command.
pub fn run(args: Man) -> Result<(), Failure> {
    let Man { directory } = args;
    let written = fs::create_dir_all(&directory).and_then(|()| clap_mangen::generate_to(Cli::command(), &directory));
    written.map_err(|source| Failure::runtime(NotWritten { directory, source }))
}
