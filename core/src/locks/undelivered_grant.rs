//! A grant on its way to its client.

use std::time::Duration;

use tokio::time::Instant;

use super::Lease;
use super::undo::Undo;
use crate::error::Error;

/// A granted lease that was not yet delivered to the client.
///
/// Dropping it before [`UndeliveredGrant::delivered`] releases the grant, unless a retry has adopted it.
#[derive(Debug)]
pub struct UndeliveredGrant {
    /// The lease.
    pub lease: Lease,
    pub(super) undo: Undo,
}

impl UndeliveredGrant {
    /// Keeps the grant, because its response was delivered.
    pub fn delivered(self) -> Lease {
        self.undo.disarm();
        self.lease
    }

    /// Notes that the lease was renewed for this TTL by a step that was sent then.
    pub fn renewed(&mut self, sent: Instant, ttl: Duration) {
        self.undo.ends(sent + ttl);
    }

    /// Undoes the grant now. A hold that another call has found stays: its client may have been given it.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the undo continues in the background.
    ///
    /// # Errors
    /// When the store fails. The undo then continues in the background.
    pub async fn give_back(self) -> Result<(), Error> {
        let mut undo = self.undo;
        undo.run().await.map(drop)
    }
}
