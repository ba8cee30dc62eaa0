//! This server's clocks, a parameter of the stores that count leases by them, so that tests can run them on paused time.

use std::fmt::Debug;
use std::io;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::clock;

/// No boot has this id.
pub const NO_BOOT: u64 = 0;

/// The clocks that a store uses.
pub trait Clock: Debug + Send + Sync + 'static {
    /// A monotonic clock that also runs while the machine is suspended. It decides about leases.
    fn now(&self) -> Duration;
    /// Identifies the start of `now`: two stores with the same one count on the same clock. Absent where that is not known.
    fn boot(&self) -> Option<u64> {
        None
    }
    /// The wall clock. It scales tokens and gives the times that are displayed; it decides nothing.
    fn wall(&self) -> SystemTime;
    /// Returns once `now` is at least `due`.
    fn sleep_until(&self, due: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's clock since boot, including suspend.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        clock::since_boot()
    }

    fn boot(&self) -> Option<u64> {
        boot_id()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep_until(&self, due: Duration) -> BoxFuture<'static, ()> {
        Box::pin(clock::sleep_until(due))
    }
}

/// The id of the machine's boot, as Linux draws it. Absent in a time namespace, whose clock since boot is shifted.
fn boot_id() -> Option<u64> {
    let shifts = match std::fs::read_to_string("/proc/self/timens_offsets") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        shifts => shifts.ok()?,
    };
    if shifts
        .lines()
        .any(|line| line.split_whitespace().skip(1).any(|shift| shift != "0"))
    {
        return None;
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok().filter(|id| *id != NO_BOOT)
}

/// tokio's clock, which tests can pause.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    start: Instant,
    wall: SystemTime,
}

impl Default for TokioClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall(&self) -> SystemTime {
        self.wall + self.now()
    }

    fn sleep_until(&self, due: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.start + due))
    }
}
