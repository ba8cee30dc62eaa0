//! Exports the spans of calls and of their store operations as OTLP over gRPC.
//!
//! A call that is not sampled costs one random trace id, and each of its operations one lookup of the current context.
//! Without a collector, each costs one atomic read. Spans are queued up to a bound and exported by a separate thread.
//! Spans that exceed the queue or that the collector does not accept are lost.

use std::sync::OnceLock;
use std::time::Duration;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

use crate::traces::Traced;

/// The service name in traces, unless OTEL_SERVICE_NAME is set.
const SERVICE: &str = "fencepost";
/// The timeout of an export request.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the export of the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// The tracer of this process, once traces have begun.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// The exporter of this process's spans.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Begins to export spans to the collector at `endpoint`: those of calls whose caller samples them, and the
    /// fraction `sample_ratio` of the other calls. Must be called within a tokio runtime, and once per process: a later
    /// call exports nothing.
    ///
    /// # Errors
    /// When the endpoint is not a URL. An unavailable collector is not an error.
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

    /// Exports the last spans, within 2 s. Blocks.
    pub fn finish(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_SPANS) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Begins the span of a call, as a child of its caller's span if the headers contain one (W3C `traceparent`).
/// `None` if the call is not sampled.
pub fn call(method: &'static str, headers: &HeaderMap) -> Option<Traced> {
    let tracer = TRACER.get()?;
    let mut caller = Context::new();
    if headers.contains_key("traceparent") {
        caller = TraceContextPropagator::new().extract_with_context(&caller, &Headers(headers));
    }
    let call = begin(tracer, method, SpanKind::Server, &caller, || {
        [KeyValue::new("rpc.system", "grpc"), KeyValue::new("rpc.method", method)]
    })?;
    // At the level that is logged whenever something is.
    let span = tracing::error_span!("call", trace_id = call.id());
    Some(call.logged_in(span))
}

/// Begins the span of a store operation, as a child of the call that is being polled. `None` outside of a sampled
/// call.
pub fn step(operation: &'static str, backend: &'static str, namespace: &str) -> Option<Traced> {
    let tracer = TRACER.get()?;
    let call = Context::map_current(|current| current.has_active_span().then(|| current.clone()))?;
    begin(tracer, operation, SpanKind::Client, &call, || {
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
) -> Option<Traced> {
    let mut span = tracer
        .span_builder(name)
        .with_kind(kind)
        .start_with_context(tracer, parent);
    if !span.is_recording() {
        return None;
    }
    span.set_attributes(attributes());
    Some(Traced::of(parent.with_span(span)))
}

/// Reads the propagated context from headers.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
