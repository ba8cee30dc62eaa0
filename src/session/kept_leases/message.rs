//! What the client is told about its leases.

use std::time::Duration;

use crate::error::Error;

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
