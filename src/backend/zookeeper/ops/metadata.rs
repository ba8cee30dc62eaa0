//! Changes the metadata of a holder: a write at the version that was read, which goes on with the lease of that version.

use super::{Replica, TRIES, changed, set};
use crate::backend::UpdateOutcome;
use crate::backend::zookeeper::client::Failure;
use crate::backend::zookeeper::client::wire::Op;
use crate::name::{LeaseKey, Metadata};

impl Replica {
    /// See [`crate::backend::Backend::update_metadata`].
    pub async fn update_metadata(&self, lease: &LeaseKey, metadata: &Metadata) -> Result<UpdateOutcome, Failure> {
        for _ in 0..TRIES {
            let Some(held) = self.holder_of(lease).await? else {
                let connection = self.connections.ready().await?;
                let cause = self.history.of_lease(connection.generation, lease).await?;
                return Ok(UpdateOutcome::Gone(cause));
            };
            if held.remaining().is_zero() {
                // It is about to be ended, unless another replica has renewed it.
                self.expire(&held).await?;
                continue;
            }
            let mut claim = held.claim_with_this_lease();
            claim.terms.metadata = metadata.clone();
            let path = self.child(&held.lock, &held.child.name);
            let write = Op::set(path, claim.encode(), held.version);
            if let Some(done) = changed(self.step(&held.lock, vec![write.into()]).await)? {
                self.note_rewritten(&held, claim, set(&done, 0)?);
                return Ok(UpdateOutcome::Updated);
            }
            self.leases.is_outdated(&held);
        }
        Err(Failure::Contended)
    }
}
