//! Counts and times each call.
//!
//! The outermost layer, so that it observes the answer as the caller receives it. The namespace of
//! a call is recorded where the table of namespaces is read.

use std::time::Instant;

use http::{Request, Response};
use tonic::{Code, Status};

use super::layer::{Answered, Layer, LayerCall};
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

impl Layer for CallMetrics {
    type Call = Option<Call>;

    fn begin<R>(&self, request: &mut Request<R>) -> Self::Call {
        self.begin_at(request.uri().path())
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

impl<B> LayerCall<B> for Call {
    type Body = B;

    fn poll<E>(&mut self, poll: impl FnOnce() -> Answered<B, E>) -> Answered<B, E> {
        self.polled(poll)
    }

    fn answered(self, response: Response<B>) -> Response<B> {
        self.ended(&end(&response).1);
        response
    }
}

/// The code and the reason of a status.
pub(super) fn end_of(status: Option<&Status>) -> (Code, String) {
    let Some(status) = status else {
        return (Code::Ok, plain_label(Code::Ok).into());
    };
    let reason = status::reason(status).unwrap_or_else(|| plain_label(status.code()).into());
    (status.code(), reason)
}

/// The code and the reason of an answer. Without a status in its headers it is a success or the
/// start of a stream.
pub(super) fn end<B>(response: &Response<B>) -> (Code, String) {
    let Some(code) = response.headers().get(Status::GRPC_STATUS) else {
        return (Code::Ok, "OK".into());
    };
    let code = Code::from_bytes(code.as_bytes());
    let reason = response.extensions().get::<Status>().and_then(status::reason);
    (code, reason.unwrap_or_else(|| plain_label(code).into()))
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
