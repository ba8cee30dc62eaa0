//! What ends connections over time: those that take no answer, and the one with the most unsent bytes when the
//! whole server has too many.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::{Answers, Capacity, lock};
use crate::api::connection::LogThrottle;

/// How often it is looked who takes nothing.
const SECOND: Duration = Duration::from_secs(1);

impl Capacity {
    /// Keeps the bounds of unsent answers; never ready.
    pub(in crate::api) async fn watch(&self) {
        let stalled = LogThrottle::default();
        let mut seconds = interval(SECOND);
        // Whoever did not run for a while has not watched its clients either.
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = seconds.tick() => self.end_the_stalled(&stalled),
                () = self.too_many.notified() => self.end_the_largest(),
            }
        }
    }

    fn end_the_stalled(&self, told: &LogThrottle) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let ended = self.open().iter().filter(|answers| answers.end_if_stalled(now)).count();
        for _ in 0..ended {
            if let Some(figures) = &self.figures {
                figures.stalled.inc();
            }
            if let Some(ended) = told.one_more() {
                tracing::warn!(ended, "clients took no answer: ending their connections or streams");
            }
        }
        self.peers.prune();
        self.identities.prune();
    }

    fn end_the_largest(&self) {
        // What was ended meanwhile may have been enough.
        if self.unsent.load(Ordering::Relaxed) < self.unsent_limit {
            return;
        }
        let open = self.open();
        let largest = open.iter().max_by_key(|answers| answers.of_whole_connection());
        if let Some(largest) = largest {
            tracing::warn!(
                bytes = largest.of_whole_connection(),
                "too many unsent answers: ending the connection that has most of them"
            );
            largest.cut_connection();
        }
    }

    /// All that are open.
    fn open(&self) -> Vec<Arc<Answers>> {
        let mut answers = lock(&self.answers);
        answers.retain(|answers| answers.strong_count() > 0);
        answers.iter().filter_map(std::sync::Weak::upgrade).collect()
    }
}
