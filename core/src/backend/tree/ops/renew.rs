//! Renewal: a write at the version that was read, which every watcher counts from anew.

use std::time::Duration;

use super::{Replica, TRIES, grant_of};
use crate::backend::RenewOutcome;
use crate::backend::tree::leases::Lease;
use crate::backend::tree::store::Failure;
use crate::name::{LeaseKey, Ttl};

impl Replica {
    /// See [`crate::backend::Backend::renew`].
    pub async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, Failure> {
        for _ in 0..TRIES {
            let Some(held) = self.holder_of(lease).await? else {
                return Ok(RenewOutcome::Gone(self.cause_of(lease).await?));
            };
            if let Some(outcome) = self.prolong(&held, lease, ttl).await? {
                return Ok(outcome);
            }
        }
        Err(Failure::Contended)
    }

    /// Writes the longer of what is asked and what may still be promised. None if the holder has changed.
    async fn prolong(&self, held: &Lease, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<Option<RenewOutcome>, Failure> {
        if self.leases.remaining(held).is_zero() {
            // It is about to be ended, unless another replica has renewed it.
            self.expire(held).await?;
            return Ok(None);
        }
        let mut claim = self.leases.claim_with_this_lease(held);
        let Some(hold) = claim.holds.iter_mut().find(|hold| hold.secret == lease.secret) else {
            return Ok(None);
        };
        hold.ttl = ttl.map_or(hold.ttl, Ttl::get);
        let hold = hold.clone();
        claim.life = claim.life.max(hold.ttl);
        let claim = claim.with_new_lease()?;
        let renewed = self.rewrite(held, claim).await?;
        Ok(renewed.map(|held| RenewOutcome::Renewed(grant_of(&held, &hold, held.claim.life, Duration::ZERO))))
    }
}
