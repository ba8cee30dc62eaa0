//! The machine's clock since boot: it runs on through a suspend, and no wall clock moves it.
//!
//! Stores count leases by it, and so does a client, which must not count on more than it was given.

use std::time::Duration;

/// tokio's timers stand still while the machine is suspended, so a long sleep is cut in slices of
/// this length.
const SLICE: Duration = Duration::from_millis(500);

/// How long the machine runs, suspends included.
#[cfg(unix)]
pub fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    // The monotonic clock of macOS counts suspends; that of Linux does not.
    #[cfg(target_vendor = "apple")]
    const CLOCK: ClockId = ClockId::Monotonic;
    #[cfg(not(target_vendor = "apple"))]
    const CLOCK: ClockId = ClockId::Boottime;
    let now = clock_gettime(CLOCK);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// How long the machine runs since the first call, suspends included: the performance counter of Windows counts them.
#[cfg(windows)]
pub fn since_boot() -> Duration {
    static FIRST: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    FIRST.elapsed()
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
