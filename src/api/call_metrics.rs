//! What the metrics see of each call: its count and its time.
//!
//! Outermost, so that it sees the answer as the caller does. Which namespace a call concerns is noted on
//! the way, where the table of namespaces is looked into.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http::{Request, Response};
use tonic::{Code, Status};
use tower::Service;

use super::status;
use crate::metrics::Metrics;
use crate::metrics::calls::{Method, NamespaceLabel, Reason};

/// Counts and times the calls of `inner`.
#[derive(Debug, Clone)]
pub(super) struct CallMetrics<S> {
    inner: S,
    metrics: Option<Metrics>,
}

impl<S> CallMetrics<S> {
    /// Observes `inner` where there are metrics.
    pub(super) fn new(inner: S, metrics: Option<Metrics>) -> Self {
        Self { inner, metrics }
    }
}

impl<S, R, B> Service<Request<R>> for CallMetrics<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Unpin,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = CallMetricsFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let method = Method::of(request.uri().path());
        let call = self.metrics.clone().map(|metrics| Call {
            metrics,
            method,
            began: Instant::now(),
            place: NamespaceLabel::default(),
            reason: Reason::CANCELLED,
        });
        CallMetricsFuture {
            inner: self.inner.call(request),
            call,
        }
    }
}

/// A call in the metrics: dropping it counts it.
#[derive(Debug)]
struct Call {
    metrics: Metrics,
    method: Method,
    began: Instant,
    place: NamespaceLabel,
    /// How it ended; that its caller left while it is under way.
    reason: Reason,
}

impl Drop for Call {
    fn drop(&mut self) {
        let namespace = self.place.found().unwrap_or(self.metrics.unknown());
        namespace.ended(self.method, self.reason, self.began.elapsed());
    }
}

/// A call under way.
#[derive(Debug)]
pub(super) struct CallMetricsFuture<F> {
    inner: F,
    call: Option<Call>,
}

impl<F, B, E> Future for CallMetricsFuture<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { inner, call } = &mut *self;
        let Some(counted) = call else {
            return Pin::new(inner).poll(cx);
        };
        let answered = ready!(counted.place.polled(|| Pin::new(inner).poll(cx)));
        if let Ok(response) = &answered {
            counted.reason = Reason::of(&end(response).1);
        }
        // What is left of the call is the sending of its answer.
        drop(call.take());
        Poll::Ready(answered)
    }
}

/// The code and the reason of an answer. Without a status in its head it is an answer, or a stream that
/// begins.
pub(super) fn end<B>(response: &Response<B>) -> (Code, String) {
    let Some(code) = response.headers().get(Status::GRPC_STATUS) else {
        return (Code::Ok, "OK".into());
    };
    let code = Code::from_bytes(code.as_bytes());
    let reason = response.extensions().get::<Status>().and_then(status::reason);
    (code, reason.unwrap_or_else(|| bare(code).into()))
}

/// The label of an answer without a reason of this service.
fn bare(code: Code) -> &'static str {
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
