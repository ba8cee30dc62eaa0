//! The places for the leases that are attached to a session.
//!
//! Waits for leases to keep use at most half of the server's places for kept leases, so that leases which are held
//! find a place.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;

/// How many leases may be attached. One beat renews them all, so the size of a message does not bound them.
pub(super) const LEASES: usize = 10_000;
/// The size of a message that clients accept by default, in bytes.
const CLIENT_BYTES: usize = 4 << 20;
/// What an event has beside the id of each lease that it names, in bytes: a reason and a cause, or a TTL.
const BESIDE_ID_BYTES: usize = 32;

/// The number of leases is limited, and the size of an event that names all of them: `kept` and `closed` do where the
/// store is away.
#[derive(Debug)]
pub(super) struct LeasePlaces {
    number: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// The bytes of all places.
    limit: usize,
}

impl LeasePlaces {
    /// The places of a session whose messages may have so many bytes.
    pub(super) fn new(message_bytes: usize) -> Self {
        let limit = message_bytes.min(CLIENT_BYTES) / 4 * 3;
        Self {
            number: Arc::new(Semaphore::new(LEASES)),
            bytes: Arc::new(Semaphore::new(limit)),
            limit,
        }
    }

    /// Takes the place of a lease whose id has so many bytes.
    ///
    /// # Errors
    /// OVERLOADED at a limit.
    pub(super) fn take(&self, id_bytes: usize) -> Result<[OwnedSemaphorePermit; 2], Error> {
        let Ok(number) = Arc::clone(&self.number).try_acquire_owned() else {
            let what = format!("{LEASES} leases are attached to this session");
            return Err(Error::Overloaded { what });
        };
        let bytes = u32::try_from(id_bytes + BESIDE_ID_BYTES).unwrap_or(u32::MAX);
        let Ok(bytes) = Arc::clone(&self.bytes).try_acquire_many_owned(bytes) else {
            let what = format!(
                "the ids of the leases attached to this session, and {BESIDE_ID_BYTES} bytes for each, may have {} bytes",
                self.limit
            );
            return Err(Error::Overloaded { what });
        };
        Ok([number, bytes])
    }
}
