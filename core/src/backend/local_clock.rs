//! This server's clocks, a parameter of the stores that count leases by them, so that tests can run them on paused time.

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::clock;

/// The clocks that a store uses.
pub trait Clock: Debug + Send + Sync + 'static {
    /// A monotonic clock that also runs while the machine is suspended. It decides about leases.
    fn now(&self) -> Duration;
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

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep_until(&self, due: Duration) -> BoxFuture<'static, ()> {
        Box::pin(clock::sleep_until(due))
    }
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
