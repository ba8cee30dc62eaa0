//! The metric families, with their names and descriptions.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use tokio::time::Instant;

use super::clients::Clients;
use super::{Refusals, ServerMetrics};

/// Histogram buckets in seconds, from 0.5 ms, which only in-memory operations reach, to 300 s for long waits.
const SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// The families about locks and leases.
#[derive(Debug)]
pub(super) struct LeaseFamilies {
    pub(super) wait_seconds: HistogramVec,
    pub(super) hand_off_seconds: HistogramVec,
    pub(super) held: IntGaugeVec,
    pub(super) oldest: GaugeVec,
    pub(super) waiting: IntGaugeVec,
    pub(super) granted: IntCounterVec,
    pub(super) ended: IntCounterVec,
    pub(super) expired: IntCounterVec,
    pub(super) lost: IntCounterVec,
    pub(super) regressions: IntCounterVec,
}

/// The families about stores.
#[derive(Debug)]
pub(super) struct StoreFamilies {
    pub(super) step_seconds: HistogramVec,
    pub(super) step_errors: IntCounterVec,
    pub(super) healthy: IntGaugeVec,
    pub(super) quarantine: GaugeVec,
}

/// Registers metrics. It panics for a duplicate or invalid name, which is a bug that every test would find.
pub(super) struct SeriesRegistry(pub(super) Registry);

impl SeriesRegistry {
    fn put<C: Collector + Clone + 'static>(&self, metric: prometheus::Result<C>) -> C {
        let metric = metric.expect("a metric's name is valid");
        self.0
            .register(Box::new(metric.clone()))
            .expect("each metric is registered once");
        metric
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.put(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.put(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// A time of each namespace, in seconds.
    fn times(&self, name: &str, help: &str) -> GaugeVec {
        self.put(GaugeVec::new(Opts::new(name, help), &["namespace"]))
    }

    pub(super) fn seconds(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        self.put(HistogramVec::new(options, labels))
    }

    pub(super) fn leases(&self) -> LeaseFamilies {
        LeaseFamilies {
            wait_seconds: self.seconds(
                "fencepost_acquire_wait_seconds",
                "The time from an Acquire's arrival until the store operation that granted it was sent.",
                &["namespace"],
            ),
            hand_off_seconds: self.seconds(
                "fencepost_hand_off_seconds",
                "The time from a release through this server to the grant to a waiter of this server.",
                &["namespace"],
            ),
            held: self.gauges(
                "fencepost_leases_held",
                "Leases that this server granted or renewed last, that were not released through it, and whose TTL has \
                 not expired.",
                &["namespace"],
            ),
            oldest: self.times(
                "fencepost_oldest_lease_seconds",
                "The age of the oldest lease of fencepost_leases_held since this server granted it or renewed it first; 0 \
                 if none is held.",
            ),
            waiting: self.gauges(
                "fencepost_acquires_waiting",
                "Acquire calls that wait at this server.",
                &["namespace"],
            ),
            granted: self.counters(
                "fencepost_leases_granted_total",
                "Leases granted by this server.",
                &["namespace"],
            ),
            ended: self.counters(
                "fencepost_leases_ended_total",
                "Leases ended by this server: released, forced, or taken back because the response was not delivered.",
                &["namespace", "cause"],
            ),
            expired: self.counters(
                "fencepost_leases_expired_total",
                "Leases that this server granted or renewed last and whose TTL then expired. A lease that another \
                 server renewed or released since is counted here too.",
                &["namespace"],
            ),
            lost: self.counters(
                "fencepost_leases_lost_total",
                "Renew or Release calls whose lease had ended, by the cause of its end.",
                &["namespace", "cause"],
            ),
            regressions: self.counters(
                "fencepost_token_regressions_total",
                "Exclusive grants whose fencing token was not above the last one of their lock. Must be 0.",
                &["namespace"],
            ),
        }
    }

    pub(super) fn stores(&self) -> StoreFamilies {
        StoreFamilies {
            step_seconds: self.seconds(
                "fencepost_backend_request_duration_seconds",
                "The duration of store operations.",
                &["namespace", "backend", "operation"],
            ),
            step_errors: self.counters(
                "fencepost_backend_errors_total",
                "Store operations that failed, by the kind of error.",
                &["namespace", "backend", "kind"],
            ),
            healthy: self.gauges(
                "fencepost_backend_healthy",
                "1 while the store serves; 0 while it is unavailable or in quarantine.",
                &["namespace", "backend", "guarantee"],
            ),
            quarantine: self.times(
                "fencepost_quarantine_left_seconds",
                "The time until the store leaves quarantine and grants locks, in seconds.",
            ),
        }
    }

    pub(super) fn server(&self) -> ServerMetrics {
        let gauge = |name: &str, help: &str| self.put(IntGauge::new(name, help));
        let counter = |name: &str, help: &str| self.put(IntCounter::new(name, help));
        ServerMetrics {
            connections: gauge("fencepost_connections", "Open connections."),
            connections_refused: counter(
                "fencepost_connections_refused_total",
                "Connections closed because there were too many, or too many unauthenticated ones.",
            ),
            stalled: counter(
                "fencepost_slow_readers_closed_total",
                "Connections and streams that were closed because their client did not read responses for too long.",
            ),
            protocol_errors: counter(
                "fencepost_protocol_errors_total",
                "Connections that were closed because their client violated HTTP.",
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
            certificate_expiry: self.gauges(
                "fencepost_certificate_expiry_timestamp_seconds",
                "When the certificate that the listeners show expires, in seconds since 1970.",
                &[],
            ),
            clients: Clients::new(self.gauges(
                "fencepost_sessions",
                "Open sessions by the name and version that their clients say; other than the first 64 of these count as \
                 other.",
                &["client", "version"],
            )),
            dropped_lines: self.counters(
                "fencepost_log_lines_dropped_total",
                "Lines of the log that were dropped because standard error was not read (log), and admin actions that were \
                 refused because their audit line could not be queued (audit).",
                &["kind"],
            ),
            task_restarts: self.counters(
                "fencepost_task_restarts_total",
                "Background tasks that panicked, or ended before their time, and were started again.",
                &["task"],
            ),
            config_age: self.put(Gauge::new(
                "fencepost_config_age_seconds",
                "The age of the configuration in force, in seconds.",
            )),
            applied: Arc::new(Mutex::new(Instant::now())),
        }
    }
}
