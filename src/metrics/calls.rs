//! Calls by namespace, method and reason.
//!
//! Which namespace a call concerns shows only deep in its handler, when its message is read. So who
//! polls a call opens a place for it ([`NamespaceLabel::polled`]), and whoever finds the namespace puts its
//! series there ([`concerns`]), on the same thread and within the same poll.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

/// The methods that are told apart, by their path; all others are the last one.
const METHODS: [(&str, &str); 14] = [
    ("/fencepost.v1.LockService/Acquire", "Acquire"),
    ("/fencepost.v1.LockService/Renew", "Renew"),
    ("/fencepost.v1.LockService/Release", "Release"),
    ("/fencepost.v1.LockService/GetLock", "GetLock"),
    ("/fencepost.v1.LockService/ListLocks", "ListLocks"),
    ("/fencepost.v1.LockService/WatchLock", "WatchLock"),
    ("/fencepost.v1.LockService/CheckToken", "CheckToken"),
    ("/fencepost.v1.AdminService/ForceRelease", "ForceRelease"),
    ("/fencepost.v1.AdminService/ListNamespaces", "ListNamespaces"),
    ("/fencepost.v1.AdminService/Admit", "Admit"),
    ("/grpc.health.v1.Health/Check", "HealthCheck"),
    ("/grpc.health.v1.Health/Watch", "HealthWatch"),
    (
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "Reflection",
    ),
    ("", "other"),
];

/// The reasons that are told apart; all others are the last one.
const REASONS: [&str; 25] = [
    "OK",
    "CANCELLED",
    "LOCK_HELD",
    "WAIT_TIMEOUT",
    "SUPERSEDED",
    "LEASE_LOST",
    "UNSUPPORTED",
    "ALREADY_RELEASED",
    "LIMIT_MISMATCH",
    "INVALID_FIELD",
    "NAMESPACE_NOT_FOUND",
    "QUEUE_FULL",
    "OVERLOADED",
    "BACKEND_UNAVAILABLE",
    "NO_QUORUM",
    "BACKEND_QUARANTINED",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "DRAINING",
    "INTERNAL",
    "UNIMPLEMENTED",
    "NOT_FOUND",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "OTHER",
];

/// A method that is told apart from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method(usize);

impl Method {
    /// The method at a path.
    pub fn of(path: &str) -> Self {
        let other = METHODS.len() - 1;
        Self(METHODS.iter().position(|(known, _)| *known == path).unwrap_or(other))
    }

    /// Its name as a label.
    pub fn word(self) -> &'static str {
        METHODS[self.0].1
    }

    /// Whether it is one of this service's own, and not of health, of reflection or of nobody.
    pub fn is_own(self) -> bool {
        METHODS[self.0].0.starts_with("/fencepost.")
    }
}

/// How a call ended, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(usize);

impl Reason {
    /// It was answered.
    pub const OK: Self = Self(0);
    /// Its caller left.
    pub const CANCELLED: Self = Self(1);
    /// It met a bug.
    const BUG: Self = Self(19);

    /// The reason of an answer.
    pub fn of(word: &str) -> Self {
        let other = REASONS.len() - 1;
        Self(REASONS.iter().position(|known| *known == word).unwrap_or(other))
    }
}

/// The series of one method: made when its first call ends that way.
#[derive(Debug, Default)]
struct OfMethod {
    reasons: [OnceLock<IntCounter>; REASONS.len()],
    seconds: OnceLock<Histogram>,
}

/// The calls of one namespace.
#[derive(Debug)]
pub struct NamespaceCalls {
    namespace: String,
    requests: IntCounterVec,
    seconds: HistogramVec,
    methods: [OfMethod; METHODS.len()],
}

impl NamespaceCalls {
    /// No call yet. Bugs are to be seen before there is one, so that the first shows as a rise.
    pub(super) fn new(namespace: &str, requests: IntCounterVec, seconds: HistogramVec) -> Self {
        let calls = Self {
            namespace: namespace.to_owned(),
            requests,
            seconds,
            methods: Default::default(),
        };
        for method in 0..METHODS.len() {
            calls.counter(Method(method), Reason::BUG);
        }
        calls
    }

    fn counter(&self, method: Method, reason: Reason) -> &IntCounter {
        let labels = [self.namespace.as_str(), method.word(), REASONS[reason.0]];
        self.methods[method.0].reasons[reason.0].get_or_init(|| self.requests.with_label_values(&labels))
    }

    /// Counts a call that ended after `took`.
    pub fn ended(&self, method: Method, reason: Reason, took: Duration) {
        self.counter(method, reason).inc();
        let labels = [self.namespace.as_str(), method.word()];
        let seconds = &self.methods[method.0].seconds;
        let seconds = seconds.get_or_init(|| self.seconds.with_label_values(&labels));
        seconds.observe(took.as_secs_f64());
    }
}

thread_local! {
    /// The place of the call that is polled on this thread, while one is.
    static POLLED: RefCell<Option<NamespaceLabel>> = const { RefCell::new(None) };
}

/// Where the namespace of a call is noted.
#[derive(Debug, Default)]
pub struct NamespaceLabel(Option<Arc<NamespaceCalls>>);

impl NamespaceLabel {
    /// Polls the call to whom this place belongs.
    pub fn polled<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        let outer = POLLED.replace(Some(std::mem::take(self)));
        let polled = poll();
        *self = POLLED.replace(outer).unwrap_or_default();
        polled
    }

    /// The namespace that was found, if any.
    pub fn found(&self) -> Option<&Arc<NamespaceCalls>> {
        self.0.as_ref()
    }
}

/// Notes which namespace the call concerns that is polled now, if one is.
pub fn concerns(namespace: &Arc<NamespaceCalls>) {
    POLLED.with_borrow_mut(|place| {
        if let Some(place) = place {
            place.0 = Some(Arc::clone(namespace));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn a_call_is_counted_where_its_namespace_was_found() {
        let metrics = Metrics::new("0");
        let (mut place, mut other) = (NamespaceLabel::default(), NamespaceLabel::default());
        place.polled(|| {
            other.polled(|| {});
            concerns(metrics.unknown());
        });
        assert!(other.found().is_none(), "a call within a call");
        let found = place.found().expect("the namespace");
        found.ended(
            Method::of("/fencepost.v1.LockService/Renew"),
            Reason::of("LEASE_LOST"),
            Duration::ZERO,
        );
        found.ended(Method::of("/elsewhere"), Reason::of("NEW"), Duration::ZERO);
        concerns(metrics.unknown());
        other.polled(|| {});
        assert!(other.found().is_none(), "no call was polled");
        assert_eq!(Reason::of("INTERNAL"), Reason::BUG);
        let text = String::from_utf8(metrics.text().expect("a text")).expect("UTF-8");
        for series in [
            r#"fencepost_requests_total{method="Renew",namespace="unknown",reason="LEASE_LOST"} 1"#,
            r#"fencepost_requests_total{method="other",namespace="unknown",reason="OTHER"} 1"#,
            r#"fencepost_requests_total{method="Acquire",namespace="unknown",reason="INTERNAL"} 0"#,
            r#"fencepost_request_duration_seconds_count{method="Renew",namespace="unknown"} 1"#,
        ] {
            assert!(text.contains(series), "{series} in {text}");
        }
    }
}
