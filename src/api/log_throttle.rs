//! Throttles log lines about events that clients can cause, such as connections past the limit. Without a limit,
//! these clients could fill the log.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The minimum time between two log lines.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counts events, and limits their log lines to one per [`INTERVAL`].
#[derive(Debug, Default)]
pub(super) struct LogThrottle {
    /// The time of the last log line, and the number of events since.
    last: Mutex<(Option<Instant>, u64)>,
}

impl LogThrottle {
    /// Counts an event. Returns the number of events since the last log line if a log line is due.
    pub(super) fn one_more(&self) -> Option<u64> {
        let mut last = self.last.lock();
        last.1 += 1;
        let now = Instant::now();
        if last.0.is_some_and(|logged| now - logged < INTERVAL) {
            return None;
        }
        last.0 = Some(now);
        Some(std::mem::take(&mut last.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_event_is_logged_at_once_and_later_ones_together() {
        let throttle = LogThrottle::default();
        assert_eq!(throttle.one_more(), Some(1));
        for _ in 0..3 {
            assert_eq!(throttle.one_more(), None);
        }
        tokio::time::advance(INTERVAL).await;
        assert_eq!(throttle.one_more(), Some(4));
        assert_eq!(throttle.one_more(), None);
    }
}
