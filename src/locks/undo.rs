//! What happens to a claim whose call ends without its answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Room;
use crate::backend::{Departure, Leaving, NewClaim};
use crate::error::Error;
use crate::name::LockName;

/// How often a store that is away is asked again.
const AGAIN: Duration = Duration::from_millis(200);

/// Undoes a call when it is dropped: its claim leaves the queue, its grant is taken back (unless a
/// retry has found it). The undo runs in a task of its own, so that it survives the call.
#[derive(Debug)]
pub struct Undo {
    room: Arc<Room>,
    lock: LockName,
    claim: NewClaim,
    armed: bool,
}

impl Undo {
    /// Undoes this claim's call when dropped, from now on.
    pub fn armed(room: &Arc<Room>, lock: &LockName, claim: &NewClaim) -> Self {
        Self {
            room: Arc::clone(room),
            lock: lock.clone(),
            claim: claim.clone(),
            armed: true,
        }
    }

    /// There is nothing to undo: the call left nothing behind, or its answer was handed over.
    pub fn disarm(mut self) {
        self.armed = false;
    }

    /// Undoes the call now and says what was found. Still armed until it has succeeded.
    ///
    /// # Errors
    /// When the store failed; whether the call's claim is still there is unknown then.
    pub async fn run(&mut self) -> Result<Departure, Error> {
        let departure = self
            .room
            .leave(&self.lock, Leaving::Call(&self.claim.id, self.claim.call))
            .await?;
        self.armed = false;
        Ok(departure)
    }

    /// Tries until it succeeds, or until nothing can be left of the call: its cancel mark would be
    /// gone, and its lease over.
    async fn insist(mut self) {
        let until = Instant::now() + crate::backend::MARKS_KEPT.max(self.claim.ttl.get());
        while let Err(error) = self.run().await {
            if Instant::now() > until {
                tracing::warn!(lock = %self.lock, %error, "gave up undoing a call");
                self.armed = false;
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        self.armed = false;
        let undo = Self::armed(&self.room, &self.lock, &self.claim);
        self.room.undos.spawn(undo.insist());
    }
}
