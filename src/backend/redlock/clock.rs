//! Estimates of the nodes' clocks, advanced between their replies by a monotonic clock.
//!
//! The estimate is a hint and a floor: numbers follow the fastest clock, so that nodes agree at
//! once. No lease depends on it.
//!
//! A number more than a day beyond the clocks of the majority does not count. Otherwise one node in the year 2300
//! would raise the tokens of every lock for good.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::clock::LATEST;

/// How far the hint is ahead of the fastest clock, because network latency varies.
const HINT_LEAD: Duration = Duration::from_millis(10);
/// The maximum time between a request and the node's reading of its clock. A single delayed reply
/// says little about the latency.
const MAX_ROUND_TRIP: Duration = Duration::from_millis(40);
/// How far past the fastest clock a number may be: a node follows a hint, and adds a little.
const FLOOR_LEAD: Duration = Duration::from_millis(150);

/// How far past the clocks of a majority a clock, or a number, may be and still count. A clock that
/// is further ahead is wrong, and its numbers would raise those of every lock permanently.
const MAX_LEAD: Duration = Duration::from_secs(24 * 3600);

/// Estimates of the nodes' clocks.
#[derive(Debug)]
pub struct Clocks {
    began: Instant,
    /// By node: its time in microseconds at `began`; 0 if unknown.
    at_begin: Box<[AtomicU64]>,
    /// The largest number that a node is known to have issued: its clock may have gone back since.
    largest: AtomicU64,
}

impl Clocks {
    /// No clock of these nodes is known yet.
    pub fn new(nodes: usize) -> Self {
        Self {
            began: Instant::now(),
            at_begin: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            largest: AtomicU64::new(0),
        }
    }

    /// Records the time of a node, in microseconds, from the reply to a request sent at `sent_at`.
    ///
    /// The estimate assumes that the node read its clock when the request was sent. It is therefore
    /// ahead of the node's clock by the latency of the request, which is how late the next request
    /// will arrive. So a number proposed to all nodes is no smaller than a distant node's time when
    /// it arrives there. A node that had to issue a larger number would not count in any renewal of
    /// that lease.
    pub fn record(&self, node: usize, sent_at: Instant, now: u64) {
        if let Some(at_begin) = self.at_begin.get(node) {
            let earliest = Instant::now().checked_sub(MAX_ROUND_TRIP);
            let sent_at = earliest.map_or(sent_at, |earliest| sent_at.max(earliest));
            let passed = micros(sent_at.saturating_duration_since(self.began));
            // Its numbers follow its clock no further.
            at_begin.store(now.min(LATEST).saturating_sub(passed), Ordering::Relaxed);
        }
    }

    /// The number that an attempt proposes; 0 while no clock is known.
    pub fn hint(&self) -> u64 {
        let bound = self.bound(&[]);
        let counting = self.known().filter(|now| *now <= bound).max();
        counting.map_or(0, |now| now + micros(HINT_LEAD))
    }

    /// The largest number that counts if these numbers were issued for one attempt. Only wrong
    /// clocks issue numbers that are further ahead than a majority of the clocks and of the
    /// numbers. A vote that does not count is treated as if it had not been received, so no
    /// guarantee depends on the bound.
    pub fn bound(&self, given: &[u64]) -> u64 {
        let reached_by_majority = |mut all: Vec<u64>| {
            all.sort_unstable_by(|a, b| b.cmp(a));
            all.get(self.at_begin.len() / 2).copied()
        };
        let reached = reached_by_majority(self.known().collect()).max(reached_by_majority(given.to_vec()));
        reached.map_or(u64::MAX, |reached| reached.saturating_add(micros(MAX_LEAD)))
    }

    /// Records that a node has issued this number.
    pub fn record_number(&self, number: u64) {
        self.largest.fetch_max(number, Ordering::Relaxed);
    }

    /// A number above all that are recorded.
    pub fn past_all(&self) -> u64 {
        self.largest.load(Ordering::Relaxed) + 1
    }

    /// A number above all issued numbers that count, as far as the clocks and the recorded numbers
    /// tell. A clock that is too far ahead is treated as if it were at the bound: its numbers may
    /// have counted until then.
    pub fn floor(&self) -> u64 {
        let fastest = self.known().max().map(|now| now.min(self.bound(&[])));
        let by_clocks = fastest.map_or(0, |now| now + micros(FLOOR_LEAD));
        by_clocks.max(self.past_all())
    }

    /// The current time of the known clocks.
    fn known(&self) -> impl Iterator<Item = u64> {
        let passed = self.passed();
        let known = self.at_begin.iter().map(|at| at.load(Ordering::Relaxed));
        known.filter(|at| *at > 0).map(move |at| at + passed)
    }

    fn passed(&self) -> u64 {
        micros(self.began.elapsed())
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_estimate_follows_the_fastest_clock_and_advances() {
        let clocks = Clocks::new(2);
        assert_eq!((clocks.hint(), clocks.floor()), (0, 1));
        clocks.record(0, Instant::now(), 1_000_000);
        clocks.record(1, Instant::now(), 1_040_000);
        assert_eq!(clocks.hint(), 1_050_000);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(clocks.hint(), 1_055_000);
        assert_eq!(clocks.floor(), 1_195_000);
        clocks.record_number(2_000_000);
        clocks.record_number(1_500_000);
        assert_eq!((clocks.hint(), clocks.floor()), (1_055_000, 2_000_001));
        assert_eq!(clocks.past_all(), 2_000_001);
    }

    #[tokio::test(start_paused = true)]
    async fn the_round_trip_is_added_up_to_its_limit() {
        let clocks = Clocks::new(1);
        let sent_at = Instant::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
        // The node read its clock 10 ms after the request: 10 ms later it is 20 ms past that, and
        // the next request needs 10 ms.
        clocks.record(0, sent_at, 1_010_000);
        assert_eq!(clocks.hint(), 1_040_000);
        tokio::time::sleep(Duration::from_secs(5)).await;
        clocks.record(0, sent_at, 6_010_000);
        assert_eq!(clocks.hint(), 6_060_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_far_ahead_of_the_majority_is_ignored() {
        let clocks = Clocks::new(3);
        let (now, day, far) = (1_000_000, 86_400_000_000, 10_000_000_000_000_000);
        clocks.record(0, Instant::now(), far);
        // No other clock is known: it may be right.
        assert_eq!(clocks.bound(&[]), u64::MAX);
        clocks.record(1, Instant::now(), now);
        clocks.record(2, Instant::now(), now);
        assert_eq!((clocks.bound(&[]), clocks.hint()), (now + day, now + 10_000));
        assert_eq!(clocks.floor(), now + day + 150_000);
        // Its number does not count either, but the numbers of a majority do.
        assert_eq!(clocks.bound(&[far, now, now]), now + day);
        assert_eq!(clocks.bound(&[far, far - 1, now]), far - 1 + day);
        // An hour is within the bound.
        clocks.record(0, Instant::now(), now + day / 24);
        assert_eq!(clocks.hint(), now + day / 24 + 10_000);
    }
}
