//! Traces each call: its span is the parent of the spans of its store steps.
//!
//! Inside `authenticate`, because a caller's `traceparent` can decide that its calls are traced,
//! and unauthenticated callers could fill the collector. Health and reflection, which may be open
//! to anonymous callers, are not traced.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tonic::Code;
use tower::Service;

use super::call_metrics::end;
use crate::metrics::calls::Method;
use crate::telemetry::traces::Traced;

/// Traces the calls of `inner`.
#[derive(Debug, Clone)]
pub(super) struct TraceLayer<S> {
    inner: S,
}

impl<S> TraceLayer<S> {
    /// Traces the calls of `inner` if tracing is enabled.
    pub(super) fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S, R, B> Service<Request<R>> for TraceLayer<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Unpin,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = TracedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let method = Method::of(request.uri().path());
        let traced = method
            .is_own()
            .then(|| Traced::call(method.as_str(), request.headers()));
        TracedFuture {
            traced: traced.flatten(),
            inner: self.inner.call(request),
        }
    }
}

/// A running call; dropping it ends its span.
#[derive(Debug)]
pub(super) struct TracedFuture<F> {
    inner: F,
    traced: Option<Traced>,
}

impl<F, B, E> Future for TracedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { inner, traced } = &mut *self;
        let Some(span) = traced else {
            return Pin::new(inner).poll(cx);
        };
        let answered = ready!(span.enter(|| Pin::new(inner).poll(cx)));
        if let Ok(response) = &answered {
            let (code, reason) = end(response);
            let is_fault = matches!(code, Code::Internal | Code::Unavailable | Code::Unknown);
            span.ended(code as i32, &reason, is_fault);
        }
        // Only the sending of the answer remains.
        drop(traced.take());
        Poll::Ready(answered)
    }
}
