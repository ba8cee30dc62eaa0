//! When something happened.
//!
//! KeepAlive also confirms a renewal that was sent before the beat, for the rest of its time. That time is measured
//! by the clock of the timers and by the time since boot, and the longer one counts: timers stand still while the
//! machine is suspended, and the lease does not.

use std::time::Duration;

use tokio::time::Instant;

/// A moment on two clocks: that of the timers, which stands still while the machine is suspended, and the time since boot,
/// which does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// By the clock of the timers.
    pub timer: Instant,
    /// The time since boot.
    pub since_boot: Duration,
}

impl Moment {
    /// The time since an earlier moment, by the clock that shows more of it; zero since a later one.
    pub(super) fn since(self, earlier: Self) -> Duration {
        let timer = self.timer.saturating_duration_since(earlier.timer);
        timer.max(self.since_boot.saturating_sub(earlier.since_boot))
    }
}
