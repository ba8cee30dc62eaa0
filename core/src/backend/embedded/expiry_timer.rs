//! When the next batch of a store is due without a step.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::local_clock::Clock;

/// Wakes at the time of the next due batch; is notified only when that time moves forward.
#[derive(Debug, Default)]
pub struct ExpiryTimer {
    due: Mutex<Option<Duration>>,
    pub changed: Notify,
}

impl ExpiryTimer {
    pub fn set(&self, due: Option<Duration>) {
        let Some(due) = due else { return };
        let mut set = self.due.lock();
        if set.is_none_or(|set| due < set) {
            *set = Some(due);
            self.changed.notify_one();
        }
    }

    /// Returns when a batch is due.
    pub async fn wait(&self, clock: &dyn Clock) {
        loop {
            let due = *self.due.lock();
            let sleep = async {
                match due {
                    Some(due) => clock.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep => {
                    *self.due.lock() = None;
                    return;
                }
            }
        }
    }
}
