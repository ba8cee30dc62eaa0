//! What the run can be told, and how long it makes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;

/// The core against bare echoes.
#[derive(Debug, Parser)]
pub struct Options {
    /// Measure shortly and report the requirements without judging by them
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Measure this build of the server instead of the one built along
    #[arg(long, value_name = "PATH", default_value = env!("CARGO_BIN_EXE_fencepost"))]
    server: PathBuf,
    /// Measure these only: pairs, session, program, cluster, lone, drains, turns, growth (leases, waiters)
    only: Vec<Part>,
    /// How many rounds are made of each comparison
    #[arg(long)]
    rounds: Option<usize>,
    /// What cargo says to every bench, and to no test
    #[arg(long, hide = true)]
    bench: bool,
}

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Many callers, each with a lock of its own.
    Pairs,
    /// The same on one session, beside calls and beside an echo of sessions.
    Session,
    /// The same by `fencepost bench`.
    Program,
    /// The same with TLS, rules, metrics and traces.
    Cluster,
    /// One caller alone.
    Lone,
    /// A long queue on one lock.
    Drains,
    /// Callers who take turns on one lock.
    Turns,
    /// A million leases, and a hundred thousand waiters; only if it is named.
    Growth,
    /// The first half of it.
    Leases,
    /// The second half of it.
    Waiters,
}

/// How much is measured.
#[derive(Debug)]
pub struct Plan {
    /// How many rounds are made of each comparison.
    pub rounds: usize,
    /// How long one subject is loaded in one round.
    pub slice: Duration,
    /// How many lone calls of each kind are timed.
    pub samples: usize,
    /// How often a full queue is drained.
    pub drains: usize,
    /// How many leases are held in [`Part::Leases`].
    pub leases: usize,
    /// How many wait in [`Part::Waiters`].
    pub waiters: usize,
    /// For how many locks.
    pub locks: usize,
    /// Whether a missed requirement fails the run.
    pub strict: bool,
}

impl Options {
    /// The server's program.
    pub fn program(&self) -> &Path {
        &self.server
    }

    /// Whether a part is to be measured: those that were named, or else all but the long one.
    pub fn has(&self, part: Part) -> bool {
        let grows = matches!(part, Part::Leases | Part::Waiters);
        let named = |part| self.only.contains(&part);
        named(part) || (grows && named(Part::Growth)) || (self.only.is_empty() && !grows)
    }

    /// The full plan, or the short one for `--quick` and for a run as a test.
    pub fn plan(&self) -> Plan {
        let plan = if self.quick || !self.bench {
            Plan::quick()
        } else {
            Plan::full()
        };
        Plan {
            rounds: self.rounds.unwrap_or(plan.rounds).max(1),
            ..plan
        }
    }
}

impl Plan {
    fn full() -> Self {
        Self {
            rounds: 21,
            slice: Duration::from_millis(500),
            samples: 2000,
            drains: 10,
            leases: 1_000_000,
            waiters: 100_000,
            locks: 10_000,
            strict: true,
        }
    }

    fn quick() -> Self {
        Self {
            rounds: 3,
            slice: Duration::from_millis(100),
            samples: 100,
            drains: 1,
            leases: 10_000,
            waiters: 2_000,
            locks: 200,
            strict: false,
        }
    }
}
