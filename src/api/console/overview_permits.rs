//! Bounds the overviews that are read at once.
//!
//! An overview reads thousands of locks and holds what it has counted, so only a few are read at a time. Others wait in
//! line for a short time; one peer address has a part of the line.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
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
    _place: SemaphorePermit<'a>,
    _of_peer: Option<UsageGuard>,
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
        let of_peer = remote.usage.as_ref().map(|usage| {
            let counted = usage.count_overview(PLACES);
            counted.ok_or_else(|| overloaded("too many overviews of this address are being read"))
        });
        let of_peer = of_peer.transpose()?;
        let too_many = || overloaded("too many overviews are being read");
        let place = self.places.try_acquire().map_err(|_| too_many())?;
        let reading = timeout(WAIT, self.reading.acquire()).await;
        Ok(OverviewPermit {
            _of_peer: of_peer,
            _place: place,
            _reading: reading.map_err(|_| too_many())?.map_err(|_| too_many())?,
        })
    }
}
