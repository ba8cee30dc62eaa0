//! The metrics of a server, in the Prometheus text format.
//!
//! Labels are bounded: namespaces are those of the configuration (else `unknown`), methods those of the API, reasons
//! those of its responses. Names of locks, owners and identities are never labels. Calls cache their series, so that
//! counting only touches atomics.
//!
//! [`Metrics`] holds all metrics of a server, and [`NamespaceMetrics`] those of one namespace, in which its calls
//! ([`calls`]) and the operations of its backend ([`Measured`]) are counted.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};
use tokio::time::Instant;

use crate::backend::{Capabilities, Health};
use crate::name::Namespace;

pub mod calls;
mod lease_observer;
mod measured;

pub use self::calls::NamespaceCalls;
pub use self::measured::Measured;

/// The `namespace` label of calls that concern no namespace, or one that is not served.
pub const UNKNOWN: &str = "unknown";
/// The `Content-Type` of the text format.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Histogram buckets in seconds, from 0.5 ms, which only in-memory operations reach, to 300 s for long waits.
const SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// All metrics of a server. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    inner: Arc<Families>,
}

/// The metric families of a server.
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

/// The metrics of the server as a whole.
#[derive(Debug, Clone)]
pub struct ServerMetrics {
    /// Open connections of the API.
    pub connections: IntGauge,
    /// Connections closed because there were too many.
    pub connections_refused: IntCounter,
    /// Connections and streams that were closed because their client did not read its responses.
    pub stalled: IntCounter,
    /// Connections that were closed because their client violated HTTP/2.
    pub protocol_errors: IntCounter,
    /// TLS handshakes that did not complete.
    pub handshakes_refused: Refusals,
    /// Calls that were not authenticated.
    pub unauthenticated: Refusals,
    /// 1 while the server drains.
    pub draining: IntGauge,
    /// Configurations applied while the server ran.
    pub reloads: IntCounter,
    /// 1 while the last changed configuration is rejected.
    pub reload_failed: IntGauge,
    config_age: Gauge,
    applied: Arc<Mutex<Instant>>,
}

/// A counter of refusals, by cause.
#[derive(Debug, Clone)]
pub struct Refusals(IntCounterVec);

impl Refusals {
    /// Creates the series of these causes with the value 0, so that the first refusal is visible as an increase.
    pub fn expect(&self, causes: impl IntoIterator<Item = &'static str>) {
        causes
            .into_iter()
            .for_each(|cause| drop(self.0.with_label_values(&[cause])));
    }

    /// Counts a refusal.
    pub fn count(&self, cause: &'static str) {
        self.0.with_label_values(&[cause]).inc();
    }
}

impl ServerMetrics {
    /// Records that a changed configuration was applied.
    pub fn reloaded(&self) {
        self.reloads.inc();
        self.reload_failed.set(0);
        *self.applied.lock() = Instant::now();
    }

    fn observe_age(&self) {
        let applied = *self.applied.lock();
        self.config_age.set(applied.elapsed().as_secs_f64());
    }
}

/// Registers metrics. It panics for a duplicate or invalid name, which is a bug that every test would find.
struct SeriesRegistry(Registry);

impl SeriesRegistry {
    fn put<C: Collector + Clone + 'static>(&self, metric: prometheus::Result<C>) -> C {
        let metric = metric.expect("a metric's name is valid");
        self.0
            .register(Box::new(metric.clone()))
            .expect("each metric is registered once");
        metric
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
                "Connections closed because there were too many, or too many unauthenticated ones.",
            ),
            stalled: counter(
                "fencepost_stalled_total",
                "Connections and streams that were closed because their client did not read responses for too long.",
            ),
            protocol_errors: counter(
                "fencepost_protocol_errors_total",
                "Connections that were closed because their client violated HTTP/2.",
            ),
            handshakes_refused: Refusals(self.counters(
                "fencepost_handshakes_refused_total",
                "TLS handshakes that failed, took too long (timeout), or were the oldest of too many (evicted).",
                &["cause"],
            )),
            unauthenticated: Refusals(self.counters(
                "fencepost_unauthenticated_total",
                "Calls that were not authenticated: no credentials, invalid ones, or expired ones.",
                &["cause"],
            )),
            draining: gauge("fencepost_draining", "1 while the server drains."),
            reloads: counter(
                "fencepost_config_reloads_total",
                "Changed configurations that were applied while the server ran.",
            ),
            reload_failed: gauge(
                "fencepost_config_reload_failed",
                "1 while the last changed configuration is rejected and the previous one stays in force.",
            ),
            config_age: self.put(Gauge::new(
                "fencepost_config_age_seconds",
                "The age of the configuration in force, in seconds.",
            )),
            applied: Arc::new(Mutex::new(Instant::now())),
        }
    }
}

impl Metrics {
    /// Creates the metrics, without any namespace. Must be called within a tokio runtime, because the age of the
    /// configuration is measured on its clock.
    ///
    /// # Panics
    /// When two metrics have the same name, which would be a bug.
    pub fn new(version: &str) -> Self {
        let registry = SeriesRegistry(Registry::new());
        let (namespace, lease) = (&["namespace"][..], &["namespace", "cause"][..]);
        let build = registry.gauges(
            "fencepost_build_info",
            "1; the label is the version that runs.",
            &["version"],
        );
        build.with_label_values(&[version]).set(1);
        let requests = registry.counters(
            "fencepost_requests_total",
            "Finished calls by reason: OK, or the reason of the error. A stream counts when it is opened.",
            &["namespace", "method", "reason"],
        );
        let request_seconds = registry.seconds(
            "fencepost_request_duration_seconds",
            "The duration of calls; that of an Acquire includes its wait.",
            &["namespace", "method"],
        );
        let unknown = Arc::new(NamespaceCalls::new(UNKNOWN, requests.clone(), request_seconds.clone()));
        let families = Families {
            requests,
            request_seconds,
            wait_seconds: registry.seconds(
                "fencepost_acquire_wait_seconds",
                "The time from an Acquire's arrival until the store operation that granted it was sent.",
                namespace,
            ),
            hand_off_seconds: registry.seconds(
                "fencepost_hand_off_seconds",
                "The time from a release through this server to the grant to a waiter of this server.",
                namespace,
            ),
            held: registry.gauges(
                "fencepost_leases_held",
                "Leases that this server granted or renewed last, that were not released through it, and whose TTL has \
                 not expired.",
                namespace,
            ),
            waiting: registry.gauges(
                "fencepost_acquires_waiting",
                "Acquire calls that wait at this server.",
                namespace,
            ),
            granted: registry.counters(
                "fencepost_leases_granted_total",
                "Leases granted by this server.",
                namespace,
            ),
            ended: registry.counters(
                "fencepost_leases_ended_total",
                "Leases ended by this server: released, forced, or taken back because the response was not delivered.",
                lease,
            ),
            expired: registry.counters(
                "fencepost_leases_expired_total",
                "Leases that this server granted or renewed last and whose TTL then expired. A lease that another \
                 server renewed or released since is counted here too.",
                namespace,
            ),
            lost: registry.counters(
                "fencepost_leases_lost_total",
                "Renew or Release calls whose lease had ended, by the cause of its end.",
                lease,
            ),
            regressions: registry.counters(
                "fencepost_token_regressions_total",
                "Exclusive grants whose fencing token was not above the last one of their lock. Must be 0.",
                namespace,
            ),
            over_limit: registry.counters(
                "fencepost_over_limit_total",
                "Calls refused by a limit of their caller (identity) or of their namespace.",
                &["namespace", "scope", "limit"],
            ),
            step_seconds: registry.seconds(
                "fencepost_backend_request_duration_seconds",
                "The duration of store operations.",
                &["namespace", "backend", "operation"],
            ),
            step_errors: registry.counters(
                "fencepost_backend_errors_total",
                "Store operations that failed, by the kind of error.",
                &["namespace", "backend", "kind"],
            ),
            healthy: registry.gauges(
                "fencepost_backend_healthy",
                "1 while the store serves; 0 while it is unavailable or in quarantine.",
                &["namespace", "backend", "guarantee"],
            ),
            quarantine: registry.put(GaugeVec::new(
                Opts::new(
                    "fencepost_quarantine_left_seconds",
                    "The time until the store leaves quarantine and grants locks, in seconds.",
                ),
                namespace,
            )),
            server: registry.server(),
            unknown,
            registry: registry.0,
        };
        Self {
            inner: Arc::new(families),
        }
    }

    /// The metrics of the server as a whole.
    pub fn server(&self) -> &ServerMetrics {
        &self.inner.server
    }

    /// Calls that concern no served namespace.
    pub fn unknown(&self) -> &Arc<NamespaceCalls> {
        &self.inner.unknown
    }

    /// Counts a call that a limit refused. The labels have a fixed set of values.
    pub fn over_limit(&self, namespace: &Namespace, scope: &'static str, limit: &'static str) {
        let labels = [namespace.as_str(), scope, limit];
        self.inner.over_limit.with_label_values(&labels).inc();
    }

    /// The metrics of a namespace; its series are exported from this call on.
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
                .with_label_values(&[name, capabilities.kind, capabilities.guarantee.as_str()]),
            quarantine: all.quarantine.with_label_values(&[name]),
            capabilities,
            all: self.clone(),
        })
    }

    /// All metrics in the Prometheus text format.
    ///
    /// # Errors
    /// When a series cannot be encoded, which would be a bug.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        self.inner.server.observe_age();
        let mut text = Vec::new();
        TextEncoder::new().encode(&with_old_names(self.inner.registry.gather()), &mut text)?;
        Ok(text)
    }
}

/// Metrics that have another name since this release: the old name and the new one. The old name is exported too
/// until the next release.
const RENAMED: &[(&str, &str)] = &[("fencepost_waiting", "fencepost_acquires_waiting")];

/// Adds each renamed metric by its old name.
fn with_old_names(mut families: Vec<MetricFamily>) -> Vec<MetricFamily> {
    for (old, new) in RENAMED {
        let renamed = families.iter().find(|family| family.name() == *new).cloned();
        families.extend(renamed.map(|mut family| {
            family.set_name((*old).to_owned());
            family.set_help(format!(
                "Deprecated: use {new}; the next release does not export this name."
            ));
            family
        }));
    }
    families
}

/// The metrics of one namespace.
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
    /// The metrics of its calls.
    pub fn calls(&self) -> &Arc<NamespaceCalls> {
        &self.calls
    }

    /// Updates the health and the number of waiting calls. Called at each scrape.
    pub fn observe(&self, health: &Health, waiting: usize) {
        self.healthy.set(i64::from(*health == Health::Serving));
        let left = match health {
            Health::Quarantined { until, .. } => until.saturating_duration_since(Instant::now()),
            Health::Serving | Health::Unavailable { .. } => Duration::ZERO,
        };
        self.quarantine.set(left.as_secs_f64());
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Removes the gauges of a namespace that is no longer served; its counters stay.
    pub fn retire(&self) {
        let all = &*self.all.inner;
        let kind = [
            self.name.as_str(),
            self.capabilities.kind,
            self.capabilities.guarantee.as_str(),
        ];
        // Each removal fails only if the series does not exist.
        let _ = all.healthy.remove_label_values(&kind);
        for gauges in [&all.held, &all.waiting] {
            let _ = gauges.remove_label_values(&kind[..1]);
        }
        let _ = all.quarantine.remove_label_values(&kind[..1]);
    }
}
