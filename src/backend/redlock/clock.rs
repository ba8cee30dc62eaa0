//! What the nodes' clocks say, counted on between their answers by time that only runs on.
//!
//! The estimate is a hint and a floor: numbers follow the fastest clock, so that nodes agree at once.
//! No lease depends on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// How far the hint is ahead of the fastest clock: ways are not equally long each time.
const AHEAD: Duration = Duration::from_millis(10);
/// How long a node's way to its answer is believed to be at the most: one answer that was held up says little.
const FARTHEST: Duration = Duration::from_millis(40);
/// How far past the fastest clock a number may be: a node follows a hint so far, and then some.
const LEAD: Duration = Duration::from_millis(150);

/// How far past the clocks of a majority a clock, or a number, may be and still count. A clock that is further ahead
/// is wrong, and its numbers would lift those of every lock for good.
const FARTHEST_AHEAD: Duration = Duration::from_secs(24 * 3600);

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

    /// A node that was asked at `asked` has said what time it is, in microseconds.
    ///
    /// Its clock is taken to have said so at the asking, which puts it ahead by the way there: by as much as
    /// the next question will be late. So a number for all nodes is no smaller than the time at a far one when
    /// it gets there; a node that had to hand out a larger one would count for no renewal of that lease.
    pub fn heard(&self, node: usize, asked: Instant, now: u64) {
        if let Some(at_begin) = self.at_begin.get(node) {
            let farthest = Instant::now().checked_sub(FARTHEST);
            let asked = farthest.map_or(asked, |farthest| asked.max(farthest));
            let passed = micros(asked.saturating_duration_since(self.began));
            at_begin.store(now.saturating_sub(passed), Ordering::Relaxed);
        }
    }

    /// The number that an attempt proposes; 0 while nothing was heard.
    pub fn hint(&self) -> u64 {
        let bound = self.bound(&[]);
        let counting = self.known().filter(|now| *now <= bound).max();
        counting.map_or(0, |now| now + micros(AHEAD))
    }

    /// The largest number that counts when these numbers were given for one attempt: further ahead than a majority of
    /// the clocks, and than a majority of the numbers, are only numbers of clocks that are wrong. Whatever does
    /// not count is as if it had not been heard, so no promise depends on the bound.
    pub fn bound(&self, given: &[u64]) -> u64 {
        let of_majority = |mut all: Vec<u64>| {
            all.sort_unstable_by(|a, b| b.cmp(a));
            all.get(self.at_begin.len() / 2).copied()
        };
        let reached = of_majority(self.known().collect()).max(of_majority(given.to_vec()));
        reached.map_or(u64::MAX, |reached| reached.saturating_add(micros(FARTHEST_AHEAD)))
    }

    /// A node has handed this number out.
    pub fn handed_out(&self, number: u64) {
        self.largest.fetch_max(number, Ordering::Relaxed);
    }

    /// A number past all that were heard.
    pub fn past_all(&self) -> u64 {
        self.largest.load(Ordering::Relaxed) + 1
    }

    /// A number past all that count and that a node has handed out, as far as the clocks and what was heard go. A
    /// clock that is too far ahead is taken for one at the bound: its numbers may have counted until then.
    pub fn floor(&self) -> u64 {
        let fastest = self.known().max().map(|now| now.min(self.bound(&[])));
        let by_clocks = fastest.map_or(0, |now| now + micros(LEAD));
        by_clocks.max(self.past_all())
    }

    /// What the clocks say now that were heard.
    fn known(&self) -> impl Iterator<Item = u64> {
        let passed = self.passed();
        let known = self.at_begin.iter().map(|at| at.load(Ordering::Relaxed));
        known.filter(|at| *at > 0).map(move |at| at + passed)
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
        clocks.heard(0, Instant::now(), 1_000_000);
        clocks.heard(1, Instant::now(), 1_040_000);
        assert_eq!(clocks.hint(), 1_050_000);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(clocks.hint(), 1_055_000);
        assert_eq!(clocks.floor(), 1_195_000);
        clocks.handed_out(2_000_000);
        clocks.handed_out(1_500_000);
        assert_eq!((clocks.hint(), clocks.floor()), (1_055_000, 2_000_001));
        assert_eq!(clocks.past_all(), 2_000_001);
    }

    #[tokio::test(start_paused = true)]
    async fn a_far_node_is_taken_to_be_as_far_again_within_bounds() {
        let clocks = Clocks::new(1);
        let asked = Instant::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
        // Said 10 ms after the asking: 10 ms later it is 20 ms past, and the next question needs 10 ms.
        clocks.heard(0, asked, 1_010_000);
        assert_eq!(clocks.hint(), 1_040_000);
        tokio::time::sleep(Duration::from_secs(5)).await;
        clocks.heard(0, asked, 6_010_000);
        assert_eq!(clocks.hint(), 6_060_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_far_past_those_of_the_majority_leads_nobody() {
        let clocks = Clocks::new(3);
        let (now, day, far) = (1_000_000, 86_400_000_000, 10_000_000_000_000_000);
        clocks.heard(0, Instant::now(), far);
        // Nobody else was heard: it may be right.
        assert_eq!(clocks.bound(&[]), u64::MAX);
        clocks.heard(1, Instant::now(), now);
        clocks.heard(2, Instant::now(), now);
        assert_eq!((clocks.bound(&[]), clocks.hint()), (now + day, now + 10_000));
        assert_eq!(clocks.floor(), now + day + 150_000);
        // Nor does its number, but those of a majority do.
        assert_eq!(clocks.bound(&[far, now, now]), now + day);
        assert_eq!(clocks.bound(&[far, far - 1, now]), far - 1 + day);
        // An hour is nothing.
        clocks.heard(0, Instant::now(), now + day / 24);
        assert_eq!(clocks.hint(), now + day / 24 + 10_000);
    }
}
