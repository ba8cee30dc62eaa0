//! What observes a call or the command of a session: its metrics, its line in the log, its trace, and what catches its
//! panic.
//!
//! The trace begins when the caller is known, because a caller's `traceparent` can decide that its calls are traced, and
//! unauthenticated callers could fill the collector. Health and reflection, which may be open to anonymous callers, are not
//! traced.

use http::HeaderMap;
use tonic::{Code, Status};

use super::call_metrics::{self, end_of};
use super::catch_panic::caught;
use super::request_log;
use crate::metrics::calls::Method;
use crate::telemetry::traces;
use crate::traces::Traced;

/// What observes a call. If it is dropped before [`Self::ended`], the call was cancelled.
pub(super) struct Observed {
    metrics: Option<call_metrics::Call>,
    log: request_log::Call,
    traced: Option<Traced>,
}

impl Observed {
    /// Begins a call.
    pub(super) fn begin(metrics: Option<call_metrics::Call>, log: request_log::Call) -> Self {
        let traced = None;
        Self { metrics, log, traced }
    }

    /// Begins the trace of a call of the method at this path, if it is sampled.
    pub(super) fn trace(&mut self, path: &str, headers: &HeaderMap) {
        let method = Method::of(path);
        let traced = method.is_own().then(|| traces::call(method.as_str(), headers));
        self.traced = traced.flatten();
        if let Some(traced) = &self.traced {
            self.log.traced(traced.id());
        }
    }

    /// Polls the call, or returns the status of its panic.
    pub(super) fn polled<T>(&mut self, poll: impl FnOnce() -> T) -> Result<T, Status> {
        let (traced, log) = (&self.traced, &self.log);
        let poll = || {
            caught(|| match traced {
                Some(traced) => traced.enter(poll),
                None => poll(),
            })
        };
        let poll = || log.polled(poll);
        match &mut self.metrics {
            Some(metrics) => metrics.polled(poll),
            None => poll(),
        }
    }

    /// Ends the call with the status of its failure. Returns its entry in the log, because the status of a stream follows
    /// its messages.
    pub(super) fn ended(mut self, status: Option<&Status>) -> request_log::Call {
        if self.metrics.is_some() || self.traced.is_some() {
            let (code, reason) = end_of(status);
            if let Some(metrics) = self.metrics {
                metrics.ended(&reason);
            }
            if let Some(traced) = &self.traced {
                let request_log::Subject {
                    namespace,
                    lock,
                    identity,
                    ..
                } = self.log.subject();
                let id = Some(self.log.name().to_string());
                let named = [
                    ("namespace", namespace),
                    ("fencepost.lock", lock),
                    ("fencepost.identity", identity),
                    ("fencepost.request_id", id),
                ];
                traced.describe(named.into_iter().filter_map(|(key, value)| Some((key, value?))));
                let is_fault = matches!(code, Code::Internal | Code::Unavailable | Code::Unknown);
                traced.ended(code as i32, &reason, is_fault);
            }
        }
        self.log.ended(status);
        self.log
    }
}
