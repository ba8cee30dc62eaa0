//! What the core costs beyond its transport: the real server against bare echoes, in one run.
//!
//! `cargo bench --bench core [-- --quick] [--json] [--server PATH] [PART]...`. The server and an echo server
//! (the same messages over the same transport) run as processes of their own. Rounds of
//! one and of the other alternate, and what is judged are the medians of their ratios, for the
//! machine may be busy with other things. A figure that misses its requirement fails the run;
//! `--quick` measures shortly and fails for nothing but an error.

#![forbid(unsafe_code)]

mod client;
mod cluster;
mod cpu;
mod echo_server;
mod growth;
mod handoff;
mod lone;
mod options;
mod pairs;
mod process;
mod program;
mod report;
mod session;
#[allow(dead_code, reason = "the other benches use the rest")]
mod stats;

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Runtime;

use client::Locks;
use options::{Options, Part, Plan};
use process::Process;
use report::Report;

/// Whatever ends a measurement early.
type Failure = Box<dyn Error + Send + Sync>;

/// With that of the program, an echo differs from it by the locks alone.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: fencepost_allocator::Allocator = fencepost_allocator::Allocator;

/// The environment variable that makes this program an echo, with the lease id of its answers.
const ECHO: &str = "FENCEPOST_BENCH_ECHO";
/// What stands before the address in the line that says that it answers.
const ECHOES: &str = "echoes on ";
/// The namespace without a file.
const MEMORY: &str = "memory";
/// The namespace in a file.
const DURABLE: &str = "durable";

/// One server under measurement and a connection to it.
struct Subject {
    process: Process,
    locks: Locks,
    /// Which of its namespaces is measured.
    namespace: &'static str,
}

impl Subject {
    async fn connect(process: Process, namespace: &'static str) -> Result<Self, Failure> {
        let locks = client::connect(process.address()).await?;
        Ok(Self {
            process,
            locks,
            namespace,
        })
    }
}

/// What is compared. Each has a process of its own, so that its CPU time is its own too.
struct Subjects {
    echo: Subject,
    memory: Subject,
    durable: Subject,
}

impl Subjects {
    /// Starts all three; what they store goes below `folder`.
    async fn start(folder: &Path, program: &Path) -> Result<Self, Failure> {
        let memory = Subject::connect(Process::server(folder, program, MEMORY, ":memory:")?, MEMORY).await?;
        let durable = Subject::connect(Process::server(folder, program, DURABLE, "durable.redb")?, DURABLE).await?;
        let lease_id = client::sample(memory.locks.clone(), MEMORY).await?;
        let echo = Subject::connect(Process::role(ECHO, &lease_id, ECHOES)?, MEMORY).await?;
        Ok(Self { echo, memory, durable })
    }
}

fn main() -> ExitCode {
    let ended = if cluster::is_collector() {
        Runtime::new().map_err(Failure::from).and_then(|runtime| {
            runtime.block_on(cluster::collect())?;
            Ok(true)
        })
    } else if let Ok(lease_id) = std::env::var(ECHO) {
        Runtime::new()
            .map_err(Failure::from)
            .and_then(|runtime| runtime.block_on(echo(lease_id)))
    } else {
        measure(&Options::parse())
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Echoes until it is killed.
async fn echo(lease_id: String) -> Result<bool, Failure> {
    let echo = echo_server::Echo::bind(lease_id)?;
    println!("{ECHOES}{}", echo.address());
    std::io::stdout().flush()?;
    echo.serve(std::future::pending()).await?;
    Ok(true)
}

/// Measures and prints everything; whether nothing that counts has failed.
fn measure(options: &Options) -> Result<bool, Failure> {
    // On the disk that builds are on, for a temporary directory may be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let plan = options.plan();
    let report = Runtime::new()?.block_on(run(&plan, folder.path(), options))?;
    report.print(options.json)?;
    Ok(!plan.strict || report.passes())
}

async fn run(plan: &Plan, folder: &Path, options: &Options) -> Result<Report, Failure> {
    let mut subjects = Subjects::start(folder, options.program()).await?;
    let mut report = Report::default();
    if options.has(Part::Pairs) {
        pairs::measure(plan, &subjects, &mut report).await?;
    }
    if options.has(Part::Session) {
        session::measure(plan, &subjects, &mut report).await?;
    }
    if options.has(Part::Program) {
        program::measure(plan, &subjects, options.program(), &mut report).await?;
    }
    if options.has(Part::Cluster) {
        cluster::measure(plan, folder, options.program(), &mut report).await?;
    }
    if options.has(Part::Lone) {
        lone::measure(plan, &mut subjects, folder, &mut report).await?;
    }
    if options.has(Part::Drains) {
        handoff::drains(plan, &subjects, &mut report).await?;
    }
    if options.has(Part::Turns) {
        handoff::rates(plan, &mut subjects, &mut report).await?;
    }
    drop(subjects);
    if options.has(Part::Leases) {
        growth::leases(plan, folder, options.program(), &mut report).await?;
    }
    if options.has(Part::Waiters) {
        growth::waiters(plan, folder, options.program(), &mut report).await?;
    }
    Ok(report)
}
