//! The spans of calls and of their store operations. The program exports them: `telemetry::traces` of the crate `fencepost`.

use futures::future::Either;
use opentelemetry::context::WithContext;
use opentelemetry::trace::{FutureExt, Status as SpanStatus, TraceContextExt};
use opentelemetry::{Context, KeyValue};

/// A sampled call or operation. Its span ends when this is dropped.
#[derive(Debug)]
pub struct Traced {
    context: Context,
    /// Gives the lines of a call its trace id.
    log: tracing::Span,
}

impl Traced {
    /// The active span of this context.
    pub fn of(context: Context) -> Self {
        let log = tracing::Span::none();
        Self { context, log }
    }

    /// The same, whose lines are logged within a span.
    pub fn logged_in(self, log: tracing::Span) -> Self {
        Self { log, ..self }
    }

    /// The id of the trace, in hexadecimal digits.
    pub fn id(&self) -> String {
        self.context.span().span_context().trace_id().to_string()
    }

    /// Names what the call is about, who made it, and its request id.
    pub fn describe(&self, attributes: impl IntoIterator<Item = (&'static str, String)>) {
        let attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
        self.context.span().set_attributes(attributes);
    }

    /// Runs `polled` within the span, so that operations find it as the current span.
    pub fn enter<T>(&self, polled: impl FnOnce() -> T) -> T {
        let _current = self.context.clone().attach();
        self.log.in_scope(polled)
    }

    /// Records the outcome of a call: its gRPC code, its reason, and whether the service caused the error.
    pub fn ended(&self, code: i32, reason: &str, is_fault: bool) {
        let span = self.context.span();
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
            Some(Self { context, .. }) => Either::Left(future.with_context(context)),
            None => Either::Right(future),
        }
    }
}

/// Wraps a future in the current span, for use in another task.
pub fn carried<F: Future>(future: F) -> WithContext<F> {
    future.with_current_context()
}
