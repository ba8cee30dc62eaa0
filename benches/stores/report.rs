//! Shows the figures, and holds them to what is required.

use crate::side::{Bench, Figure, Row};
use crate::stats;

/// What was reached.
#[derive(Debug, Default)]
pub struct Report {
    missed: usize,
}

impl Report {
    /// Whether nothing was missed.
    pub fn is_good(&self) -> bool {
        self.missed == 0
    }

    /// Shows how soon losses were told, in milliseconds, and judges the 99th percentile.
    pub fn add_lost(&mut self, what: &str, told: Vec<f64>, most: f64) {
        let (middle, p99) = (stats::median(told.clone()), stats::quantile(told, 0.99));
        let is_reached = p99 <= most;
        self.missed += usize::from(!is_reached);
        let word = if is_reached { "reached" } else { "MISSED" };
        println!("  from ForceRelease {what} to lost: {middle:.2} ms, p99 {p99:.2}; at most {most}: {word}");
    }

    /// Shows how many times what it cost first something costs after so many uses, and judges it.
    pub fn add_growth(&mut self, what: &str, times: f64, most: f64) {
        let is_reached = times <= most;
        self.missed += usize::from(!is_reached);
        let word = if is_reached { "reached" } else { "MISSED" };
        println!("  after {what}: {times:.2} times the store's CPU of the first tenth; at most {most}: {word}");
    }

    /// Shows the rows of one load, and judges them.
    pub fn add(&mut self, bench: &Bench, (callers, hot): (usize, bool), rows: &[Row<'_>]) {
        let what = if hot { "one hot lock" } else { "a lock each" };
        println!("  {callers} callers, {what}");
        for row in rows {
            let [own, server, store] = [0, 1, 2].map(|at| stats::median(row.cpu[at].clone()));
            let counted = bench.count.as_ref().map_or(String::new(), |(what, _)| {
                format!("; {:.2} {what}", stats::median(row.counts.clone()))
            });
            println!(
                "    {}: {}/s; CPU for each {own:.0} us here, {server:.0} us the server, {store:.0} us the store{counted}",
                row.side.name,
                stats::spread(&row.rates, 0),
            );
        }
        let of = |name: &str| rows.iter().find(|row| row.side.name == name);
        let bounds = bench
            .bounds
            .iter()
            .filter(|bound| (bound.callers, bound.hot) == (callers, hot));
        for bound in bounds {
            let Some(row) = of(bound.side) else { continue };
            let ratios = |these: &[f64], those: &[f64]| stats::ratios(these.iter().copied(), those.iter().copied());
            let (figures, required, (limit, is_most)) = match bound.figure {
                Figure::Rate(least) => (row.rates.clone(), format!("at least {least} a second"), (least, false)),
                Figure::Beside(other, least) => {
                    let Some(other) = of(other) else { continue };
                    let required = format!("at least {least} times {}", other.side.name);
                    (ratios(&row.rates, &other.rates), required, (least, false))
                }
                Figure::StoreCpu(other, most) => {
                    let Some(other) = of(other) else { continue };
                    let required = format!("at most {most} of the store's CPU for {}", other.side.name);
                    (ratios(&row.cpu[2], &other.cpu[2]), required, (most, true))
                }
                Figure::Counted(most) => {
                    let what = bench.count.as_ref().map_or("", |(what, _)| what);
                    (row.counts.clone(), format!("at most {most} {what}"), (most, true))
                }
            };
            let figure = stats::median(figures.clone());
            let is_reached = if is_most { figure <= limit } else { figure >= limit };
            self.missed += usize::from(!is_reached);
            let word = if is_reached { "reached" } else { "MISSED" };
            println!("    {}: {}, {required}: {word}", bound.side, stats::spread(&figures, 2));
        }
    }
}
