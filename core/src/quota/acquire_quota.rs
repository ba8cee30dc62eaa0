//! What an Acquire uses of the limits, until the end of its lease.
//!
//! An Acquire in flight counts as held, because it may be granted at any moment. A retry that will find its own lease
//! is let through. Limits are counted on each server, because counting in the store would add a step to each Acquire.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::QuotaUse;
use crate::ledger::{EndWatch, Ledger};
use crate::name::LeaseKey;

/// The quota that an Acquire uses: a lease, and a waiter while the call is in progress.
#[derive(Debug, Default)]
pub struct AcquireQuota {
    pub(super) held: QuotaUse,
    pub(super) _waiting: QuotaUse,
    pub(super) ledger: Option<Arc<Ledger>>,
    pub(super) granted: Option<UndeliveredGrant>,
}

/// A lease on its way to its client.
#[derive(Debug)]
pub(super) struct UndeliveredGrant {
    end: Instant,
    delivery: EndWatch,
}

impl AcquireQuota {
    /// Notes that the lease was granted for this TTL from now. It may end before [`Self::holds`].
    pub fn granted(&mut self, lease: &LeaseKey, ttl: Duration) {
        let Some(ledger) = self.ledger.as_ref().filter(|_| !self.held.units.is_empty()) else {
            return;
        };
        let delivery = self.granted.take().map(|granted| granted.delivery);
        self.granted = Some(UndeliveredGrant {
            end: Instant::now() + ttl,
            delivery: delivery.unwrap_or_else(|| ledger.watch_delivery(lease)),
        });
    }

    /// Counts the delivered lease until its end is observed.
    pub fn holds(self, lease: &LeaseKey) {
        if let (Some(ledger), Some(granted)) = (self.ledger, &self.granted) {
            ledger.attach(lease, granted.end, Box::new(self.held), &granted.delivery);
        }
    }
}
