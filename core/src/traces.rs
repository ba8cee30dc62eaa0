//! The spans of calls and of their store operations. The program exports them: `telemetry::traces` of the crate `fencepost`.

use futures::future::Either;
use opentelemetry::context::WithContext;
use opentelemetry::trace::{FutureExt, Status as SpanStatus, TraceContextExt};
use opentelemetry::{Context, KeyValue};

/// A sampled call or operation. Its span ends when this is dropped.
#[derive(Debug)]
pub struct Traced(Context);

impl Traced {
    /// The active span of this context.
    pub fn of(context: Context) -> Self {
        Self(context)
    }

    /// Runs `polled` within the span, so that operations find it as the current span.
    pub fn enter<T>(&self, polled: impl FnOnce() -> T) -> T {
        let _current = self.0.clone().attach();
        polled()
    }

    /// Records the outcome of a call: its gRPC code, its reason, and whether the service caused the error.
    pub fn ended(&self, code: i32, reason: &str, is_fault: bool) {
        let span = self.0.span();
        span.set_attributes([
            KeyValue::new("rpc.grpc.status_code", i64::from(code)),
            KeyValue::new("fencepost.reason", reason.to_owned()),
        ]);
        if is_fault {
            span.set_status(SpanStatus::error(""));
        }
    }

    /// Wraps a future in its span, if there is one.
    pub fn around<F: Future>(traced: Option<Self>, future: F) -> Either<WithContext<F>, F> {
        match traced {
            Some(Self(context)) => Either::Left(future.with_context(context)),
            None => Either::Right(future),
        }
    }
}

/// Wraps a future in the current span, for use in another task.
pub fn carried<F: Future>(future: F) -> WithContext<F> {
    future.with_current_context()
}
