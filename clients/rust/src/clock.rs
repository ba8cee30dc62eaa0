//! The machine's clock since boot: it runs on through a suspend, and no wall clock moves it.
//!
//! Stores count leases by it, and so does a client, which must not count on more than it was given.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// tokio's timers stand still while the machine is suspended, so a long sleep is cut in slices of
/// this length.
const SLICE: Duration = Duration::from_millis(500);

/// How long the machine runs, suspends included.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// Returns once [`since_boot`] is at least `due`.
///
/// # Cancellation safety
/// Dropped, it has done nothing.
pub async fn sleep_until(due: Duration) {
    while let Some(left) = due.checked_sub(since_boot()).filter(|left| !left.is_zero()) {
        tokio::time::sleep(left.min(SLICE)).await;
    }
}
