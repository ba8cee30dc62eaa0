//! A granted lease on its way to its client, with what it uses of a quota.

use std::time::Duration;

use tokio::time::Instant;

use super::grant_delivery::Deliver;
use crate::error::Error;
use crate::locks::{Lease, Locks, UndeliveredGrant};
use crate::quota::AcquireQuota;

/// A granted lease, with its entry in the quota.
#[derive(Debug)]
pub(super) struct CountedGrant {
    granted: UndeliveredGrant,
    quota: AcquireQuota,
    locks: Locks,
}

impl CountedGrant {
    pub(super) fn new(granted: UndeliveredGrant, mut quota: AcquireQuota, locks: Locks) -> Self {
        quota.granted(&granted.lease.key, granted.lease.ttl);
        Self { granted, quota, locks }
    }

    /// The lease.
    pub(super) fn lease(&self) -> &Lease {
        &self.granted.lease
    }

    /// Renews the lease for the TTL that it was last given, and returns its time.
    pub(super) async fn renewed(&self) -> Result<Duration, Error> {
        let key = &self.granted.lease.key;
        let renewed = self.locks.renew(key, None).await;
        renewed
            .map(|lease| lease.ttl)
            .map_err(|error| error.of_lock(key.lock.name.clone()))
    }

    /// Notes that the lease was renewed for this TTL by a step that was sent then.
    pub(super) fn lives(&mut self, sent: Instant, ttl: Duration) {
        self.granted.renewed(sent, ttl);
    }

    /// Sets the time that the answer tells.
    pub(super) fn set_time(&mut self, ttl: Duration, waited: Duration) {
        (self.granted.lease.ttl, self.granted.lease.waited) = (ttl, waited);
        self.quota.granted(&self.granted.lease.key, ttl);
    }

    /// Gives the grant back, as [`UndeliveredGrant::give_back`].
    pub(super) async fn give_back(self) {
        // An undo that failed continues in the background.
        let _ = self.granted.give_back().await;
    }
}

impl Deliver for Vec<CountedGrant> {
    fn deliver(self: Box<Self>) {
        self.into_iter().for_each(|granted| Box::new(granted).deliver());
    }
}

impl Deliver for CountedGrant {
    fn deliver(self: Box<Self>) {
        let lease = self.granted.delivered();
        self.quota.holds(&lease.key);
    }
}
