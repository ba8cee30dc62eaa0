//! Acquire and Release on each store, beside bare commands of the same work and beside the locks of other libraries:
//! through gRPC at the real server, with request ids and without, and in process. In one run and in turns, round by
//! round: what is said is the median of the rounds with the lowest and the highest, and of the ratios within each.
//!
//! `cargo bench --bench stores -- STORE… [own] [hot] [lost] [uses] [--peer] [--rounds N] [--quick]` fails when a figure misses its
//! requirement; with `--quick` it only shows them. `--peer` measures beside Redisson and Curator too, which Maven
//! fetches; etcd's own lock is always there.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use self::report::Report;
use self::side::{Bench, Turn};

#[path = "../core/client.rs"]
#[allow(dead_code, reason = "the bench of the core uses the rest")]
mod client;
mod databases;
mod etcd;
mod lost;
mod own;
mod peer;
mod process;
mod redis_servers;
mod redlock;
mod report;
mod side;
#[path = "../core/stats.rs"]
#[allow(dead_code, reason = "the bench of the core uses the rest")]
mod stats;
mod zookeeper;

/// Why a bench ended.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Callers, and whether all want one lock.
const LOADS: [(usize, bool); 5] = [(1, false), (64, false), (256, false), (16, true), (64, true)];
const STORES: [&str; 6] = ["redis", "redlock", "etcd", "zookeeper", "postgres", "mysql"];
/// How many uses of a few locks show whether a store grows.
const USES: usize = 1_000_000;

/// What is to be measured.
struct Plan {
    stores: Vec<&'static str>,
    /// Locks of their own, and one hot lock.
    loads: Vec<(usize, bool)>,
    /// How soon the loss of a lease is told.
    lost: bool,
    /// What a store that keeps old rows costs after many uses.
    uses: bool,
    peer: bool,
    quick: bool,
    rounds: usize,
}

impl Plan {
    fn read() -> Result<Self, String> {
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        let (mut stores, mut own, mut hot, mut lost) = (vec![], false, false, false);
        let (mut uses, mut peer, mut quick, mut rounds) = (false, false, false, 5);
        while let Some(word) = words.next() {
            match word.as_str() {
                "own" => own = true,
                "hot" => hot = true,
                "lost" => lost = true,
                "uses" => uses = true,
                "--peer" => peer = true,
                "--quick" => quick = true,
                "--rounds" => {
                    let number = words.next().and_then(|number| number.parse().ok());
                    rounds = number.filter(|rounds| *rounds > 0).ok_or("--rounds: a number from 1")?;
                }
                other => {
                    let store = STORES.iter().find(|store| **store == other);
                    stores.push(*store.ok_or(format!(
                        "{other:?} is none of {STORES:?}, own, hot, lost, uses, --peer, --quick"
                    ))?);
                }
            }
        }
        if !own && !hot && !lost && !uses {
            (own, hot, lost, uses) = (true, true, true, true);
        }
        let loads = LOADS.into_iter().filter(|(_, is_hot)| if *is_hot { hot } else { own });
        Ok(Self {
            stores: if stores.is_empty() { STORES.to_vec() } else { stores },
            loads: loads.collect(),
            lost,
            uses,
            peer,
            quick,
            rounds: if quick { 1 } else { rounds },
        })
    }

    fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 500 } else { 2_000 })
    }
}

fn main() -> ExitCode {
    let plan = match Plan::read() {
        Ok(plan) => plan,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match runtime.block_on(run(&plan)) {
        Ok(report) if plan.quick || report.is_good() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(plan: &Plan) -> Result<Report, Failure> {
    let program = Path::new(env!("CARGO_BIN_EXE_fencepost"));
    let mut report = Report::default();
    for store in &plan.stores {
        let bench = match *store {
            "redis" => Some(redis_servers::bench(program, plan.peer).await?),
            "redlock" => Some(redlock::bench(program).await?),
            "etcd" => etcd::bench(program).await?,
            "postgres" => databases::of_postgres(program).await?,
            "mysql" => databases::of_mysql(program).await?,
            _ => zookeeper::bench(program, plan.peer).await?,
        };
        match bench {
            Some(bench) => {
                measure(plan, &bench, &mut report).await?;
                if plan.uses && ["postgres", "mysql"].contains(store) {
                    databases::uses(&bench, if plan.quick { USES / 100 } else { USES }, &mut report).await?;
                }
                if plan.lost && *store != "redlock" {
                    let (times, tells) = (
                        if plan.quick { 20 } else { 300 },
                        !["zookeeper", "mysql"].contains(store),
                    );
                    lost::measure(program, &bench, (times, tells), &mut report).await?;
                }
            }
            None => println!("{store}: there is no server of it here, so nothing is measured"),
        }
    }
    Ok(report)
}

async fn measure(plan: &Plan, bench: &Bench, report: &mut Report) -> Result<(), Failure> {
    println!("\n{}", bench.what);
    for &(callers, hot) in &plan.loads {
        let mut rows: Vec<_> = bench
            .sides
            .iter()
            .filter(|side| side.takes(hot))
            .map(side::Row::of)
            .collect();
        for round in 0..plan.rounds {
            for row in &mut rows {
                let turn = Turn {
                    round,
                    callers,
                    hot,
                    time: plan.time(),
                };
                row.measure(bench, turn).await?;
            }
        }
        report.add(bench, (callers, hot), &rows);
    }
    Ok(())
}
