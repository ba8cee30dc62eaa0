//! What others see of each call: its count and time in the metrics, its span in the traces.
//!
//! Outermost, so that it sees the answer as the caller does. Which namespace a call concerns is noted on
//! the way, where the table of namespaces is looked into.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http::{Request, Response};
use tonic::{Code, Status};
use tower::Service;
use tracing::{Span, field, info_span};

use super::status;
use crate::metrics::Metrics;
use crate::metrics::calls::{Method, Place, Reason};
use crate::telemetry::{TRACED, traces};

/// Counts, times and traces the calls of `inner`.
#[derive(Debug, Clone)]
pub(super) struct Observed<S> {
    inner: S,
    metrics: Option<Metrics>,
}

impl<S> Observed<S> {
    /// Observes `inner`, and counts where there are metrics.
    pub(super) fn new(inner: S, metrics: Option<Metrics>) -> Self {
        Self { inner, metrics }
    }
}

impl<S, R, B> Service<Request<R>> for Observed<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Unpin,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = ObservedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let method = Method::of(request.uri().path());
        let span = span(method, &request);
        let call = self.metrics.clone().map(|metrics| Call {
            metrics,
            method,
            began: Instant::now(),
            place: Place::default(),
            reason: Reason::CANCELLED,
        });
        let inner = span.in_scope(|| self.inner.call(request));
        ObservedFuture { inner, call, span }
    }
}

/// The span of a call: nothing unless somebody traces.
fn span<R>(method: Method, request: &Request<R>) -> Span {
    let span = info_span!(
        target: TRACED,
        "call",
        otel.name = method.word(),
        otel.kind = "server",
        otel.status_code = field::Empty,
        rpc.system = "grpc",
        rpc.method = method.word(),
        rpc.grpc.status_code = field::Empty,
        fencepost.reason = field::Empty,
    );
    if !span.is_disabled() {
        traces::below_caller(&span, request.headers());
    }
    span
}

/// A call in the metrics: dropping it counts it.
#[derive(Debug)]
struct Call {
    metrics: Metrics,
    method: Method,
    began: Instant,
    place: Place,
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
pub(super) struct ObservedFuture<F> {
    inner: F,
    call: Option<Call>,
    span: Span,
}

impl<F, B, E> Future for ObservedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { inner, call, span } = &mut *self;
        let mut poll = || span.in_scope(|| Pin::new(&mut *inner).poll(cx));
        let polled = match call {
            Some(call) => call.place.polled(poll),
            None => poll(),
        };
        let answered = ready!(polled);
        if let Ok(response) = &answered
            && (call.is_some() || !span.is_disabled())
        {
            let (code, reason) = end(response);
            record(span, code, &reason);
            if let Some(call) = call {
                call.reason = Reason::of(&reason);
            }
        }
        // What is left of the call is the sending of its answer.
        drop(call.take());
        Poll::Ready(answered)
    }
}

fn record(span: &Span, code: Code, reason: &str) {
    if span.is_disabled() {
        return;
    }
    span.record("rpc.grpc.status_code", code as i32);
    span.record("fencepost.reason", reason);
    let is_fault = matches!(code, Code::Internal | Code::Unavailable | Code::Unknown);
    if is_fault {
        span.record("otel.status_code", "ERROR");
    }
}

/// The code and the reason of an answer. Without a status in its head it is an answer, or a stream that
/// begins.
fn end<B>(response: &Response<B>) -> (Code, String) {
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
