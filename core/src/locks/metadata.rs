//! Changes the metadata of a lease.
//!
//! This is a verb of the store, because the value of a leader may change only while it leads, which only the step
//! that writes it can check. The write names what was read before, so that a late update never replaces a later one.
//! RedLock offers no updates: nodes that a majority write did not reach would show the old value for ever.

use super::{Locks, SessionStream};
use crate::backend::UpdateOutcome;
use crate::error::Error;
use crate::name::{LeaseKey, Metadata};

impl Locks {
    /// Replaces the metadata of the claim that a lease holds, and leaves its TTL as it is.
    ///
    /// # Cancellation safety
    /// If the future is dropped, it is unknown whether the metadata was replaced. The same call can be made again.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the lease has ended; [`Error::Overloaded`] if the claims of the lock take as many bytes as
    /// they may; [`Error::Unsupported`] if the store cannot do this.
    pub async fn update_metadata(&self, lease: &LeaseKey, metadata: &Metadata) -> Result<(), Error> {
        self.update_metadata_on(None, lease, metadata).await
    }

    /// [`Self::update_metadata`] by a command of a stream, if there is one.
    ///
    /// # Errors
    /// As [`Self::update_metadata`]; [`Error::Superseded`] if a later stream of the session has updated the lease, or was
    /// granted it.
    pub async fn update_metadata_on(
        &self,
        stream: Option<&SessionStream>,
        lease: &LeaseKey,
        metadata: &Metadata,
    ) -> Result<(), Error> {
        let capabilities = self.state.capabilities;
        if !capabilities.updates_metadata {
            return Err(Error::Unsupported {
                what: format!("a change of metadata on a namespace of kind {}", capabilities.kind),
            });
        }
        let stream = stream.map(|stream| stream.number);
        match self.state.backend.update_metadata(lease, metadata, stream).await? {
            UpdateOutcome::Updated => Ok(()),
            UpdateOutcome::Refused(refusal) => Err(refusal.into()),
            UpdateOutcome::Superseded => Err(Error::Superseded),
            UpdateOutcome::Gone(cause) => Err(Error::LeaseLost { cause }),
        }
    }
}
