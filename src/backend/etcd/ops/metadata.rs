//! Changes the metadata of a holder: a write of its record, if that is unchanged since it was read. A write that reaches
//! etcd late therefore never undoes a later one.

use std::time::Duration;

use super::Replica;
use super::renew::TRIES;
use crate::backend::UpdateOutcome;
use crate::backend::etcd::cluster::Failure;
use crate::name::{LeaseKey, Metadata};

/// The pause before the next attempt, while etcd deletes the key of a lease that is dead.
const PAUSE: Duration = Duration::from_millis(20);

impl Replica {
    /// See [`crate::backend::Backend::update_metadata`].
    pub async fn update_metadata(&self, lease: &LeaseKey, metadata: &Metadata) -> Result<UpdateOutcome, Failure> {
        let lock = self.keys.lock(&lease.lock.name);
        let mut known = self.known_holder(lease).await?;
        for _ in 0..TRIES {
            let Some(mut entry) = known.filter(|entry| entry.hold_of(lease).is_some()) else {
                return Ok(UpdateOutcome::Gone(self.history.of(lease).await?));
            };
            let (on, read_at) = (entry.lease, entry.modified);
            entry.claim.terms.metadata = metadata.clone();
            if self.put_holder(&lease.lock.name, &mut entry, on).await? {
                self.history.note_rewritten(&entry);
                return Ok(UpdateOutcome::Updated);
            }
            known = self.holder_at(&lock, lease.kind, entry.suffix).await?;
            if known.as_ref().is_some_and(|known| known.modified == read_at) {
                tokio::time::sleep(PAUSE).await;
                known = self.holder_at(&lock, lease.kind, entry.suffix).await?;
            }
        }
        Err(Failure::Unavailable("etcd: the holder changes too fast".into()))
    }
}
