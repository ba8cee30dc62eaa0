//! Counts and latencies.

use std::time::Duration;

use fencepost_client::Error;
use hdrhistogram::Histogram;
use serde::Serialize;

/// The precision of latencies, in significant digits.
const DIGITS: u8 = 3;
/// The largest latency that is recorded exactly, in nanoseconds: one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// A measured latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// From sending an Acquire to receiving its lease.
    Acquire,
    /// From sending a Release to receiving its response.
    Release,
    /// From sending a Release to receiving the next lease.
    HandOff,
    /// From the end of a lease, `sent + waited + ttl`, to receiving the next lease.
    Lateness,
}

/// All metrics with their names, in the order of the output.
const METRICS: [(Metric, &str); 4] = [
    (Metric::HandOff, "hand_off"),
    (Metric::Lateness, "lateness"),
    (Metric::Acquire, "acquire"),
    (Metric::Release, "release"),
];

/// The counts and latencies of one pattern.
#[derive(Debug)]
pub struct Tally {
    /// The number of finished pairs, hand-offs, expiries or calls.
    pub finished: u64,
    times: Vec<Histogram<u64>>,
    first_error: Option<Error>,
}

impl Tally {
    /// An empty tally.
    ///
    /// # Errors
    /// Never: the bounds are valid.
    pub fn new() -> Result<Self, hdrhistogram::CreationError> {
        let times = METRICS
            .iter()
            .map(|_| Histogram::new_with_bounds(1, LONGEST_NS, DIGITS));
        Ok(Self {
            finished: 0,
            times: times.collect::<Result<_, _>>()?,
            first_error: None,
        })
    }

    /// Counts a finished unit with its latencies.
    pub fn add<const N: usize>(&mut self, times: [(Metric, Option<Duration>); N]) {
        self.finished += 1;
        for (metric, time) in times {
            let at = METRICS.iter().position(|(known, _)| *known == metric);
            if let (Some(time), Some(histogram)) = (time, at.and_then(|at| self.times.get_mut(at))) {
                histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            }
        }
    }

    /// Records the first error.
    pub fn set_error(&mut self, error: Error) {
        self.first_error.get_or_insert(error);
    }

    /// The error that ended the measurement.
    pub fn error(&self) -> Option<&Error> {
        self.first_error.as_ref()
    }

    /// The recorded latencies with their names.
    pub fn times(&self) -> impl Iterator<Item = (&'static str, Latencies)> + '_ {
        let all = METRICS.iter().zip(&self.times);
        all.filter(|(_, histogram)| !histogram.is_empty())
            .map(|((_, name), histogram)| (*name, Latencies::of(histogram)))
    }
}

/// The percentiles of one metric, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Latencies {
    pub count: u64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

impl Latencies {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
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
