//! The metrics of a server, in the Prometheus text format.
//!
//! Labels are bounded: namespaces are those of the configuration (else `unknown`), methods those of the API, reasons
//! those of its responses. Names of locks, owners and identities are never labels. Calls cache their series, so that
//! counting only touches atomics.
//!
//! [`Metrics`] holds all metrics of a server, and [`NamespaceMetrics`] those of one namespace, in which its calls
//! ([`calls`]) and the operations of its backend ([`OperationSeries`]) are counted.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
};
use tokio::time::Instant;

use crate::backend::{Capabilities, Health};
use crate::ledger::Ledger;
use crate::name::Namespace;
use crate::{supervisor, telemetry};

pub mod calls;
pub mod clients;
mod families;
mod last_tokens;
mod operation_series;

pub use self::calls::NamespaceCalls;
use self::clients::Clients;
use self::families::{LeaseFamilies, SeriesRegistry, StoreFamilies};
pub use self::operation_series::OperationSeries;

/// The `namespace` label of calls that concern no namespace, or one that is not served.
pub const UNKNOWN: &str = "unknown";
/// The `Content-Type` of the text format.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

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
    quota_refusals: IntCounterVec,
    leases: LeaseFamilies,
    stores: StoreFamilies,
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
    /// Connections that were closed because their client violated HTTP.
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
    /// When the certificate of the listeners expires; without a series if they have none.
    pub certificate_expiry: IntGaugeVec,
    /// Open sessions by their clients.
    pub clients: Clients,
    dropped_lines: IntCounterVec,
    task_restarts: IntCounterVec,
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

    /// Adds what this process has counted since the last scrape.
    fn observe(&self) {
        let applied = *self.applied.lock();
        self.config_age.set(applied.elapsed().as_secs_f64());
        let (lines, actions) = telemetry::take_dropped();
        self.dropped_lines.with_label_values(&["log"]).inc_by(lines);
        self.dropped_lines.with_label_values(&["audit"]).inc_by(actions);
        for (task, restarts) in supervisor::restarts() {
            let counted = self.task_restarts.with_label_values(&[task]);
            counted.inc_by(restarts.saturating_sub(counted.get()));
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
            quota_refusals: registry.counters(
                "fencepost_quota_refusals_total",
                "Calls refused by a limit of their caller (identity) or of their namespace.",
                &["namespace", "scope", "limit"],
            ),
            leases: registry.leases(),
            stores: registry.stores(),
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
    pub fn quota_refusal(&self, namespace: &Namespace, scope: &'static str, limit: &'static str) {
        let labels = [namespace.as_str(), scope, limit];
        self.inner.quota_refusals.with_label_values(&labels).inc();
    }

    /// The metrics of a namespace; its series are exported from this call on.
    pub fn namespace(&self, namespace: &Namespace, capabilities: Capabilities) -> Arc<NamespaceMetrics> {
        let (all, name) = (&*self.inner, namespace.as_str());
        let (leases, stores) = (&all.leases, &all.stores);
        let calls = NamespaceCalls::new(name, all.requests.clone(), all.request_seconds.clone());
        Arc::new(NamespaceMetrics {
            name: name.to_owned(),
            calls: Arc::new(calls),
            wait_seconds: leases.wait_seconds.with_label_values(&[name]),
            hand_off_seconds: leases.hand_off_seconds.with_label_values(&[name]),
            held: leases.held.with_label_values(&[name]),
            oldest: leases.oldest.with_label_values(&[name]),
            waiting: leases.waiting.with_label_values(&[name]),
            granted: leases.granted.with_label_values(&[name]),
            expired: leases.expired.with_label_values(&[name]),
            regressions: leases.regressions.with_label_values(&[name]),
            healthy: stores
                .healthy
                .with_label_values(&[name, capabilities.kind, capabilities.guarantee.as_str()]),
            quarantine: stores.quarantine.with_label_values(&[name]),
            capabilities,
            all: self.clone(),
        })
    }

    /// All metrics in the Prometheus text format.
    ///
    /// # Errors
    /// When a series cannot be encoded, which would be a bug.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        self.inner.server.observe();
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.inner.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// The metrics of one namespace.
#[derive(Debug)]
pub struct NamespaceMetrics {
    name: String,
    calls: Arc<NamespaceCalls>,
    wait_seconds: Histogram,
    hand_off_seconds: Histogram,
    held: IntGauge,
    oldest: Gauge,
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

    /// Updates the health, the number of waiting calls, and the leases of the ledger. Called at each scrape.
    pub fn observe(&self, health: &Health, waiting: usize, ledger: &Ledger) {
        let (expired, held) = ledger.counts();
        self.expired.inc_by(expired);
        self.held.set(i64::try_from(held).unwrap_or(i64::MAX));
        self.oldest.set(ledger.oldest().as_secs_f64());
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
        let Families { leases, stores, .. } = &*self.all.inner;
        let kind = [
            self.name.as_str(),
            self.capabilities.kind,
            self.capabilities.guarantee.as_str(),
        ];
        // Each removal fails only if the series does not exist.
        let _ = stores.healthy.remove_label_values(&kind);
        for gauges in [&leases.held, &leases.waiting] {
            let _ = gauges.remove_label_values(&kind[..1]);
        }
        for gauges in [&leases.oldest, &stores.quarantine] {
            let _ = gauges.remove_label_values(&kind[..1]);
        }
    }
}
