//! What is counted and measured, in the form that Prometheus reads.
//!
//! Labels are bounded: namespaces are those of the configuration (else `unknown`), methods those of
//! the API, reasons those of its answers; never the name of a lock, an owner or an identity. A series
//! is looked up once, and the calls that count in it only touch its atomics.
//!
//! [`Metrics`] is all of a server's; [`NamespaceMetrics`] those of one namespace, whose calls
//! ([`calls`]) and steps of the store ([`Measured`]) are counted in it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};
use tokio::time::Instant;

use crate::backend::{Health, Capabilities};
use crate::name::Namespace;

pub mod calls;
mod measured;
mod lease_observer;

pub use self::calls::NamespaceCalls;
pub use self::measured::Measured;

/// The namespace of calls that concern none, or one that is not served.
pub const UNKNOWN: &str = "unknown";
/// What Prometheus is told about the form of the text.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// From half a millisecond, which only a step in memory takes, to the longest of waits that are common.
const SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Everything that a server measures. Clones share it.
#[derive(Debug, Clone)]
pub struct Metrics {
    inner: Arc<Families>,
}

/// The series of a server, by what they count.
#[derive(Debug)]
struct Families {
    registry: Registry,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    wait_seconds: HistogramVec,
    hand_off_seconds: HistogramVec,
    held: IntGaugeVec,
    waiting: IntGaugeVec,
    granted: IntCounterVec,
    ended: IntCounterVec,
    expired: IntCounterVec,
    lost: IntCounterVec,
    regressions: IntCounterVec,
    over_limit: IntCounterVec,
    step_seconds: HistogramVec,
    step_errors: IntCounterVec,
    healthy: IntGaugeVec,
    quarantine: GaugeVec,
    server: ServerMetrics,
    unknown: Arc<NamespaceCalls>,
}

/// What concerns the server as a whole.
#[derive(Debug, Clone)]
pub struct ServerMetrics {
    /// Open connections of the API.
    pub connections: IntGauge,
    /// Connections closed because there were too many.
    pub connections_refused: IntCounter,
    /// Connections and streams that were ended because their client took no answer.
    pub stalled: IntCounter,
    /// Connections that were closed because their client broke HTTP/2.
    pub protocol_errors: IntCounter,
    /// TLS handshakes that brought no connection.
    pub handshakes_refused: Refusals,
    /// Calls whose caller did not prove who it is.
    pub unauthenticated: Refusals,
    /// 1 while the server drains.
    pub draining: IntGauge,
    /// Configurations taken up while the server ran.
    pub reloads: IntCounter,
    /// 1 while the last changed configuration was refused.
    pub reload_failed: IntGauge,
    config_age: Gauge,
    applied: Arc<Mutex<Instant>>,
}

/// What was refused, by its cause.
#[derive(Debug, Clone)]
pub struct Refusals(IntCounterVec);

impl Refusals {
    /// Lets these causes be seen before anything was refused for them, so that the first one shows as a rise.
    pub fn expect(&self, causes: impl IntoIterator<Item = &'static str>) {
        causes
            .into_iter()
            .for_each(|cause| drop(self.0.with_label_values(&[cause])));
    }

    /// One more.
    pub fn count(&self, cause: &'static str) {
        self.0.with_label_values(&[cause]).inc();
    }
}

impl ServerMetrics {
    /// Notes that a changed configuration is in force.
    pub fn reloaded(&self) {
        self.reloads.inc();
        self.reload_failed.set(0);
        *self.applied.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn observe_age(&self) {
        let applied = *self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        self.config_age.set(applied.elapsed().as_secs_f64());
    }
}

/// Makes series in a registry. A name that is taken or misspelt is a bug that every test meets.
struct SeriesRegistry(Registry);

impl SeriesRegistry {
    fn put<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let made = made.expect("a metric's name is well spelt");
        self.0
            .register(Box::new(made.clone()))
            .expect("each metric is made once");
        made
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.put(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.put(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn seconds(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        self.put(HistogramVec::new(options, labels))
    }

    fn server(&self) -> ServerMetrics {
        let gauge = |name: &str, help: &str| self.put(IntGauge::new(name, help));
        let counter = |name: &str, help: &str| self.put(IntCounter::new(name, help));
        ServerMetrics {
            connections: gauge("fencepost_connections", "Open connections."),
            connections_refused: counter(
                "fencepost_connections_refused_total",
                "Connections closed because there were too many, or too many whose callers had not proven who they are.",
            ),
            stalled: counter(
                "fencepost_stalled_total",
                "Connections and streams that were ended because their client took no answer for too long.",
            ),
            protocol_errors: counter(
                "fencepost_protocol_errors_total",
                "Connections that were closed because their client broke HTTP/2.",
            ),
            handshakes_refused: Refusals(self.counters(
                "fencepost_handshakes_refused_total",
                "TLS handshakes that failed, took too long (late), or were the oldest of too many (crowded_out).",
                &["cause"],
            )),
            unauthenticated: Refusals(self.counters(
                "fencepost_unauthenticated_total",
                "Calls whose caller did not prove who it is: nothing was shown, or it is not valid, or has expired.",
                &["cause"],
            )),
            draining: gauge("fencepost_draining", "1 while the server drains."),
            reloads: counter(
                "fencepost_config_reloads_total",
                "Changed configurations that were taken up.",
            ),
            reload_failed: gauge(
                "fencepost_config_reload_failed",
                "1 while the last changed configuration was refused and the one before stays in force.",
            ),
            config_age: self.put(Gauge::new(
                "fencepost_config_age_seconds",
                "For how long the configuration in force has been.",
            )),
            applied: Arc::new(Mutex::new(Instant::now())),
        }
    }
}

impl Metrics {
    /// No series of a namespace yet. Must be called within a tokio runtime, whose clock times the age
    /// of the configuration.
    ///
    /// # Panics
    /// When two metrics have one name, which would be a bug here.
    pub fn new(version: &str) -> Self {
        let making = SeriesRegistry(Registry::new());
        let (namespace, lease) = (&["namespace"][..], &["namespace", "cause"][..]);
        let build = making.gauges("fencepost_build_info", "1; the label says what runs.", &["version"]);
        build.with_label_values(&[version]).set(1);
        let requests = making.counters(
            "fencepost_requests_total",
            "Finished calls by the reason of their answer: OK, or why not. A stream counts when it is opened.",
            &["namespace", "method", "reason"],
        );
        let request_seconds = making.seconds(
            "fencepost_request_duration_seconds",
            "How long calls took, an Acquire with its wait.",
            &["namespace", "method"],
        );
        let unknown = Arc::new(NamespaceCalls::new(UNKNOWN, requests.clone(), request_seconds.clone()));
        let families = Families {
            requests,
            request_seconds,
            wait_seconds: making.seconds(
                "fencepost_acquire_wait_seconds",
                "From an Acquire's arrival to the sending of the step that granted it.",
                namespace,
            ),
            hand_off_seconds: making.seconds(
                "fencepost_hand_off_seconds",
                "From a release over this server to the grant to a waiter of this server.",
                namespace,
            ),
            held: making.gauges(
                "fencepost_leases_held",
                "Leases that this server granted or renewed last, not released over it, whose TTL is not over.",
                namespace,
            ),
            waiting: making.gauges(
                "fencepost_waiting",
                "Acquire calls that wait at this server.",
                namespace,
            ),
            granted: making.counters(
                "fencepost_leases_granted_total",
                "Leases granted by this server.",
                namespace,
            ),
            ended: making.counters(
                "fencepost_leases_ended_total",
                "Leases ended by a step of this server: released, forced, or taken back because nobody got the answer.",
                lease,
            ),
            expired: making.counters(
                "fencepost_leases_expired_total",
                "Leases that this server granted or renewed last and whose TTL then ran out. What another server \
                 renewed or released since counts here too.",
                namespace,
            ),
            lost: making.counters(
                "fencepost_leases_lost_total",
                "Renew or Release calls that found their lease gone, by the cause of its end.",
                lease,
            ),
            regressions: making.counters(
                "fencepost_token_regressions_total",
                "Exclusive grants whose fencing token was not above the last one of their lock. Must be 0.",
                namespace,
            ),
            over_limit: making.counters(
                "fencepost_over_limit_total",
                "Calls refused by a limit of their caller (identity) or of their namespace.",
                &["namespace", "scope", "limit"],
            ),
            step_seconds: making.seconds(
                "fencepost_backend_request_duration_seconds",
                "How long steps of the store took.",
                &["namespace", "backend", "operation"],
            ),
            step_errors: making.counters(
                "fencepost_backend_errors_total",
                "Steps of the store that failed, by what was wrong with the store.",
                &["namespace", "backend", "kind"],
            ),
            healthy: making.gauges(
                "fencepost_backend_healthy",
                "1 while the store serves; 0 while it is away or in quarantine.",
                &["namespace", "backend", "guarantee"],
            ),
            quarantine: making.put(GaugeVec::new(
                Opts::new(
                    "fencepost_quarantine_left_seconds",
                    "For how long the store is not trusted with grants yet.",
                ),
                namespace,
            )),
            server: making.server(),
            unknown,
            registry: making.0,
        };
        Self {
            inner: Arc::new(families),
        }
    }

    /// What concerns the server as a whole.
    pub fn server(&self) -> &ServerMetrics {
        &self.inner.server
    }

    /// The calls that concern no namespace that is served.
    pub fn unknown(&self) -> &Arc<NamespaceCalls> {
        &self.inner.unknown
    }

    /// Counts a call that a limit refused, by words that the house knows.
    pub fn over_limit(&self, namespace: &Namespace, scope: &'static str, limit: &'static str) {
        let labels = [namespace.as_str(), scope, limit];
        self.inner.over_limit.with_label_values(&labels).inc();
    }

    /// The series of a namespace, from now on to be seen.
    pub fn namespace(&self, namespace: &Namespace, capabilities: Capabilities) -> Arc<NamespaceMetrics> {
        let (all, name) = (&*self.inner, namespace.as_str());
        let calls = NamespaceCalls::new(name, all.requests.clone(), all.request_seconds.clone());
        Arc::new(NamespaceMetrics {
            name: name.to_owned(),
            calls: Arc::new(calls),
            wait_seconds: all.wait_seconds.with_label_values(&[name]),
            hand_off_seconds: all.hand_off_seconds.with_label_values(&[name]),
            held: all.held.with_label_values(&[name]),
            waiting: all.waiting.with_label_values(&[name]),
            granted: all.granted.with_label_values(&[name]),
            expired: all.expired.with_label_values(&[name]),
            regressions: all.regressions.with_label_values(&[name]),
            healthy: all
                .healthy
                .with_label_values(&[name, capabilities.kind, capabilities.guarantee.word()]),
            quarantine: all.quarantine.with_label_values(&[name]),
            capabilities,
            all: self.clone(),
        })
    }

    /// Everything, as Prometheus reads it.
    ///
    /// # Errors
    /// When a series cannot be written, which would be a bug here.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        self.inner.server.observe_age();
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.inner.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// What is measured of one namespace.
#[derive(Debug)]
pub struct NamespaceMetrics {
    name: String,
    calls: Arc<NamespaceCalls>,
    wait_seconds: Histogram,
    hand_off_seconds: Histogram,
    held: IntGauge,
    waiting: IntGauge,
    granted: IntCounter,
    expired: IntCounter,
    regressions: IntCounter,
    healthy: IntGauge,
    quarantine: Gauge,
    capabilities: Capabilities,
    all: Metrics,
}

impl NamespaceMetrics {
    /// Its calls.
    pub fn calls(&self) -> &Arc<NamespaceCalls> {
        &self.calls
    }

    /// Notes how the store is and how many calls wait; asked for at each look.
    pub fn observe(&self, health: &Health, waiting: usize) {
        self.healthy.set(i64::from(*health == Health::Serving));
        let left = match health {
            Health::Quarantined { until, .. } => until.saturating_duration_since(Instant::now()),
            Health::Serving | Health::Unavailable { .. } => Duration::ZERO,
        };
        self.quarantine.set(left.as_secs_f64());
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Lets go of the gauges of a namespace that is no longer served; what was counted stays.
    pub fn retire(&self) {
        let all = &*self.all.inner;
        let kind = [self.name.as_str(), self.capabilities.kind, self.capabilities.guarantee.word()];
        // Each fails only for a series that is not there.
        let _ = all.healthy.remove_label_values(&kind);
        for gauges in [&all.held, &all.waiting] {
            let _ = gauges.remove_label_values(&kind[..1]);
        }
        let _ = all.quarantine.remove_label_values(&kind[..1]);
    }
}
