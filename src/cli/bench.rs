//! `fencepost bench`: what a running server does in a second, and how long each call takes.
//!
//! The loop is closed: callers wait for their answers. With the pattern `limit` each slice of time on
//! the server is followed by one on a bare [`echo`], which has the same transport and messages and no
//! lock, so that each figure is a ratio too.

mod cpu;
mod echo;
mod listener;
mod load;
mod pattern;
mod report;
mod tally;

use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencepost::api::proto::AcquireRequest;
use fencepost::client::raw::Raw;
use fencepost::client::{Address, Credentials};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::echo::EchoProcess;
pub use self::echo::echo;
use self::load::load;
use self::pattern::{Pattern, Plan};
use self::report::{Figures, Report, Slice};
use self::tally::Tally;
use super::output::{Format, Output, print};
use super::server::{Server, finish};
use super::signals::Signals;
use super::waiting::Spinner;
use super::{Failure, failure};

/// About how long one slice lasts, when slices of the server and of the echo alternate.
const SLICE: Duration = Duration::from_millis(500);
/// How often the line of progress is brought up to date.
const TICK: Duration = Duration::from_secs(1);

const HELP: &str = "\
Client and server share a machine's cores where both run on it, so look at the server's CPU time,
and at the ratio that `limit` gives, beside each rate. Interrupted, it prints its results so far.

Examples:
  fencepost bench
  fencepost bench hot limit --concurrency 64 --time 30s
  fencepost bench uncontended shared semaphore expiry -o json > figures.json";

/// Measure a running server.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Bench {
    /// What callers do; each pattern gets its part of the time
    #[arg(value_name = "PATTERN", default_value = "uncontended")]
    patterns: Vec<Pattern>,
    /// The namespace whose locks are taken
    #[arg(long, default_value = "default")]
    namespace: String,
    /// How long all of it takes
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    time: Duration,
    /// How many callers there are
    #[arg(long, value_name = "COUNT", default_value = "64")]
    concurrency: NonZero<usize>,
    /// How many connections they share
    #[arg(long, value_name = "COUNT", default_value = "1")]
    connections: NonZero<usize>,
    /// How many locks there are [default: uncontended one for each caller, else one]
    #[arg(long, value_name = "COUNT")]
    keys: Option<NonZero<usize>>,
    /// semaphore: how many permits each takes
    #[arg(long, value_name = "COUNT", default_value = "1")]
    permits: u32,
    /// semaphore: how many permits there are [default: one for every second caller]
    #[arg(long, value_name = "COUNT")]
    limit: Option<u32>,
    /// expiry: how long each lease lives
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    ttl: Duration,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

/// A server under measurement.
struct Subject {
    address: Address,
    lines: Vec<Raw>,
    /// Whose CPU time is counted.
    process: Option<u32>,
}

impl Subject {
    async fn connect(server: &Server, connections: usize) -> Result<Self, Failure> {
        let (mut last, credentials) = (None, server.credentials());
        for address in &server.addresses {
            match Self::connect_to(address, &credentials, connections).await {
                Ok(subject) => return Ok(subject),
                Err(error) => last = Some(error),
            }
        }
        // Without an address there is no command: one has a default.
        Err(last.map_or_else(|| Failure::runtime(std::fmt::Error), failure))
    }

    async fn connect_to(
        address: &Address,
        credentials: &Credentials,
        connections: usize,
    ) -> Result<Self, fencepost::client::Error> {
        let mut lines = Vec::new();
        for _ in 0..connections {
            lines.push(Raw::connect(address, credentials).await?);
        }
        Ok(Self {
            address: address.clone(),
            lines,
            process: listener::process_of(address).await,
        })
    }

    fn cpu(&self) -> Option<Duration> {
        cpu::used(self.process?).ok()
    }

    /// Loads it for a while.
    async fn slice(
        &self,
        plan: &Plan,
        pattern: Pattern,
        span: Duration,
        stop: &CancellationToken,
        tally: &Arc<Mutex<Tally>>,
    ) -> Slice {
        let finished = || tally.lock().unwrap_or_else(PoisonError::into_inner).finished;
        let (before, cpu) = (finished(), self.cpu());
        let took = load(plan, pattern, &self.lines, span, stop, tally).await;
        let used = cpu.zip(self.cpu()).map(|(before, after)| after.saturating_sub(before));
        Slice {
            finished: finished() - before,
            took,
            cpu: used,
        }
    }
}

/// Measures, and prints what was measured.
pub fn run(args: Bench) -> Result<(), Failure> {
    let (report, failed) = finish(Runtime::new().map_err(Failure::runtime)?, measured(&args))?;
    if let Some(error) = failed.clone().filter(|_| report.is_empty()) {
        return Err(failure(error));
    }
    let text = match args.output.output {
        Format::Text => report.text(),
        Format::Json => serde_json::to_string(&report).map_err(Failure::runtime)? + "\n",
    };
    print(&text).map_err(Failure::runtime)?;
    failed.map_or(Ok(()), |error| Err(failure(error)))
}

/// The figures, and what ended them before their time, if something did.
async fn measured(args: &Bench) -> Result<(Report, Option<fencepost::client::Error>), Failure> {
    let (limits, mut patterns): (Vec<_>, Vec<_>) =
        args.patterns.iter().partition(|pattern| **pattern == Pattern::Limit);
    if patterns.is_empty() {
        patterns.push(Pattern::Uncontended);
    }
    let plan = Plan::of(args, &patterns, prefix())?;
    let subject = Subject::connect(&args.server, args.connections.get()).await?;
    let echo = if limits.is_empty() {
        None
    } else {
        Some(echo_beside(&subject, &plan, args.connections.get()).await?)
    };
    let stop = CancellationToken::new();
    let signals = Signals::take().map_err(Failure::runtime)?;
    tokio::spawn(stop_on(signals, stop.clone()));
    let mut report = Report {
        address: subject.address.to_string(),
        namespace: plan.namespace.clone(),
        connections: args.connections.get(),
        interrupted: false,
        figures: Vec::new(),
    };
    let span = args.time / u32::try_from(patterns.len()).unwrap_or(u32::MAX);
    for pattern in patterns {
        let echo = echo.as_ref().map(|(_, subject)| subject);
        let (figures, failed) = figures(&plan, pattern, span, &subject, echo, &stop).await?;
        report.figures.push(figures);
        report.interrupted = stop.is_cancelled();
        if failed.is_some() || report.interrupted {
            return Ok((report, failed));
        }
    }
    Ok((report, None))
}

/// One pattern, in slices of the server and of the echo, if there is one.
async fn figures(
    plan: &Plan,
    pattern: Pattern,
    span: Duration,
    subject: &Subject,
    echo: Option<&Subject>,
    stop: &CancellationToken,
) -> Result<(Figures, Option<fencepost::client::Error>), Failure> {
    let tally = Arc::new(Mutex::new(Tally::new().map_err(Failure::runtime)?));
    let unheard = Arc::new(Mutex::new(Tally::new().map_err(Failure::runtime)?));
    let beside = echo.zip(pattern.limit());
    let rounds = match beside {
        Some(_) => (span.as_millis() / (2 * SLICE.as_millis())).clamp(1, u128::from(u16::MAX)) as u32,
        None => 1,
    };
    let turn = span / rounds / if beside.is_some() { 2 } else { 1 };
    let (mut slices, mut echoes) = (Vec::new(), Vec::new());
    let shown = progress(pattern, span, Arc::clone(&tally));
    let measured = async {
        for _ in 0..rounds {
            slices.push(subject.slice(plan, pattern, turn, stop, &tally).await);
            if let Some((echo, limit)) = beside {
                echoes.push(echo.slice(plan, limit, turn, stop, &unheard).await);
            }
            let failed = tally.lock().unwrap_or_else(PoisonError::into_inner).failure().is_some();
            if stop.is_cancelled() || failed {
                break;
            }
        }
    };
    tokio::select! {
        () = measured => {}
        () = shown => {}
    }
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    let figures = Figures::of(plan, pattern, &slices, &echoes, &tally);
    Ok((figures, tally.failure().cloned()))
}

/// A prefix of names that no other run has.
fn prefix() -> String {
    format!(
        "bench/{}-{}/",
        std::process::id(),
        fencepost::clock::since_boot().as_micros()
    )
}

/// An echo with answers as long as those of the server.
async fn echo_beside(subject: &Subject, plan: &Plan, connections: usize) -> Result<(EchoProcess, Subject), Failure> {
    let ask = AcquireRequest {
        namespace: plan.namespace.clone(),
        name: format!("{}0000", plan.prefix),
        owner: "bench".to_owned(),
        ..AcquireRequest::default()
    };
    let mut line = subject.lines[0].clone();
    let lease = line.acquire(ask, None, None).await.map_err(failure)?;
    line.release(lease.lease_id.clone()).await.map_err(failure)?;
    let process = EchoProcess::start(&lease.lease_id)?;
    let mut echo = Subject::connect_to(&process.address, &Credentials::default(), connections)
        .await
        .map_err(failure)?;
    echo.process = Some(process.id());
    Ok((process, echo))
}

async fn stop_on(signals: Signals, stop: CancellationToken) {
    signals.first().await;
    stop.cancel();
}

/// Shows on a terminal how it goes, for as long as it is polled.
async fn progress(pattern: Pattern, span: Duration, tally: Arc<Mutex<Tally>>) {
    let Some(sign) = Spinner::at_hand() else {
        return std::future::pending().await;
    };
    let (mut before, mut seconds) = (0, 0);
    loop {
        let finished = tally.lock().unwrap_or_else(PoisonError::into_inner).finished;
        let (word, unit) = (pattern.word(), pattern.unit());
        let last = finished - before;
        sign.show(&format!("{word}: {seconds} of {} s, {last} {unit}", span.as_secs_f64()));
        (before, seconds) = (finished, seconds + 1);
        tokio::time::sleep(TICK).await;
    }
}
