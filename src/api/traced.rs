//! Traces each call: its span is the parent of the spans of its store steps.
//!
//! Inside `authenticate`, because a caller's `traceparent` can decide that its calls are traced,
//! and unauthenticated callers could fill the collector. Health and reflection, which may be open
//! to anonymous callers, are not traced.

use http::{HeaderMap, Request, Response};
use tonic::Code;

use super::call_metrics::end;
use super::layer::{Answered, Layer, LayerCall};
use crate::metrics::calls::Method;
use crate::telemetry::traces::Traced;

/// Traces calls if tracing is enabled.
#[derive(Debug, Clone)]
pub(super) struct TraceLayer;

impl Layer for TraceLayer {
    type Call = Option<Traced>;

    fn begin<R>(&self, request: &mut Request<R>) -> Self::Call {
        begin_at(request.uri().path(), request.headers())
    }
}

/// Begins the trace of a call of the method at this path, if it is sampled.
pub(super) fn begin_at(path: &str, headers: &HeaderMap) -> Option<Traced> {
    let method = Method::of(path);
    let traced = method.is_own().then(|| Traced::call(method.as_str(), headers));
    traced.flatten()
}

/// Ends the trace of a call with its code and reason.
pub(super) fn ended(traced: &Traced, code: Code, reason: &str) {
    let is_fault = matches!(code, Code::Internal | Code::Unavailable | Code::Unknown);
    traced.ended(code as i32, reason, is_fault);
}

impl<B> LayerCall<B> for Traced {
    type Body = B;

    fn poll<E>(&mut self, poll: impl FnOnce() -> Answered<B, E>) -> Answered<B, E> {
        self.enter(poll)
    }

    fn answered(self, response: Response<B>) -> Response<B> {
        let (code, reason) = end(&response);
        ended(&self, code, &reason);
        response
    }
}
