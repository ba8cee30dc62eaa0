//! What was counted, and how long it took.

use std::time::Duration;

use fencepost::client::Error;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Three digits are kept of each time.
const DIGITS: u8 = 3;
/// The longest time that is told apart from longer ones, in nanoseconds: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// From an Acquire sent to its Lease received.
    Acquire,
    /// From a Release sent to its answer.
    Release,
    /// From a Release sent to the next Lease received.
    HandOff,
    /// From the end of a lease, `sent + waited + ttl`, to the next Lease received.
    Lateness,
}

/// All kinds, with their names in the order in which they are shown.
const KINDS: [(Kept, &str); 4] = [
    (Kept::HandOff, "hand_off"),
    (Kept::Lateness, "lateness"),
    (Kept::Acquire, "acquire"),
    (Kept::Release, "release"),
];

/// Counts and times of one pattern.
#[derive(Debug)]
pub struct Tally {
    /// How many pairs, hand-offs, expiries or calls are finished.
    pub finished: u64,
    times: Vec<Histogram<u64>>,
    failed: Option<Error>,
}

impl Tally {
    /// Nothing yet.
    ///
    /// # Errors
    /// Never: the bounds are sound.
    pub fn new() -> Result<Self, hdrhistogram::CreationError> {
        let times = KINDS.iter().map(|_| Histogram::new_with_bounds(1, LONGEST_NS, DIGITS));
        Ok(Self {
            finished: 0,
            times: times.collect::<Result<_, _>>()?,
            failed: None,
        })
    }

    /// Counts one that is finished, with the times that it took.
    pub fn add<const N: usize>(&mut self, times: [(Kept, Option<Duration>); N]) {
        self.finished += 1;
        for (kind, time) in times {
            let at = KINDS.iter().position(|(of, _)| *of == kind);
            if let (Some(time), Some(histogram)) = (time, at.and_then(|at| self.times.get_mut(at))) {
                histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            }
        }
    }

    /// Notes the first failure.
    pub fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// The failure that ended it.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// What was timed, each with its name.
    pub fn times(&self) -> impl Iterator<Item = (&'static str, Times)> + '_ {
        let all = KINDS.iter().zip(&self.times);
        all.filter(|(_, histogram)| !histogram.is_empty())
            .map(|((_, name), histogram)| (*name, Times::of(histogram)))
    }
}

/// The percentiles of one kind, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Times {
    pub count: u64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |share| histogram.value_at_quantile(share) as f64 / 1e6;
        Self {
            count: histogram.len(),
            mean_ms: histogram.mean() / 1e6,
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: histogram.max() as f64 / 1e6,
        }
    }
}
