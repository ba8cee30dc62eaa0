//! Ends connections and streams that make no progress, and the connection with the most unsent bytes when the server
//! exceeds its limit.
//!
//! After 15 s without progress the stream is reset, then the connection closed. A connection or session with less
//! than 4 KiB unsent is served even if others have used up a limit, so clients that do not read cannot end those that
//! do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::{Capacity, UnsentAnswers};
use crate::api::log_throttle::LogThrottle;

/// The interval of the check for stalled connections.
const SECOND: Duration = Duration::from_secs(1);

impl UnsentAnswers {
    /// Whether it was ended because its client does not read.
    pub(in crate::api) fn is_cut(&self) -> bool {
        let whole = self.connection.as_ref();
        self.cut.is_cancelled() || whole.is_some_and(|whole| whole.cut.is_cancelled())
    }
}

impl Capacity {
    /// Enforces the limits of unsent answers. Never returns.
    pub(in crate::api) async fn watch(&self) {
        let throttle = LogThrottle::default();
        let mut seconds = interval(SECOND);
        // After a pause of the process, clients must not count as stalled for that time.
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = seconds.tick() => self.end_stalled(&throttle),
                () = self.too_many.notified() => self.end_largest(),
            }
        }
    }

    fn end_stalled(&self, throttle: &LogThrottle) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let ended = self.open().iter().filter(|answers| answers.end_if_stalled(now)).count();
        for _ in 0..ended {
            if let Some(metrics) = &self.metrics {
                metrics.stalled.inc();
            }
            if let Some(ended) = throttle.one_more() {
                tracing::warn!(
                    ended,
                    "clients do not read their answers: ending their streams or connections"
                );
            }
        }
        self.peers.prune();
        self.identities.prune();
    }

    fn end_largest(&self) {
        // Other connections may have ended in the meantime.
        if self.unsent.load(Ordering::Relaxed) < self.unsent_limit {
            return;
        }
        let open = self.open();
        let largest = open.iter().max_by_key(|answers| answers.of_whole_connection());
        if let Some(largest) = largest {
            tracing::warn!(
                bytes = largest.of_whole_connection(),
                "too many unsent answers and incomplete requests: closing the connection with the most bytes"
            );
            largest.cut_connection();
        }
    }

    /// The answers of all open connections and streams.
    fn open(&self) -> Vec<Arc<UnsentAnswers>> {
        let mut answers = self.answers.lock();
        answers.retain(|answers| answers.strong_count() > 0);
        answers.iter().filter_map(std::sync::Weak::upgrade).collect()
    }
}
