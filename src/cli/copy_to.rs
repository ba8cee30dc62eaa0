//! `fencepost copy-to`: copies this program, because its image has no shell and no `cp`.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Failure;
use super::role::OWN_PROGRAM;

/// Copy this program.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example, in an init container with a shared volume:\n  fencepost copy-to /shared")]
pub struct CopyTo {
    /// The new file, or a directory
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    path: PathBuf,
}

/// A path to which the program cannot be copied.
#[derive(Debug, thiserror::Error)]
#[error("cannot copy the program to {}", path.display())]
struct NotCopied {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Copies the program. The file is whole once it has its name.
pub fn run(args: CopyTo) -> Result<(), Failure> {
    let path = match args.path.is_dir() {
        true => args.path.join("fencepost"),
        false => args.path,
    };
    let mut part = path.clone().into_os_string();
    part.push(format!(".{}", std::process::id()));
    let part = PathBuf::from(part);
    copy(&part, &path).map_err(|source| {
        // It may not have been created.
        let _ = fs::remove_file(&part);
        Failure::runtime(NotCopied { path, source })
    })
}

fn copy(part: &Path, path: &Path) -> io::Result<()> {
    fs::copy(OWN_PROGRAM, part)?;
    fs::set_permissions(part, Permissions::from_mode(0o755))?;
    fs::rename(part, path)
}
