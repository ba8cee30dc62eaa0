//! Bounds the overviews that are read at once.
//!
//! An overview reads thousands of locks and holds what it has counted, so only a few are read at a time. Others wait for
//! a short time. One peer address has a share of those that are read, and of all.

use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::api::capacity::{UsageGuard, overloaded};
use crate::api::connection::Remote;
use crate::error::Error;

/// How many overviews are read at once.
pub(super) const READING: usize = 4;
/// How many are read or wait.
pub(super) const PLACES: usize = 32;
/// How long one waits. With the time in which it is read this is less than the page waits for an answer.
const WAIT: Duration = Duration::from_secs(4);

/// The permits for overviews.
#[derive(Debug)]
pub(super) struct OverviewPermits {
    reading: Semaphore,
    places: Semaphore,
}

/// The permit to read an overview.
#[derive(Debug)]
pub(super) struct OverviewPermit<'a> {
    _reading: SemaphorePermit<'a>,
    _reading_of_peer: Option<OwnedSemaphorePermit>,
    _place: SemaphorePermit<'a>,
    _place_of_peer: Option<UsageGuard>,
}

impl Default for OverviewPermits {
    fn default() -> Self {
        Self {
            reading: Semaphore::new(READING),
            places: Semaphore::new(PLACES),
        }
    }
}

impl OverviewPermits {
    /// Takes a permit for this client, after a wait if need be.
    ///
    /// # Errors
    /// OVERLOADED if too many wait, or if none is free in time.
    ///
    /// # Cancellation safety
    /// If dropped, the client does not wait any more.
    pub(super) async fn take(&self, remote: &Remote) -> Result<OverviewPermit<'_>, Error> {
        let usage = remote.usage.as_ref();
        let place_of_peer = usage.map(|usage| {
            let counted = usage.count_overview(PLACES);
            counted.ok_or_else(|| overloaded("too many overviews of this address are being read"))
        });
        let place_of_peer = place_of_peer.transpose()?;
        let too_many = || overloaded("too many overviews are being read");
        let place = self.places.try_acquire().map_err(|_| too_many())?;
        let reading = timeout(WAIT, async {
            // First among those of its address, so that no other address waits behind those that may not be read yet.
            let of_peer = match usage {
                Some(usage) => Some(usage.overviews_read(READING).acquire_owned().await?),
                None => None,
            };
            Ok::<_, AcquireError>((of_peer, self.reading.acquire().await?))
        });
        let (reading_of_peer, reading) = reading.await.map_err(|_| too_many())?.map_err(|_| too_many())?;
        Ok(OverviewPermit {
            _reading: reading,
            _reading_of_peer: reading_of_peer,
            _place: place,
            _place_of_peer: place_of_peer,
        })
    }
}
