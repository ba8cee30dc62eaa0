//! What the client is told about its leases.

use std::time::Duration;

use crate::error::Error;
use crate::name::InvalidField;

/// A message for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The next beat is due.
    Ask,
    /// The outcome of a beat.
    Kept {
        /// The client's number of the beat.
        beat: u64,
        /// The TTL of each lease in the order of the beat, counted from when the beat began; zero for one that was not
        /// renewed.
        ttls: Vec<Duration>,
        /// The leases that were not renewed for their whole TTL from when the beat began.
        not_renewed: Vec<NotRenewed>,
        /// The ids of the others whose TTL is not the one that the client was told last, with their TTL.
        new_ttls: Vec<(String, Duration)>,
    },
    /// A lease is not kept any more.
    Lost {
        /// Its id.
        lease_id: String,
        /// Why not.
        error: Error,
    },
}

/// A lease that a beat did not renew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRenewed {
    /// Its id.
    pub lease_id: String,
    /// Why not; absent if its store did not answer in time.
    pub error: Option<Error>,
}

impl NotRenewed {
    /// A lease that was detached, or released, before the answer to a keep_alive.
    pub(super) fn detached(lease_id: &str) -> Self {
        let error = InvalidField::new("lease_id", "was detached before the answer to the keep_alive");
        Self {
            lease_id: lease_id.to_owned(),
            error: Some(error.into()),
        }
    }
}

/// Which beat names a lease that was detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// None.
    None,
    /// The one in progress.
    Beat,
    /// The next one, and maybe the one in progress.
    NextBeat,
}
