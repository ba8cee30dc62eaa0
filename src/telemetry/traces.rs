//! Traces: the spans of calls and of their steps of the store, sent as OTLP over gRPC.
//!
//! A call that is not traced costs the drawing of its trace id, and its steps one look at the current
//! context; where nobody collects traces, each costs one look at an atomic. Spans are queued within a bound
//! and sent by a thread of their own; what the queue has no room for, or the collector does not take, is lost.

use std::sync::OnceLock;
use std::time::Duration;

use futures::future::Either;
use http::HeaderMap;
use opentelemetry::context::WithContext;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{FutureExt, Span, SpanKind, Status as SpanStatus, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

/// The name of the service in traces, unless OTEL_SERVICE_NAME says another.
const SERVICE: &str = "fencepost";
/// How long a message to the collector may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// What makes the spans of this process, once its traces have begun.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Where the spans of this process go.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Sends them to the collector at `endpoint` from now on: those of callers who trace, and of the other
    /// calls the part `sample_ratio`. Must be called within a tokio runtime, and once in a process: later
    /// ones get nothing.
    ///
    /// # Errors
    /// When the endpoint is no URL. A collector that is away is none.
    pub fn begin(endpoint: &str, sample_ratio: f64) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()?;
        let by_ratio = Sampler::TraceIdRatioBased(sample_ratio);
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE);
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_sampler(Sampler::ParentBased(Box::new(by_ratio)))
            .with_batch_exporter(exporter)
            .build();
        TRACER.get_or_init(|| provider.tracer(SERVICE));
        Ok(Self { provider })
    }

    /// Sends the last spans, for a bounded time. Blocks.
    pub fn finish(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_SPANS) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// A call or a step that is traced. Its span ends when this is dropped.
#[derive(Debug)]
pub struct Traced(Context);

impl Traced {
    /// Begins the span of a call, below its caller's own where the headers have one (W3C `traceparent`).
    /// Nothing for a call that is not traced.
    pub fn call(method: &'static str, headers: &HeaderMap) -> Option<Self> {
        let tracer = TRACER.get()?;
        let mut caller = Context::new();
        if headers.contains_key("traceparent") {
            caller = TraceContextPropagator::new().extract_with_context(&caller, &Headers(headers));
        }
        Self::begin(tracer, method, SpanKind::Server, &caller, || {
            [KeyValue::new("rpc.system", "grpc"), KeyValue::new("rpc.method", method)]
        })
    }

    /// Begins the span of a step of the store, below that of the call that is polled. Nothing outside of a
    /// traced call.
    pub fn step(operation: &'static str, backend: &'static str, namespace: &str) -> Option<Self> {
        let tracer = TRACER.get()?;
        let call = Context::map_current(|current| current.has_active_span().then(|| current.clone()))?;
        Self::begin(tracer, operation, SpanKind::Client, &call, || {
            [
                KeyValue::new("backend", backend),
                KeyValue::new("namespace", namespace.to_owned()),
            ]
        })
    }

    fn begin<const N: usize>(
        tracer: &SdkTracer,
        name: &'static str,
        kind: SpanKind,
        parent: &Context,
        attributes: impl FnOnce() -> [KeyValue; N],
    ) -> Option<Self> {
        let mut span = tracer
            .span_builder(name)
            .with_kind(kind)
            .start_with_context(tracer, parent);
        if !span.is_recording() {
            return None;
        }
        span.set_attributes(attributes());
        Some(Self(parent.with_span(span)))
    }

    /// Runs `polled` within the span, so that steps find it.
    pub fn enter<T>(&self, polled: impl FnOnce() -> T) -> T {
        let _current = self.0.clone().attach();
        polled()
    }

    /// Notes how a call ended: its gRPC code, its reason, and whether the service is at fault.
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

    /// A future within its span, where it is traced.
    pub fn around<F: Future>(traced: Option<Self>, future: F) -> Either<WithContext<F>, F> {
        match traced {
            Some(Self(context)) => Either::Left(future.with_context(context)),
            None => Either::Right(future),
        }
    }
}

/// A future within the span of the call that is polled now, for a task of its own.
pub fn carried<F: Future>(future: F) -> WithContext<F> {
    future.with_current_context()
}

/// Headers as the context is read from.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
