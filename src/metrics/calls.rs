//! Metrics of calls by namespace, method and reason.
//!
//! The namespace of a call is known only in its handler, after its message was decoded. The code that polls a call
//! therefore installs a label for it ([`NamespaceLabel::polled`]). The handler sets the label ([`count_for`]) on the
//! same thread, within the same poll.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

use crate::rpc::{METHODS, reason};

/// The methods that have a label beside those of the services, by path; all others share the last one.
const OTHER_METHODS: [(&str, &str); 4] = [
    ("/grpc.health.v1.Health/Check", "HealthCheck"),
    ("/grpc.health.v1.Health/Watch", "HealthWatch"),
    (
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "Reflection",
    ),
    ("", "other"),
];
const METHOD_COUNT: usize = METHODS.len() + OTHER_METHODS.len();

/// The ends of calls that have a label beside the reasons of the services; all others share the last one.
const OTHER_REASONS: [&str; 7] = [
    "OK",
    "CANCELLED",
    "UNIMPLEMENTED",
    "NOT_FOUND",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "OTHER",
];
const REASON_COUNT: usize = OTHER_REASONS.len() + reason::ALL.len();

/// A method, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method(usize);

impl Method {
    /// The method with this path.
    pub fn of(path: &str) -> Self {
        let own = METHODS.iter().map(|method| method.path);
        let mut all = own.chain(OTHER_METHODS.iter().map(|(path, _)| *path));
        Self(all.position(|known| known == path).unwrap_or(METHOD_COUNT - 1))
    }

    /// The value of the label.
    pub fn as_str(self) -> &'static str {
        match METHODS.get(self.0) {
            Some(own) => own.name,
            None => OTHER_METHODS[self.0 - METHODS.len()].1,
        }
    }

    /// Whether it is a method of Fencepost, not of health or reflection, and not unknown.
    pub fn is_own(self) -> bool {
        self.0 < METHODS.len()
    }
}

/// The outcome of a call, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(usize);

impl Reason {
    /// It succeeded.
    pub const OK: Self = Self(0);
    /// Its caller cancelled it.
    pub const CANCELLED: Self = Self(1);
    /// The label of a reason.
    pub fn of(word: &str) -> Self {
        let mut all = OTHER_REASONS.iter().chain(reason::ALL);
        Self(all.position(|known| *known == word).unwrap_or(OTHER_REASONS.len() - 1))
    }

    fn as_str(self) -> &'static str {
        match OTHER_REASONS.get(self.0) {
            Some(word) => word,
            None => reason::ALL[self.0 - OTHER_REASONS.len()],
        }
    }
}

/// The series of one method, created when they are first used.
#[derive(Debug, Default)]
struct MethodSeries {
    reasons: [OnceLock<IntCounter>; REASON_COUNT],
    seconds: OnceLock<Histogram>,
}

/// The calls of one namespace.
#[derive(Debug)]
pub struct NamespaceCalls {
    namespace: String,
    requests: IntCounterVec,
    seconds: HistogramVec,
    methods: [MethodSeries; METHOD_COUNT],
}

impl NamespaceCalls {
    /// Creates the series. Internal errors start at 0, so that the first one is visible as an increase.
    pub(super) fn new(namespace: &str, requests: IntCounterVec, seconds: HistogramVec) -> Self {
        let calls = Self {
            namespace: namespace.to_owned(),
            requests,
            seconds,
            methods: Default::default(),
        };
        for method in 0..METHOD_COUNT {
            calls.counter(Method(method), Reason::of(reason::INTERNAL));
        }
        calls
    }

    fn counter(&self, method: Method, reason: Reason) -> &IntCounter {
        let labels = [self.namespace.as_str(), method.as_str(), reason.as_str()];
        self.methods[method.0].reasons[reason.0].get_or_init(|| self.requests.with_label_values(&labels))
    }

    /// Counts a call that took `took`.
    pub fn ended(&self, method: Method, reason: Reason, took: Duration) {
        self.counter(method, reason).inc();
        let labels = [self.namespace.as_str(), method.as_str()];
        let seconds = &self.methods[method.0].seconds;
        let seconds = seconds.get_or_init(|| self.seconds.with_label_values(&labels));
        seconds.observe(took.as_secs_f64());
    }
}

thread_local! {
    /// The label of the call that is polled on this thread, if any.
    static POLLED: RefCell<Option<NamespaceLabel>> = const { RefCell::new(None) };
}

/// The namespace of a call, once it is known.
#[derive(Debug, Default)]
pub struct NamespaceLabel(Option<Arc<NamespaceCalls>>);

impl NamespaceLabel {
    /// Polls the call of this label.
    pub fn polled<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        let outer = POLLED.replace(Some(std::mem::take(self)));
        let polled = poll();
        *self = POLLED.replace(outer).unwrap_or_default();
        polled
    }

    /// The namespace, if it was set.
    pub fn found(&self) -> Option<&Arc<NamespaceCalls>> {
        self.0.as_ref()
    }
}

/// Sets the namespace of the call that this thread polls, if any.
pub fn count_for(namespace: &Arc<NamespaceCalls>) {
    POLLED.with_borrow_mut(|label| {
        if let Some(label) = label {
            label.0 = Some(Arc::clone(namespace));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::rpc::path;

    #[tokio::test]
    async fn a_call_is_counted_in_the_namespace_that_its_handler_set() {
        let metrics = Metrics::new("0");
        let (mut label, mut other) = (NamespaceLabel::default(), NamespaceLabel::default());
        label.polled(|| {
            other.polled(|| {});
            count_for(metrics.unknown());
        });
        assert!(other.found().is_none(), "the label of a nested call");
        let found = label.found().expect("the namespace");
        found.ended(Method::of(path::RENEW), Reason::of(reason::LEASE_LOST), Duration::ZERO);
        found.ended(Method::of("/elsewhere"), Reason::of("NEW"), Duration::ZERO);
        count_for(metrics.unknown());
        other.polled(|| {});
        assert!(other.found().is_none(), "no call was polled");
        assert_eq!(
            (Reason::of("OK"), Reason::of("CANCELLED")),
            (Reason::OK, Reason::CANCELLED)
        );
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
