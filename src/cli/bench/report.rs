//! The results, as text and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::pattern::{Pattern, Plan};
use super::tally::{Latencies, Tally};
use crate::cli::table::Table;

/// The results of all patterns.
#[derive(Debug, Serialize)]
pub struct Report {
    pub address: String,
    pub namespace: String,
    pub connections: usize,
    /// Whether the calls were commands of one session on each connection.
    pub session: bool,
    /// Whether a signal ended it early.
    pub interrupted: bool,
    pub figures: Vec<PatternResult>,
}

/// The results of one pattern.
#[derive(Debug, Serialize)]
pub struct PatternResult {
    pub pattern: &'static str,
    pub callers: usize,
    pub keys: usize,
    pub seconds: f64,
    pub finished: u64,
    pub rate: f64,
    pub unit: &'static str,
    pub times: BTreeMap<&'static str, Latencies>,
}

impl PatternResult {
    /// The results of a pattern that was measured for this long.
    pub fn of(plan: &Plan, pattern: Pattern, took: Duration, tally: &Tally) -> Self {
        let seconds = took.as_secs_f64();
        Self {
            pattern: pattern.name(),
            callers: plan.callers(),
            keys: plan.keys(pattern),
            seconds,
            finished: tally.finished,
            rate: tally.finished as f64 / seconds,
            unit: pattern.unit(),
            times: tally.times().collect(),
        }
    }

    fn text(&self) -> String {
        let Self {
            pattern,
            callers,
            keys,
            seconds,
            rate,
            unit,
            ..
        } = self;
        let locks = if *keys == 1 { "lock" } else { "locks" };
        let text = format!("{pattern}: {rate:.0} {unit}\n{callers} callers, {keys} {locks}, {seconds:.1} s\n");
        let rows = self.times.iter().map(|(name, times)| {
            let ms = |ms: f64| format!("{ms:.3}");
            [
                name.replace('_', "-"),
                times.count.to_string(),
                ms(times.p50_ms),
                ms(times.p90_ms),
                ms(times.p99_ms),
                ms(times.p999_ms),
                ms(times.max_ms),
            ]
        });
        text + &Table::new(["MS", "COUNT", "P50", "P90", "P99", "P99.9", "MAX"]).rows(rows)
    }
}

impl Report {
    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.figures.iter().all(|figures| figures.finished == 0)
    }

    /// The results as text.
    pub fn text(&self) -> String {
        let ended = if self.interrupted { ", interrupted" } else { "" };
        let what = if self.session { "session" } else { "connection" };
        let many = if self.connections == 1 { "" } else { "s" };
        let head = format!(
            "{}, namespace {}, {} {what}{many}{ended}\n",
            self.address, self.namespace, self.connections,
        );
        let figures = self.figures.iter().map(|figures| format!("\n{}", figures.text()));
        head + &figures.collect::<String>()
    }
}
