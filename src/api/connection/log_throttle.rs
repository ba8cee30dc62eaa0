//! What the log says of what clients can cause, such as connections past the limit: a line now and then, for
//! whoever makes them could fill the log too.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long the log says nothing more.
const QUIET: Duration = Duration::from_secs(10);

/// How many were closed since the log said so.
#[derive(Debug, Default)]
pub(in crate::api) struct LogThrottle {
    /// Never held for longer than it takes to count.
    since: Mutex<(Option<Instant>, u64)>,
}

impl LogThrottle {
    /// Counts one; answers how many there were where the log is to say so.
    pub(in crate::api) fn one_more(&self) -> Option<u64> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.1 += 1;
        let now = Instant::now();
        if since.0.is_some_and(|told| now - told < QUIET) {
            return None;
        }
        since.0 = Some(now);
        Some(std::mem::take(&mut since.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_is_told_at_once_and_the_others_together() {
        let told = LogThrottle::default();
        assert_eq!(told.one_more(), Some(1));
        for _ in 0..3 {
            assert_eq!(told.one_more(), None);
        }
        tokio::time::advance(QUIET).await;
        assert_eq!(told.one_more(), Some(4));
        assert_eq!(told.one_more(), None);
    }
}
