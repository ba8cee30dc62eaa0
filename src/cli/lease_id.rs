//! The lease id of `renew` and `release`: a secret, so it need not stand among arguments, which every user of the
//! machine can list.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::Failure;

/// The variable that holds it in the environment of a command under a lock.
const VARIABLE: &str = "FENCEPOST_LEASE_ID";
/// More than a lease id ever is, in bytes: what is longer is another file.
const LONGEST: u64 = 16 << 10;

/// The lease that a command is about.
#[derive(Debug, clap::Args)]
pub struct LeaseId {
    /// The lease id, a secret, from `acquire`; other users can list arguments, so better give it in the
    /// environment or by --lease-id-file [env: FENCEPOST_LEASE_ID]
    #[arg(value_name = "LEASE_ID", conflicts_with = "lease_id_file")]
    lease_id: Option<String>,
    /// Read the lease id from this file, or from standard input: -
    #[arg(long, value_name = "FILE")]
    lease_id_file: Option<PathBuf>,
}

/// No lease id was given, or not one.
#[derive(Debug, thiserror::Error)]
enum NoLeaseId {
    #[error("give the lease id in {VARIABLE}, by --lease-id-file FILE, or as LEASE_ID; see --help")]
    Missing,
    #[error("cannot read the lease id from {from}")]
    Unread { from: String, source: io::Error },
    #[error("{from} holds no lease id: it is empty or longer than {LONGEST} bytes")]
    NotOne { from: String },
}

impl LeaseId {
    /// The lease id: the argument, else the file, else the variable.
    pub fn read(&self) -> Result<String, Failure> {
        match (&self.lease_id, &self.lease_id_file) {
            (Some(lease_id), _) => Ok(lease_id.clone()),
            (None, Some(path)) => read(path).map_err(Failure::usage),
            (None, None) => std::env::var(VARIABLE).map_err(|_| Failure::usage(NoLeaseId::Missing)),
        }
    }
}

/// What a file holds, or standard input, without the blanks around it.
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
        io::stdin().take(LONGEST + 1).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text))
    };
    let length = read.map_err(|source| NoLeaseId::Unread { from: from(), source })?;
    match text.trim() {
        "" => Err(NoLeaseId::NotOne { from: from() }),
        _ if length as u64 > LONGEST => Err(NoLeaseId::NotOne { from: from() }),
        lease_id => Ok(lease_id.to_owned()),
    }
}
