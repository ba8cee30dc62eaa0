//! What a pair costs in things that other load of the machine does not change: allocations, and calls of the system.
//!
//! `cargo bench --bench counts [-- --quick]`. The server and the echo run in processes of this program, whose allocator
//! counts. System calls are counted where perf may count them. It fails when a figure misses its requirement, unless
//! it is `--quick`.

use std::alloc::System;
use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use fencepost::api::{self, Listener, Settings};
use fencepost::backend::embedded::Store;
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::Namespace;
use fencepost::namespaces::Namespaces;
use rustix::process::{Pid, Signal, kill_process};
use stats_alloc::StatsAlloc;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

#[path = "../core/client.rs"]
#[allow(dead_code, reason = "the bench of the core uses the rest")]
mod client;
#[path = "../core/echo_server.rs"]
mod echo_server;
#[path = "../core/report.rs"]
#[allow(dead_code, reason = "the bench of the core uses the rest")]
mod report;
#[path = "../core/stats.rs"]
#[allow(dead_code, reason = "the bench of the core uses the rest")]
mod stats;

use echo_server::Echo;
use report::{Bound, Compared, Report, Row};
use stats::median;

/// Whatever ends a measurement early.
type Failure = Box<dyn Error + Send + Sync>;

/// The system's allocator, which counts.
#[global_allocator]
static ALLOCATOR: StatsAlloc<System> = StatsAlloc::system();

/// The namespace of the locks.
const NAMESPACE: &str = "memory";
/// How many times as many allocations as the echo a pair may take in memory, and how many times as many bytes.
const MEMORY_MOST: [f64; 2] = [1.15, 1.25];
/// The environment variable that makes this program a server whose allocations are counted. Its value is the lease id
/// of an echo, or the path of a store.
const ROLE: &str = "FENCEPOST_BENCH_COUNTED";
const ECHO: &str = "echo ";
/// How many callers there are under load.
const CALLERS: usize = 64;
/// How many pairs warm a server up, and are counted then.
const PAIRS: usize = 4096;
/// How many pairs of a lone caller are counted.
const LONE: usize = 500;

fn main() -> ExitCode {
    let ended = Runtime::new()
        .map_err(Failure::from)
        .and_then(|runtime| match std::env::var(ROLE) {
            Ok(what) => runtime.block_on(serve(what)).map(|()| true),
            Err(_) => runtime.block_on(measure()),
        });
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until its input ends. For each line of input it says how many allocations it has made, and of how many bytes.
async fn serve(what: String) -> Result<(), Failure> {
    if let Some(lease_id) = what.strip_prefix(ECHO) {
        let echo = Echo::bind(lease_id.to_owned())?;
        println!("{}", echo.address());
        tokio::spawn(echo.serve(std::future::pending()));
    } else {
        let store = match what.as_str() {
            ":memory:" => Store::memory(),
            path => Store::open(Path::new(path))?,
        };
        let namespace = Namespace::new(NAMESPACE)?;
        let locks = Locks::new(namespace.clone(), Limits::default(), store.namespace(namespace));
        let listener = Listener::bind(&"127.0.0.1:0".parse()?).await?;
        println!("{}", listener.local_addr());
        let namespaces = Namespaces::new(vec![locks]);
        tokio::spawn(api::serve(
            vec![listener],
            namespaces,
            Settings::default(),
            std::future::pending(),
        ));
    }
    std::io::stdout().flush()?;
    tokio::task::spawn_blocking(|| {
        for _ in std::io::stdin().lines().map_while(Result::ok) {
            let so_far = ALLOCATOR.stats();
            let allocations = so_far.allocations + so_far.reallocations;
            println!("{allocations} {}", so_far.bytes_allocated);
        }
    })
    .await?;
    Ok(())
}

/// A process whose allocations are counted; killed when dropped.
struct Counted {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Counted {
    fn start(what: &str) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, what).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (input, output) = (
            child.stdin.take().ok_or("no input")?,
            child.stdout.take().ok_or("no output")?,
        );
        let mut output = BufReader::new(output).lines();
        let address = output.next().ok_or("a server ended before it served")??;
        Ok(Self {
            child,
            input,
            output,
            address,
        })
    }

    /// The allocations so far, and their bytes.
    fn allocations(&mut self) -> Result<[f64; 2], Failure> {
        writeln!(self.input)?;
        let line = self.output.next().ok_or("no count")??;
        let (count, bytes) = line.split_once(' ').ok_or("no bytes")?;
        Ok([count.parse()?, bytes.parse()?])
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Counts the system calls of a process by perf, until it is asked.
struct SystemCalls(Child);

impl SystemCalls {
    /// None where there is no perf, or where it may not count them.
    fn of(process: &Child) -> Option<Self> {
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p"]);
        let child = command
            .arg(process.id().to_string())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        child.ok().map(Self)
    }

    fn end(self) -> Option<f64> {
        // It prints its counts when it is interrupted.
        kill_process(Pid::from_child(&self.0), Signal::INT).ok()?;
        let printed = self.0.wait_with_output().ok()?.stderr;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let line = printed.lines().find(|line| line.contains("sys_enter"))?;
        line.split(',').next()?.parse().ok()
    }
}

/// So many pairs by so many callers.
async fn pairs(address: &str, callers: usize, pairs: usize) -> Result<(), Failure> {
    let locks = client::connect(address).await?;
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let (mut locks, ask) = (
            locks.clone(),
            client::ask(NAMESPACE, format!("pair-{caller:02}"), "bench", Duration::ZERO),
        );
        running.spawn(async move {
            for _ in 0..pairs / callers {
                client::pair(&mut locks, ask.clone()).await?;
            }
            Ok::<_, tonic::Status>(())
        });
    }
    while let Some(caller) = running.join_next().await {
        caller??;
    }
    Ok(())
}

/// What a pair of one server costs.
struct PairCosts {
    allocations: f64,
    bytes: f64,
    /// By a lone caller, and by many.
    system_calls: [Option<f64>; 2],
}

async fn count(what: &str, rounds: usize) -> Result<PairCosts, Failure> {
    let mut counted = Counted::start(what)?;
    pairs(&counted.address, CALLERS, PAIRS).await?;
    let (mut allocations, mut bytes, mut system_calls) = (vec![], vec![], [vec![], vec![]]);
    for _ in 0..rounds {
        let before = counted.allocations()?;
        pairs(&counted.address, CALLERS, PAIRS).await?;
        let after = counted.allocations()?;
        allocations.push((after[0] - before[0]) / PAIRS as f64);
        bytes.push((after[1] - before[1]) / PAIRS as f64);
        for ((callers, many), seen) in [(1, LONE), (CALLERS, PAIRS)].into_iter().zip(&mut system_calls) {
            let calls = SystemCalls::of(&counted.child);
            pairs(&counted.address, callers, many).await?;
            seen.extend(calls.and_then(SystemCalls::end).map(|calls| calls / many as f64));
        }
    }
    Ok(PairCosts {
        allocations: median(allocations),
        bytes: median(bytes),
        system_calls: system_calls.map(|seen| (!seen.is_empty()).then(|| median(seen))),
    })
}

/// A real lease id, for the echo to answer with.
async fn lease_id() -> Result<String, Failure> {
    let counted = Counted::start(":memory:")?;
    Ok(client::sample(client::connect(&counted.address).await?, NAMESPACE).await?)
}

/// Counts at an echo, at a store in memory and at one in a file; whether nothing that counts has failed.
async fn measure() -> Result<bool, Failure> {
    let quick = std::env::args().any(|argument| argument == "--quick")
        || !std::env::args().any(|argument| argument == "--bench");
    let rounds = if quick { 1 } else { 5 };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let path = folder.path().join("counted.redb");
    let echo = count(&format!("{ECHO}{}", lease_id().await?), rounds).await?;
    let memory = count(":memory:", rounds).await?;
    let durable = count(path.to_str().ok_or("a path")?, rounds).await?;
    let mut report = Report::default();
    let bound = |seen: f64, bare: f64, most| Some(Compared::new("of the echo", vec![seen / bare], Bound::AtMost(most)));
    report.add(Row::new("echo", echo.allocations, "allocations a pair"));
    add(&mut report, &echo, None);
    let allocations = bound(memory.allocations, echo.allocations, MEMORY_MOST[0]);
    report.add(with(
        Row::new("memory", memory.allocations, "allocations a pair"),
        allocations,
    ));
    add(&mut report, &memory, bound(memory.bytes, echo.bytes, MEMORY_MOST[1]));
    report.add(Row::new("durable", durable.allocations, "allocations a pair"));
    add(&mut report, &durable, None);
    report.print(false)?;
    Ok(quick || report.passes())
}

fn with(row: Row, compared: Option<Compared>) -> Row {
    match compared {
        Some(compared) => row.compared(compared),
        None => row,
    }
}

/// Adds the rest of what a pair costs.
fn add(report: &mut Report, costs: &PairCosts, bytes: Option<Compared>) {
    report.add(with(Row::new("  in bytes", costs.bytes, "bytes a pair"), bytes));
    let rows = ["  system calls of a lone caller", "  system calls, 64 callers"];
    for (row, calls) in rows.into_iter().zip(costs.system_calls) {
        if let Some(calls) = calls {
            report.add(Row::new(row, calls, "a pair"));
        }
    }
}
