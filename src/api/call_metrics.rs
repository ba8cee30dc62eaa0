//! Counts and times each call. Its namespace is recorded where the table of namespaces is read.

use std::time::Instant;

use tonic::{Code, Status};

use super::status;
use crate::metrics::Metrics;
use crate::metrics::calls::{Method, NamespaceLabel, Reason};

/// Counts and times calls if there are metrics.
#[derive(Debug, Clone)]
pub(super) struct CallMetrics(pub(super) Option<Metrics>);

impl CallMetrics {
    /// Begins a call of the method at this path.
    pub(super) fn begin_at(&self, path: &str) -> Option<Call> {
        self.0.clone().map(|metrics| Call {
            metrics,
            method: Method::of(path),
            began: Instant::now(),
            label: NamespaceLabel::default(),
            reason: Reason::CANCELLED,
        })
    }
}

/// A call in the metrics; dropping it counts it.
#[derive(Debug)]
pub(super) struct Call {
    metrics: Metrics,
    method: Method,
    began: Instant,
    label: NamespaceLabel,
    /// How it ended; [`Reason::CANCELLED`] while it is running.
    reason: Reason,
}

impl Drop for Call {
    fn drop(&mut self) {
        let namespace = self.label.found().unwrap_or(self.metrics.unknown());
        namespace.ended(self.method, self.reason, self.began.elapsed());
    }
}

impl Call {
    /// Polls the call, and notes its namespace.
    pub(super) fn polled<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        self.label.polled(poll)
    }

    /// Ends the call for this reason.
    pub(super) fn ended(mut self, reason: &str) {
        self.reason = Reason::of(reason);
    }
}

/// The code and the reason of a failure, or of a success or the start of a stream.
pub(super) fn end_of(status: Option<&Status>) -> (Code, String) {
    let Some(status) = status else {
        return (Code::Ok, plain_label(Code::Ok).into());
    };
    let reason = status::reason(status).unwrap_or_else(|| plain_label(status.code()).into());
    (status.code(), reason)
}

/// The label of an answer without a reason of this service.
fn plain_label(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::Unauthenticated => "UNAUTHENTICATED",
        Code::Unavailable => "UNAVAILABLE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        _ => "OTHER",
    }
}
