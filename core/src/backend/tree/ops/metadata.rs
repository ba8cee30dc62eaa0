//! Changes the metadata of a holder: a write at the version that was read, which goes on with the lease of that version.

use super::{Replica, TRIES};
use crate::backend::tree::store::Failure;
use crate::backend::{StreamNumber, UpdateOutcome};
use crate::name::{LeaseKey, Metadata};

impl Replica {
    /// See [`crate::backend::Backend::update_metadata`].
    pub async fn update_metadata(
        &self,
        lease: &LeaseKey,
        metadata: &Metadata,
        stream: Option<StreamNumber>,
    ) -> Result<UpdateOutcome, Failure> {
        for _ in 0..TRIES {
            let Some(held) = self.holder_of(lease).await? else {
                return Ok(UpdateOutcome::Gone(self.cause_of(lease).await?));
            };
            if self.leases.remaining(&held).is_zero() {
                // It is about to be ended, unless another replica has renewed it.
                self.expire(&held).await?;
                continue;
            }
            let mut claim = self.leases.claim_with_this_lease(&held);
            let Some(hold) = claim.holds.iter_mut().find(|hold| hold.secret == lease.secret) else {
                continue;
            };
            if hold.callers.supersede(stream) {
                return Ok(UpdateOutcome::Superseded);
            }
            hold.callers.note(stream);
            claim.terms.metadata = metadata.clone();
            if self.rewrite(&held, claim).await?.is_some() {
                return Ok(UpdateOutcome::Updated);
            }
        }
        Err(Failure::Contended)
    }
}
