//! Traces: the spans of calls and of their steps of the store, sent as OTLP over gRPC.
//!
//! Off, a span costs one look at an atomic. On, spans are queued within a bound and sent by a thread of
//! their own; what the queue has no room for, or the collector does not take, is lost.

use std::time::Duration;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::Layer;

/// The name of the service in traces, unless OTEL_SERVICE_NAME says another.
const SERVICE: &str = "fencepost";
/// How long a message to the collector may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Where spans go.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Sends them to the collector at `endpoint`: all of callers who trace, and of the other calls
    /// the part `sample_ratio`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the endpoint is no URL. A collector that is away is none.
    pub fn to(endpoint: &str, sample_ratio: f64) -> Result<Self, ExporterBuildError> {
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
        Ok(Self { provider })
    }

    /// What makes spans of the process into traces.
    pub(super) fn layer(&self) -> impl Layer<Registry> + use<> {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SERVICE))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_level(false)
            .with_tracked_inactivity(false)
    }

    /// Sends the last spans, for a bounded time. Blocks.
    pub fn finish(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_SPANS) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Puts a span below that of a caller who sent one (W3C `traceparent`).
pub fn below_caller(span: &Span, headers: &HeaderMap) {
    if headers.contains_key("traceparent") {
        let context = TraceContextPropagator::new().extract(&Headers(headers));
        // It fails only for a span that nobody traces.
        let _ = span.set_parent(context);
    }
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
