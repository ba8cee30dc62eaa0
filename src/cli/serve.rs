//! `fencepost serve`: the server, from its configuration to its end.
//!
//! The number of worker threads can be set. With one worker on two processors a pair of calls takes 30 to 40 % less
//! server time than with two, because an idle worker wakes up at each message and looks for work at the other one.
//! One is not the default: one thread gets a smaller share of a busy machine, and a long call, such as a handshake,
//! delays all others.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use fencepost::api::{self, Access, ListenAddress, Listener};
use fencepost::auth::{Auth, Policy, PolicyError};
use fencepost::config::{Config, Overrides};
use fencepost::metrics::{Metrics, ServerMetrics};
use fencepost::monitor::{Monitor, Ready};
use fencepost::quota::Quotas;
use fencepost::reload::{self, AccessPart, Encryption, FileSnapshots, Reload, ValuesPart};
use fencepost::stores::{self, Stores};
use fencepost::telemetry::traces::Traces;
use fencepost::telemetry::{self, Log};
use fencepost::tls::Tls;
use nix::sys::signal::Signal;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Failure;
use super::signals::{Signals, TERMINATION};

mod descriptors;
mod dev;
mod ready_file;

pub use self::dev::{Dev, run as run_dev};
use self::ready_file::ReadyFile;

/// How long a blocked store operation may delay the end of the process.
const RUNTIME_SHUTDOWN: Duration = Duration::from_secs(1);

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
struct BindError {
    address: ListenAddress,
    source: io::Error,
}

impl BindError {
    fn of(address: &ListenAddress) -> impl FnOnce(io::Error) -> Self + use<> {
        let address = address.clone();
        |source| Self { address, source }
    }
}

/// The arguments of `fencepost serve`.
#[derive(Debug, clap::Args)]
pub struct Serve {
    #[command(flatten)]
    overrides: Overrides,
    /// Write the addresses, one a line, into a file once the server accepts calls; its end removes the file
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

/// What is done once the server accepts calls, until it ends.
#[derive(Debug)]
enum Announce {
    No,
    File(PathBuf),
    Dev,
}

/// Where a server that accepts calls can be reached.
#[derive(Debug)]
struct Reachable {
    addresses: Vec<String>,
    console: Option<String>,
    metrics: Option<String>,
}

/// The state after the start of the process.
struct Started {
    overrides: Overrides,
    /// The state of its files before they were read.
    file_snapshots: FileSnapshots,
    config: Config,
    log: Log,
    announce: Announce,
}

/// Serves until a signal ends the server.
pub fn run(serve: Serve) -> Result<(), Failure> {
    if let Some(path) = &serve.ready_file {
        ready_file::remove(path).map_err(Failure::runtime)?;
    }
    let announce = serve.ready_file.map_or(Announce::No, Announce::File);
    serve_and(serve.overrides, announce)
}

fn serve_and(overrides: Overrides, announce: Announce) -> Result<(), Failure> {
    if overrides.is_standard_input() {
        return Err(Failure::usage(io::Error::other(
            "--config: a server reads its configuration again, so it must be a file, not standard input",
        )));
    }
    let mut file_snapshots = FileSnapshots::default();
    file_snapshots.record(overrides.config.clone());
    let config = Config::load(overrides.clone(), stores::ALL).map_err(Failure::usage)?;
    file_snapshots.record(config.files());
    let runtime = runtime(config.worker_threads()).map_err(Failure::runtime)?;
    let traces = traces(&config, &runtime)?;
    let log = config.log();
    let log = telemetry::init(&log.level, log.format, log.grants).map_err(Failure::runtime)?;
    let started = Started {
        overrides,
        file_snapshots,
        config,
        log,
        announce,
    };
    let served = runtime.block_on(started.serve());
    if let Some(traces) = traces {
        traces.finish();
    }
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN);
    if telemetry::flush() {
        served
    } else {
        // Nobody reads standard error: who prints the failure there would wait for ever.
        std::process::exit(served.is_err().into())
    }
}

/// A runtime whose threads return freed memory to the system before they sleep.
fn runtime(worker_threads: Option<usize>) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(count) = worker_threads {
        builder.worker_threads(count);
    }
    #[cfg(feature = "mimalloc")]
    builder.on_thread_park(fencepost_allocator::return_freed_memory);
    builder.enable_all().build()
}

fn traces(config: &Config, runtime: &Runtime) -> Result<Option<Traces>, Failure> {
    let _guard = runtime.enter();
    let traces = config.traces().map(|(endpoint, ratio)| Traces::begin(endpoint, ratio));
    traces.transpose().map_err(Failure::runtime)
}

impl Started {
    /// Binds before it opens the stores, so that a second server on the same address does not touch
    /// them.
    async fn serve(self) -> Result<(), Failure> {
        let limits = descriptors::raise();
        let signals = Signals::take(&TERMINATION).map_err(Failure::runtime)?;
        let hang_ups = Signals::take(&[Signal::SIGHUP]).map_err(Failure::runtime)?;
        let access = access(&self.config).map_err(Failure::runtime)?;
        let tls = self.config.tls().cloned().map(Tls::open).transpose();
        let tls = tls.map_err(Failure::runtime)?;
        let mut listeners = bind(&self.config, tls.as_ref()).await.map_err(Failure::runtime)?;
        let addresses: Vec<String> = listeners.iter().map(Listener::local_addr).collect();
        let console = bind_console(&self.config, tls.as_ref())
            .await
            .map_err(Failure::runtime)?;
        let monitor = bind_monitor(&self.config, tls.as_ref()).await;
        let monitor = monitor.map_err(Failure::runtime)?;
        let console_url = console.as_ref().map(Listener::url);
        listeners.extend(console);
        // Store operations are traced by the same wrapper that measures them.
        let is_measured = monitor.is_some() || self.config.traces().is_some();
        let metrics = is_measured.then(|| Metrics::new(env!("CARGO_PKG_VERSION")));
        let stores = stores::open(&self.config, metrics.as_ref());
        let stores = stores.await.map_err(Failure::runtime)?;
        let (namespaces, mut settings) = (stores.namespaces().clone(), self.config.settings());
        let handshakes = tls.as_ref().map_or(0, |tls| listeners.len() * tls.handshake_limit());
        descriptors::fit(&mut settings, handshakes, limits);

        let (background_tasks, stop, ready) = (TaskTracker::new(), CancellationToken::new(), Ready::default());
        ready.set(self.config.ready_namespaces());
        let monitor_address = monitor.as_ref().map(|monitor| (monitor.scheme(), monitor.local_addr()));
        let await_stores = namespaces.await_stores(self.config.first_contact_timeout());
        background_tasks.spawn(stop.clone().run_until_cancelled_owned(await_stores));
        if let (Some(monitor), Some(metrics)) = (monitor, &metrics) {
            background_tasks.spawn(monitor.run(metrics.clone(), namespaces.clone(), ready.clone(), stop.clone()));
        }
        let metrics_url = match &monitor_address {
            Some((scheme, Ok(address))) => Some(format!("{scheme}://{address}")),
            _ => None,
        };
        let reachable = Reachable {
            addresses,
            console: console_url,
            metrics: metrics_url,
        };
        let _ready_file = self.announce.ready(&reachable).map_err(Failure::runtime)?;
        let server_metrics = metrics.map(|metrics| metrics.server().clone());
        let reload = self.reload(stores, server_metrics.clone(), ready);
        let reload = reload.with(AccessPart(access.clone()));
        let reload = match tls {
            Some(tls) => reload.with(Encryption::new(tls, server_metrics)),
            None => reload,
        };
        background_tasks.spawn(reload.run(hang_ups.into_stream(), stop.clone()));

        reachable.log();
        let served = api::serve_to(access, listeners, namespaces, settings, signals.first()).await;
        stop.cancel();
        background_tasks.close();
        background_tasks.wait().await;
        served.map_err(Failure::runtime)
    }

    /// Creates the task that applies configuration changes.
    fn reload(self, stores: Stores, server_metrics: Option<ServerMetrics>, ready: Ready) -> Reload {
        let log = self.log;
        Reload::new(
            (self.overrides, self.file_snapshots),
            self.config,
            stores,
            server_metrics,
        )
        .with(ValuesPart("log", move |config: &Config| {
            let (log, settings) = (log.clone(), config.log().clone());
            Box::new(move || log.set(&settings.level, settings.grants)) as reload::Apply
        }))
        .with(ValuesPart("readiness", move |config: &Config| {
            let (ready, namespaces) = (ready.clone(), config.ready_namespaces().to_vec());
            Box::new(move || ready.set(&namespaces)) as reload::Apply
        }))
    }
}

impl Announce {
    /// The listeners are bound, so that calls which arrive from now on are answered.
    fn ready(&self, reachable: &Reachable) -> io::Result<Option<ReadyFile>> {
        match self {
            Self::No => Ok(None),
            Self::File(path) => ReadyFile::write(path, &reachable.addresses).map(Some),
            Self::Dev => dev::print_reachable(reachable).map(|()| None),
        }
    }
}

impl Reachable {
    fn log(&self) {
        if let Some(url) = &self.metrics {
            tracing::info!("metrics and health on {url}");
        }
        if let Some(url) = &self.console {
            tracing::info!("console on {url}");
        }
        tracing::info!("serving on {}", self.addresses.join(", "));
    }
}

/// Authentication, authorization and quotas.
fn access(config: &Config) -> Result<Access, PolicyError> {
    let policy = config.policy.as_ref().map(Policy::open).transpose()?;
    Ok(Access {
        auth: Auth::new(policy),
        quotas: Quotas::new(config.quotas.clone()),
    })
}

async fn bind(config: &Config, tls: Option<&Tls>) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::new();
    for address in config.listen() {
        listeners.push(bind_one(config, address, tls).await?);
    }
    Ok(listeners)
}

async fn bind_one(config: &Config, address: &ListenAddress, tls: Option<&Tls>) -> Result<Listener, BindError> {
    let bound = Listener::bind(address).await.map_err(BindError::of(address))?;
    Ok(match tls {
        Some(tls) if config.is_encrypted(address) => bound.with_tls(tls.clone()),
        _ => bound,
    })
}

async fn bind_console(config: &Config, tls: Option<&Tls>) -> Result<Option<Listener>, BindError> {
    let Some(address) = config.console_listen() else {
        return Ok(None);
    };
    Ok(Some(bind_one(config, address, tls).await?.for_console(address)))
}

async fn bind_monitor(config: &Config, tls: Option<&Tls>) -> Result<Option<Monitor>, BindError> {
    let Some(address) = config.metrics_listen() else {
        return Ok(None);
    };
    let bound = Monitor::bind(address).await.map_err(BindError::of(address))?;
    Ok(Some(match tls {
        Some(tls) if config.metrics_are_encrypted() => bound.with_tls(tls.clone()),
        _ => bound,
    }))
}
