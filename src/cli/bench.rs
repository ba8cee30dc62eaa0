//! `fencepost bench`: measures the throughput and latency of a running server.
//!
//! The load is a closed loop: each caller waits for its response before the next call.

mod call_path;
mod load;
mod pattern;
mod report;
mod tally;

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use fencepost_client::raw::Raw;
use fencepost_client::{Address, Credentials};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::call_path::CallPath;
use self::load::load;
use self::pattern::{BadArguments, Pattern, Plan};
use self::report::{PatternResult, Report};
use self::tally::Tally;
use super::output::{Format, Output, print};
use super::progress_line::Spinner;
use super::server::{Server, finish};
use super::signals::{Signals, TERMINATION};
use super::{Failure, failure};

/// The interval between updates of the progress line.
const TICK: Duration = Duration::from_secs(1);

const HELP: &str = "\
If client and server run on one machine, they share its cores. When interrupted, it prints the
results so far.

Examples:
  fencepost bench
  fencepost bench hot --concurrency 64 --time 30s
  fencepost bench --session --concurrency 256
  fencepost bench uncontended shared semaphore expiry -o json > figures.json";

/// Measure a running server.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Bench {
    /// The load pattern; several patterns share the time equally
    #[arg(value_name = "PATTERN", default_value = "uncontended")]
    patterns: Vec<Pattern>,
    /// The namespace of the locks
    #[arg(long, default_value = "default")]
    namespace: String,
    /// The duration of the whole measurement
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    time: Duration,
    /// The number of callers
    #[arg(long, value_name = "COUNT", default_value = "64")]
    concurrency: NonZero<usize>,
    /// The number of connections that the callers share
    #[arg(long, value_name = "COUNT", default_value = "1")]
    connections: NonZero<usize>,
    /// Send the calls as commands of a session, one session on each connection
    #[arg(long)]
    session: bool,
    /// The number of locks [default: one per caller for uncontended, else one]
    #[arg(long, value_name = "COUNT")]
    keys: Option<NonZero<usize>>,
    /// semaphore: the permits of each caller
    #[arg(long, value_name = "COUNT", default_value = "1")]
    permits: u32,
    /// semaphore: the total number of permits [default: one for every second caller]
    #[arg(long, value_name = "COUNT")]
    limit: Option<u32>,
    /// expiry: the TTL of each lease
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    ttl: Duration,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

/// A server to measure.
struct Subject {
    address: Address,
    /// One for each connection.
    callers: Vec<CallPath>,
}

impl Subject {
    async fn connect(args: &Bench) -> Result<Self, Failure> {
        args.server.check_has_server()?;
        let (mut last, credentials) = (None, args.server.credentials());
        for address in &args.server.addresses {
            match Self::connect_to(address, &credentials, args).await {
                Ok(subject) => {
                    subject.check_sessions(args)?;
                    return Ok(subject);
                }
                Err(error) => last = Some(error),
            }
        }
        // Unreachable: --addr has a default.
        Err(last.map_or_else(|| Failure::runtime(std::fmt::Error), failure))
    }

    async fn connect_to(
        address: &Address,
        credentials: &Credentials,
        args: &Bench,
    ) -> Result<Self, fencepost_client::Error> {
        let mut callers = Vec::new();
        for _ in 0..args.connections.get() {
            let connection = Raw::connect(address, credentials).await?;
            callers.push(if args.session {
                CallPath::Session(connection.session().await?)
            } else {
                CallPath::Calls(Box::new(connection))
            });
        }
        Ok(Self {
            address: address.clone(),
            callers,
        })
    }

    /// Checks that the commands of all callers fit into the sessions.
    fn check_sessions(&self, args: &Bench) -> Result<(), Failure> {
        let of_each = args.concurrency.get().div_ceil(args.connections.get());
        for caller in &self.callers {
            if let CallPath::Session(session) = caller
                && of_each > session.command_limit() as usize
            {
                let problem = format!(
                    "a session takes {} commands at once, not {of_each}: use more --connections",
                    session.command_limit()
                );
                return Err(Failure::usage(BadArguments(problem)));
            }
        }
        Ok(())
    }
}

/// Measures and prints the results.
pub fn run(args: Bench) -> Result<(), Failure> {
    let (report, failed) = finish(Runtime::new().map_err(Failure::runtime)?, measure(&args))?;
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

/// The results, and the error that ended the measurement early, if any.
async fn measure(args: &Bench) -> Result<(Report, Option<fencepost_client::Error>), Failure> {
    let plan = Plan::of(args, prefix())?;
    let subject = Subject::connect(args).await?;
    let stop = CancellationToken::new();
    let signals = Signals::take(&TERMINATION).map_err(Failure::runtime)?;
    tokio::spawn(stop_on(signals, stop.clone()));
    let mut report = Report {
        address: subject.address.to_string(),
        namespace: plan.namespace.clone(),
        connections: args.connections.get(),
        session: args.session,
        interrupted: false,
        figures: Vec::new(),
    };
    let span = args.time / u32::try_from(args.patterns.len()).unwrap_or(u32::MAX);
    for pattern in args.patterns.iter().copied() {
        let (figures, failed) = measure_pattern(&plan, pattern, span, &subject, &stop).await?;
        report.figures.push(figures);
        report.interrupted = stop.is_cancelled();
        if failed.is_some() || report.interrupted {
            return Ok((report, failed));
        }
    }
    Ok((report, None))
}

/// Measures one pattern.
async fn measure_pattern(
    plan: &Plan,
    pattern: Pattern,
    span: Duration,
    subject: &Subject,
    stop: &CancellationToken,
) -> Result<(PatternResult, Option<fencepost_client::Error>), Failure> {
    let tally = Arc::new(Mutex::new(Tally::new().map_err(Failure::runtime)?));
    let progress_task = progress(pattern, span, Arc::clone(&tally));
    let took = tokio::select! {
        took = load(plan, pattern, &subject.callers, span, stop, &tally) => took,
        never = progress_task => never,
    };
    let tally = tally.lock();
    Ok((PatternResult::of(plan, pattern, took, &tally), tally.error().cloned()))
}

/// A prefix for lock names that no other run uses.
fn prefix() -> String {
    format!(
        "bench/{}-{}/",
        std::process::id(),
        fencepost::clock::since_boot().as_micros()
    )
}

async fn stop_on(signals: Signals, stop: CancellationToken) {
    signals.first().await;
    stop.cancel();
}

/// Shows the progress on a terminal while it is polled.
async fn progress<T>(pattern: Pattern, span: Duration, tally: Arc<Mutex<Tally>>) -> T {
    let Some(spinner) = Spinner::on_terminal() else {
        return std::future::pending().await;
    };
    let (mut before, mut seconds) = (0, 0);
    loop {
        let finished = tally.lock().finished;
        let (name, unit) = (pattern.name(), pattern.unit());
        let last = finished - before;
        spinner.show(&format!("{name}: {seconds} of {} s, {last} {unit}", span.as_secs_f64()));
        (before, seconds) = (finished, seconds + 1);
        tokio::time::sleep(TICK).await;
    }
}
