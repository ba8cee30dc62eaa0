//! What the nodes' clocks say, counted on between their answers by time that only runs on.
//!
//! The estimate is a hint and a floor: numbers follow the fastest clock, so that nodes agree at once.
//! No lease depends on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// How far the hint is ahead of what was heard: an answer is older than its arrival.
const AHEAD: Duration = Duration::from_millis(3);
/// How far past the fastest clock a number may be: a node follows a hint so far.
const LEAD: Duration = Duration::from_millis(100);

/// The clocks of the nodes.
#[derive(Debug)]
pub struct Clocks {
    began: Instant,
    /// By node: its time in microseconds when this began; 0 for unknown.
    at_begin: Box<[AtomicU64]>,
    /// The largest number that a node was heard to hand out: its clock may have gone back since.
    largest: AtomicU64,
}

impl Clocks {
    /// Nothing is known of these many yet.
    pub fn new(nodes: usize) -> Self {
        Self {
            began: Instant::now(),
            at_begin: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            largest: AtomicU64::new(0),
        }
    }

    /// A node has said what time it is, in microseconds.
    pub fn heard(&self, node: usize, now: u64) {
        if let Some(at_begin) = self.at_begin.get(node) {
            at_begin.store(now.saturating_sub(self.passed()), Ordering::Relaxed);
        }
    }

    /// The number that an attempt proposes; 0 while nothing was heard.
    pub fn hint(&self) -> u64 {
        self.fastest().map_or(0, |now| now + micros(AHEAD))
    }

    /// A node has handed this number out.
    pub fn handed_out(&self, number: u64) {
        self.largest.fetch_max(number, Ordering::Relaxed);
    }

    /// A number that no node has handed out yet, as far as the clocks and what was heard go.
    pub fn floor(&self) -> u64 {
        let by_clocks = self.fastest().map_or(0, |now| now + micros(LEAD));
        by_clocks.max(self.largest.load(Ordering::Relaxed) + 1)
    }

    fn fastest(&self) -> Option<u64> {
        let known = self.at_begin.iter().map(|at| at.load(Ordering::Relaxed));
        let fastest = known.filter(|at| *at > 0).max()?;
        Some(fastest + self.passed())
    }

    fn passed(&self) -> u64 {
        micros(self.began.elapsed())
    }
}

/// When a waiter came, for people who look.
pub fn date() -> SystemTime {
    SystemTime::now()
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_fastest_clock_leads_and_runs_on() {
        let clocks = Clocks::new(2);
        assert_eq!((clocks.hint(), clocks.floor()), (0, 1));
        clocks.heard(0, 1_000_000);
        clocks.heard(1, 1_040_000);
        assert_eq!(clocks.hint(), 1_043_000);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(clocks.hint(), 1_048_000);
        assert_eq!(clocks.floor(), 1_145_000);
        clocks.handed_out(2_000_000);
        clocks.handed_out(1_500_000);
        assert_eq!((clocks.hint(), clocks.floor()), (1_048_000, 2_000_001));
    }
}
