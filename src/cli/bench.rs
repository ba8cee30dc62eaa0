//! `fencepost bench`: measures the throughput and latency of a running server.
//!
//! The load is a closed loop: each caller waits for its response before the next call. With the pattern `limit`, time
//! slices on the server alternate with slices on a bare [`echo`] with the same transport and messages but without
//! locks. Each result is then also a ratio to the echo.

mod call_path;
mod cpu;
mod echo;
mod echo_server;
mod listener;
mod load;
mod pattern;
mod report;
mod tally;

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use fencepost::api::proto::AcquireRequest;
use fencepost_client::raw::Raw;
use fencepost_client::{Address, Credentials};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::call_path::CallPath;
use self::echo::EchoProcess;
pub use self::echo::echo;
use self::load::load;
use self::pattern::{BadArguments, Pattern, Plan};
use self::report::{PatternResult, Report, Slice};
use self::tally::Tally;
use super::output::{Format, Output, print};
use super::progress_line::Spinner;
use super::server::{Server, finish};
use super::signals::{Signals, TERMINATION};
use super::{Failure, failure};

/// The approximate length of a slice when slices of the server and of the echo alternate.
const SLICE: Duration = Duration::from_millis(500);
/// The interval between updates of the progress line.
const TICK: Duration = Duration::from_secs(1);

const HELP: &str = "\
If client and server run on one machine, they share its cores: compare the server's CPU time and
the ratio of `limit` as well as the rates. When interrupted, it prints the results so far.

Examples:
  fencepost bench
  fencepost bench hot limit --concurrency 64 --time 30s
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
    /// The process whose CPU time is measured.
    process: Option<u32>,
}

impl Subject {
    async fn connect(args: &Bench) -> Result<Self, Failure> {
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
            process: listener::process_of(address).await,
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

    fn cpu(&self) -> Option<Duration> {
        cpu::used(self.process?).ok()
    }

    /// Applies load for a while.
    async fn slice(
        &self,
        plan: &Plan,
        pattern: Pattern,
        span: Duration,
        stop: &CancellationToken,
        tally: &Arc<Mutex<Tally>>,
    ) -> Slice {
        let finished = || tally.lock().finished;
        let (before, cpu) = (finished(), self.cpu());
        let duration = load(plan, pattern, &self.callers, span, stop, tally).await;
        let used = cpu.zip(self.cpu()).map(|(before, after)| after.saturating_sub(before));
        Slice {
            finished: finished() - before,
            duration,
            cpu: used,
        }
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
    let (limits, mut patterns): (Vec<_>, Vec<_>) =
        args.patterns.iter().partition(|pattern| **pattern == Pattern::Limit);
    if patterns.is_empty() {
        patterns.push(Pattern::Uncontended);
    }
    let plan = Plan::of(args, &patterns, prefix())?;
    let subject = Subject::connect(args).await?;
    let echo = if limits.is_empty() {
        None
    } else {
        Some(start_echo(&subject, &plan, args).await?)
    };
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
    let span = args.time / u32::try_from(patterns.len()).unwrap_or(u32::MAX);
    for pattern in patterns {
        let echo = echo.as_ref().map(|(_, subject)| subject);
        let (figures, failed) = measure_pattern(&plan, pattern, span, &subject, echo, &stop).await?;
        report.figures.push(figures);
        report.interrupted = stop.is_cancelled();
        if failed.is_some() || report.interrupted {
            return Ok((report, failed));
        }
    }
    Ok((report, None))
}

/// Measures one pattern, alternating with slices of the echo, if there is one.
async fn measure_pattern(
    plan: &Plan,
    pattern: Pattern,
    span: Duration,
    subject: &Subject,
    echo: Option<&Subject>,
    stop: &CancellationToken,
) -> Result<(PatternResult, Option<fencepost_client::Error>), Failure> {
    let tally = Arc::new(Mutex::new(Tally::new().map_err(Failure::runtime)?));
    let echo_tally = Arc::new(Mutex::new(Tally::new().map_err(Failure::runtime)?));
    let echo_limit = echo.zip(pattern.limit());
    let rounds = match echo_limit {
        Some(_) => (span.as_millis() / (2 * SLICE.as_millis())).clamp(1, u128::from(u16::MAX)) as u32,
        None => 1,
    };
    let slice_time = span / rounds / if echo_limit.is_some() { 2 } else { 1 };
    let (mut slices, mut echoes) = (Vec::new(), Vec::new());
    let progress_task = progress(pattern, span, Arc::clone(&tally));
    let measure = async {
        for _ in 0..rounds {
            slices.push(subject.slice(plan, pattern, slice_time, stop, &tally).await);
            if let Some((echo, limit)) = echo_limit {
                echoes.push(echo.slice(plan, limit, slice_time, stop, &echo_tally).await);
            }
            let failed = tally.lock().error().is_some();
            if stop.is_cancelled() || failed {
                break;
            }
        }
    };
    tokio::select! {
        () = measure => {}
        () = progress_task => {}
    }
    let tally = tally.lock();
    let figures = PatternResult::of(plan, pattern, &slices, &echoes, &tally);
    Ok((figures, tally.error().cloned()))
}

/// A prefix for lock names that no other run uses.
fn prefix() -> String {
    format!(
        "bench/{}-{}/",
        std::process::id(),
        fencepost::clock::since_boot().as_micros()
    )
}

/// Starts an echo whose responses are as long as those of the server.
async fn start_echo(subject: &Subject, plan: &Plan, args: &Bench) -> Result<(EchoProcess, Subject), Failure> {
    let request = AcquireRequest {
        namespace: plan.namespace.clone(),
        name: format!("{}0000", plan.prefix),
        owner: "bench".to_owned(),
        ..AcquireRequest::default()
    };
    let mut caller = subject.callers[0].clone();
    let lease = caller.acquire(request).await.map_err(failure)?;
    caller.release(lease.lease_id.clone()).await.map_err(failure)?;
    let process = EchoProcess::start(&lease.lease_id)?;
    let mut echo = Subject::connect_to(&process.address, &Credentials::default(), args)
        .await
        .map_err(failure)?;
    echo.process = Some(process.id());
    Ok((process, echo))
}

async fn stop_on(signals: Signals, stop: CancellationToken) {
    signals.first().await;
    stop.cancel();
}

/// Shows the progress on a terminal while it is polled.
async fn progress(pattern: Pattern, span: Duration, tally: Arc<Mutex<Tally>>) {
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
