//! The stream of a session that can be resumed: what the claims of its calls note, and what is kept when it breaks off.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::ids;
use crate::backend::StreamNumber;
use crate::name::Identity;

/// The longest time for which a session that breaks off keeps what its unanswered calls have.
pub const LONGEST_GRACE: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub struct SessionStream {
    pub(super) number: StreamNumber,
    pub(super) grace: Duration,
    pub(super) identity: Identity,
    /// Until when the places of its calls are kept; nothing if they are not. Set at its end.
    end: OnceLock<Option<Instant>>,
}

impl SessionStream {
    /// The stream of this number, which rises with each stream of the session of this id. Its calls with a `request_id` keep
    /// their places in the queues for `grace`, at most [`LONGEST_GRACE`], when it breaks off.
    pub fn new(session_id: &str, number: u64, grace: Duration, identity: Identity) -> Arc<Self> {
        Arc::new(Self {
            number: StreamNumber::new(ids::of_session(session_id), number),
            grace: grace.min(LONGEST_GRACE),
            identity,
            end: OnceLock::new(),
        })
    }

    /// The stream breaks off now, unless it has ended: what its calls have is kept for the grace. Before its calls are dropped.
    pub fn broke_off(&self) {
        let _ = self.end.set(Some(Instant::now() + self.grace));
    }

    /// The stream ends now, and keeps nothing.
    pub fn ended(&self) {
        let _ = self.end.set(None);
    }

    /// Until when the places of its calls are kept, if it has broken off.
    pub(super) fn kept_until(&self) -> Option<Instant> {
        self.end.get().copied().flatten()
    }
}
