//! Reads the lease id for `renew` and `release`. It is a secret, and other users of the machine can list arguments, so
//! that there are other ways to pass it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::Failure;

/// The environment variable with the lease id. `fencepost lock` sets it for its command.
const VARIABLE: &str = "FENCEPOST_LEASE_ID";
/// The maximum size of the file, in bytes: more than any lease id, so that another file is detected.
const MAX_BYTES: u64 = 16 << 10;

/// The lease id of a command.
#[derive(Debug, clap::Args)]
pub struct LeaseId {
    /// The lease id, a secret, from `acquire`. Other users can list arguments; prefer the environment variable or
    /// --lease-id-file [env: FENCEPOST_LEASE_ID]
    #[arg(value_name = "LEASE_ID", conflicts_with = "lease_id_file")]
    lease_id: Option<String>,
    /// Read the lease id from this file; - reads standard input
    #[arg(long, value_name = "FILE")]
    lease_id_file: Option<PathBuf>,
}

/// Why there is no lease id.
#[derive(Debug, thiserror::Error)]
enum NoLeaseId {
    #[error("give the lease id in {VARIABLE}, by --lease-id-file FILE, or as LEASE_ID; see --help")]
    Missing,
    #[error("cannot read the lease id from {from}")]
    Unread { from: String, source: io::Error },
    #[error("{from} holds no lease id: it is empty or longer than {MAX_BYTES} bytes")]
    NotOne { from: String },
}

impl LeaseId {
    /// The lease id: from the argument, else from the file, else from the variable.
    pub fn read(&self) -> Result<String, Failure> {
        match (&self.lease_id, &self.lease_id_file) {
            (Some(lease_id), _) => Ok(trimmed(lease_id).to_owned()),
            (None, Some(path)) => read(path).map_err(Failure::usage),
            (None, None) => {
                let lease_id = std::env::var(VARIABLE).unwrap_or_default();
                match trimmed(&lease_id) {
                    "" => Err(Failure::usage(NoLeaseId::Missing)),
                    lease_id => Ok(lease_id.to_owned()),
                }
            }
        }
    }
}

/// The namespace in a lease id.
pub fn namespace(lease_id: &str) -> Option<&str> {
    lease_id.split(':').nth(1)
}

/// A lease id without what editors and shells add: a byte order mark, white space around it.
fn trimmed(text: &str) -> &str {
    text.trim_start_matches('\u{feff}').trim()
}

/// Reads a file or standard input.
fn read(path: &Path) -> Result<String, NoLeaseId> {
    let is_input = path == Path::new("-");
    let from = || {
        if is_input {
            "standard input".to_owned()
        } else {
            path.display().to_string()
        }
    };
    let mut text = String::new();
    let read = if is_input {
        io::stdin().take(MAX_BYTES + 1).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
    };
    let length = read.map_err(|source| NoLeaseId::Unread { from: from(), source })?;
    match trimmed(&text) {
        "" => Err(NoLeaseId::NotOne { from: from() }),
        _ if length as u64 > MAX_BYTES => Err(NoLeaseId::NotOne { from: from() }),
        lease_id => Ok(lease_id.to_owned()),
    }
}
