//! Traces each call: its span is the parent of the spans of its store steps.
//!
//! Inside `authenticate`, because a caller's `traceparent` can decide that its calls are traced,
//! and unauthenticated callers could fill the collector. Health and reflection, which may be open
//! to anonymous callers, are not traced.

use http::{Request, Response};
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
        let method = Method::of(request.uri().path());
        let traced = method
            .is_own()
            .then(|| Traced::call(method.as_str(), request.headers()));
        traced.flatten()
    }
}

impl<B> LayerCall<B> for Traced {
    type Body = B;

    fn poll<E>(&mut self, poll: impl FnOnce() -> Answered<B, E>) -> Answered<B, E> {
        self.enter(poll)
    }

    fn answered(self, response: Response<B>) -> Response<B> {
        let (code, reason) = end(&response);
        let is_fault = matches!(code, Code::Internal | Code::Unavailable | Code::Unknown);
        self.ended(code as i32, &reason, is_fault);
        response
    }
}
