//! The figures, what is required of them, and how they are printed.

use serde::Serialize;

use crate::Failure;
use crate::stats::median;

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    rows: Vec<Row>,
}

/// One figure.
#[derive(Debug, Serialize)]
pub struct Row {
    what: &'static str,
    /// The median.
    value: f64,
    unit: &'static str,
    /// In the same unit.
    p99: Option<f64>,
    server_cpu_us: Option<f64>,
    compared: Option<Compared>,
}

/// A figure that is required to stay within a bound: the median of its rounds.
#[derive(Debug, Serialize)]
pub struct Compared {
    with: &'static str,
    value: f64,
    lowest: f64,
    highest: f64,
    required: Bound,
    passes: bool,
}

/// What a figure is held to.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Not less than this.
    AtLeast(f64),
    /// Not more than this.
    AtMost(f64),
}

impl Bound {
    /// No figure passes that is not a number.
    fn admits(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }
}

impl Compared {
    /// The median of `rounds`, held to a bound.
    pub fn new(with: &'static str, rounds: Vec<f64>, required: Bound) -> Self {
        let lowest = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let value = median(rounds);
        Self {
            with,
            value,
            lowest,
            highest,
            required,
            passes: required.admits(value),
        }
    }

    fn text(&self) -> String {
        let Self {
            with,
            value,
            lowest,
            highest,
            ..
        } = self;
        if lowest == highest {
            return format!("{value:.2} {with}");
        }
        format!("{value:.2} {with} ({lowest:.2} to {highest:.2})")
    }

    fn verdict(&self) -> &'static str {
        if self.passes { "PASS" } else { "FAIL" }
    }
}

impl Row {
    /// A figure without further words.
    pub fn new(what: &'static str, value: f64, unit: &'static str) -> Self {
        Self {
            what,
            value,
            unit,
            p99: None,
            server_cpu_us: None,
            compared: None,
        }
    }

    /// With the 99th percentile.
    pub fn p99(self, p99: f64) -> Self {
        Self { p99: Some(p99), ..self }
    }

    /// With the server's CPU time for each operation, in microseconds.
    pub fn cpu(self, us: f64) -> Self {
        Self {
            server_cpu_us: Some(us),
            ..self
        }
    }

    /// With what it is held to.
    pub fn compared(self, compared: Compared) -> Self {
        Self {
            compared: Some(compared),
            ..self
        }
    }

    fn cells(&self) -> [String; 7] {
        let (digits, compared) = (if self.value < 100.0 { 3 } else { 0 }, self.compared.as_ref());
        [
            self.what.into(),
            format!("{:.digits$} {}", self.value, self.unit),
            self.p99.map(|p99| format!("{p99:.3}")).unwrap_or_default(),
            self.server_cpu_us.map(|us| format!("{us:.1} us")).unwrap_or_default(),
            compared.map(Compared::text).unwrap_or_default(),
            compared.map(|compared| compared.required.text()).unwrap_or_default(),
            compared.map(|compared| compared.verdict().into()).unwrap_or_default(),
        ]
    }
}

impl Report {
    /// Adds a figure.
    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Whether every requirement is met.
    pub fn passes(&self) -> bool {
        self.rows
            .iter()
            .filter_map(|row| row.compared.as_ref())
            .all(|compared| compared.passes)
    }

    /// Prints a table, or JSON.
    pub fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
        } else {
            print!("{}", self.table());
        }
        Ok(())
    }

    fn table(&self) -> String {
        let head = ["what", "median", "p99", "server CPU", "compared", "required", ""].map(String::from);
        let lines: Vec<_> = std::iter::once(head).chain(self.rows.iter().map(Row::cells)).collect();
        let width = |column: usize| {
            lines
                .iter()
                .map(|cells| cells[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: [usize; 7] = std::array::from_fn(width);
        let line = |cells: &[String; 7]| {
            let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
        };
        lines.iter().map(line).collect()
    }
}
