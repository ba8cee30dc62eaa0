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
    /// The server's CPU time per unit; only if it runs on this machine.
    pub server_cpu_us: Option<f64>,
    pub times: BTreeMap<&'static str, Latencies>,
    /// The bare echo of the same run.
    pub limit: Option<Limit>,
}

/// The bare echo, and the ratio of the server's rate to its rate.
#[derive(Debug, Serialize)]
pub struct Limit {
    pub rate: f64,
    pub unit: &'static str,
    pub cpu_us: Option<f64>,
    /// The median, smallest and largest ratio of the rounds.
    pub ratio: f64,
    pub lowest: f64,
    pub highest: f64,
}

/// One time slice on one server.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    pub finished: u64,
    pub duration: Duration,
    pub cpu: Option<Duration>,
}

impl Slice {
    fn rate(&self) -> f64 {
        self.finished as f64 / self.duration.as_secs_f64()
    }
}

/// The totals of all slices.
struct Sum {
    finished: u64,
    seconds: f64,
    cpu_us: Option<f64>,
}

impl Sum {
    fn of(slices: &[Slice]) -> Self {
        let finished: u64 = slices.iter().map(|slice| slice.finished).sum();
        let cpu: Option<Duration> = slices.iter().map(|slice| slice.cpu).sum();
        Self {
            finished,
            seconds: slices.iter().map(|slice| slice.duration.as_secs_f64()).sum(),
            cpu_us: cpu
                .filter(|_| finished > 0)
                .map(|cpu| cpu.as_secs_f64() * 1e6 / finished as f64),
        }
    }

    fn rate(&self) -> f64 {
        self.finished as f64 / self.seconds
    }
}

impl PatternResult {
    /// The results of a pattern, from the slices of the server and of the echo.
    pub fn of(plan: &Plan, pattern: Pattern, slices: &[Slice], echoes: &[Slice], tally: &Tally) -> Self {
        let sum = Sum::of(slices);
        Self {
            pattern: pattern.name(),
            callers: plan.callers(pattern),
            keys: plan.keys(pattern),
            seconds: sum.seconds,
            finished: sum.finished,
            rate: sum.rate(),
            unit: pattern.unit(),
            server_cpu_us: sum.cpu_us,
            times: tally.times().collect(),
            limit: pattern.limit().and_then(|limit| Limit::of(limit, slices, echoes)),
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
        let cpu = self
            .server_cpu_us
            .map(|us| format!(", {us:.1} us of the server's CPU each"));
        let mut text = format!(
            "{pattern}: {rate:.0} {unit}{}\n{callers} callers, {keys} {}, {seconds:.1} s\n",
            cpu.unwrap_or_default(),
            if *keys == 1 { "lock" } else { "locks" },
        );
        if let Some(limit) = &self.limit {
            text += &limit.text();
        }
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

impl Limit {
    fn of(pattern: Pattern, slices: &[Slice], echoes: &[Slice]) -> Option<Self> {
        let mut ratios: Vec<f64> = slices
            .iter()
            .zip(echoes)
            .map(|(slice, echo)| slice.rate() / echo.rate())
            .collect();
        ratios.retain(|ratio| ratio.is_finite());
        ratios.sort_by(f64::total_cmp);
        let sum = Sum::of(echoes);
        Some(Self {
            rate: sum.rate(),
            unit: pattern.unit(),
            cpu_us: sum.cpu_us,
            ratio: *ratios.get(ratios.len() / 2)?,
            lowest: *ratios.first()?,
            highest: *ratios.last()?,
        })
    }

    fn text(&self) -> String {
        let Self {
            rate,
            unit,
            ratio,
            lowest,
            highest,
            ..
        } = self;
        let cpu = self.cpu_us.map(|us| format!(" at {us:.1} us"));
        format!(
            "{ratio:.2} of the bare echo ({lowest:.2} to {highest:.2}), which makes {rate:.0} {unit}{}\n",
            cpu.unwrap_or_default()
        )
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
