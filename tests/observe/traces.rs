//! Spans of calls, as a collector gets them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::api::proto::AcquireRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::observe::fixture::{Fixture, ask, eventually};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// The other end of the protocol: it keeps what it gets.
#[derive(Debug, Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let spans = request.into_inner().resource_spans.into_iter();
        let spans = spans.flat_map(|of| of.scope_spans).flat_map(|of| of.spans);
        self.0.lock().expect("no panic").extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts one; answers where it listens.
    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let collector = Self::default();
        let service = TraceServiceServer::new(collector.clone());
        let incoming = TcpIncoming::from(listener);
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        (collector, format!("http://{address}"))
    }

    fn spans(&self) -> Vec<Span> {
        self.0.lock().expect("no panic").clone()
    }

    /// The spans of one trace by their names.
    async fn trace(&self, trace: &str, names: &[&str]) -> Vec<Span> {
        let found = || -> Option<Vec<Span>> {
            let spans = self.spans();
            let of_trace: Vec<_> = spans.into_iter().filter(|span| hex(&span.trace_id) == trace).collect();
            let by_name = |name: &&str| of_trace.iter().find(|span| span.name == **name).cloned();
            names.iter().map(by_name).collect()
        };
        eventually(&format!("{names:?} in {:?}", self.spans()), || found().is_some()).await;
        found().expect("the spans")
    }
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn traced(ask: AcquireRequest, parent: &str) -> Request<AcquireRequest> {
    let mut request = Request::new(ask);
    request
        .metadata_mut()
        .insert("traceparent", parent.parse().expect("a header"));
    request
}

async fn fixture(endpoint: &str, ratio: &str) -> Fixture {
    let traces = format!("[traces]\nendpoint = '{endpoint}'\nsample_ratio = {ratio}\n");
    Fixture::start(&format!("{traces}[namespaces.default]\nembedded.path = ':memory:'\n")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_traces_finds_its_call_and_the_step_of_the_store_below() {
    let (collector, endpoint) = Collector::start().await;
    let fixture = fixture(&endpoint, "0.0").await;
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let mut locks = fixture.calls.locks();
    let granted = locks.acquire(traced(ask("default", "x", "o"), &parent)).await;
    granted.expect("granted");
    let spans = collector.trace(TRACE, &["Acquire", "acquire"]).await;
    let [call, step] = spans.as_slice() else {
        unreachable!("two names")
    };
    assert_eq!(hex(&call.parent_span_id), CALLER);
    assert_eq!(step.parent_span_id, call.span_id);
    let said = format!("{call:?}");
    assert!(said.contains("fencepost.reason") && said.contains("OK"), "{said}");
    assert!(!format!("{spans:?}").contains("secret"), "no lease id is traced");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_hands_over_is_traced_to_the_step_that_does_it() {
    let (collector, endpoint) = Collector::start().await;
    let fixture = fixture(&endpoint, "0").await;
    let held = fixture.calls.acquire(ask("default", "x", "o")).await;
    let waiter = crate::observe::asks::waiting(Duration::from_secs(20), ask("default", "x", "other"));
    let waits = tokio::spawn({
        let calls = fixture.calls.clone();
        async move { calls.acquire(waiter).await }
    });
    fixture
        .shows("fencepost_acquires_waiting", &[("namespace", "default")], 1.0)
        .await;
    let mut request = Request::new(fencepost::api::proto::ReleaseRequest {
        lease_id: held.lease_id.clone(),
        keep_for: None,
    });
    let parent = format!("00-{TRACE}-{CALLER}-01");
    request
        .metadata_mut()
        .insert("traceparent", parent.parse().expect("a header"));
    fixture.calls.locks().release(request).await.expect("released");
    waits.await.expect("granted");
    let spans = collector.trace(TRACE, &["Release", "release"]).await;
    assert_eq!(spans[1].parent_span_id, spans[0].span_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_does_not_trace_is_not_traced() {
    let (collector, endpoint) = Collector::start().await;
    let fixture = fixture(&endpoint, "1").await;
    let unsampled = TRACE.replace('0', "1");
    let parent = format!("00-{unsampled}-{CALLER}-00");
    let mut locks = fixture.calls.locks();
    locks
        .acquire(traced(ask("default", "x", "o"), &parent))
        .await
        .expect("granted");
    // One without a context is traced at this ratio, and comes after.
    fixture.calls.acquire(ask("default", "y", "o")).await;
    eventually("a trace of its own", || {
        collector.spans().iter().any(|span| span.name == "Acquire")
    })
    .await;
    let of_unsampled = |span: &Span| hex(&span.trace_id) == unsampled;
    assert!(!collector.spans().iter().any(of_unsampled));
}

/// The bearer token `secret`, by the name of ci, which may acquire everywhere.
const AUTH: &str = "[auth]\nbearer_hashes = ['ci:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b']\n\
                    [[auth.rules]]\nidentities = ['token:ci']\nnamespaces = ['*']\nverbs = ['acquire']\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_unauthenticated_caller_cannot_ask_for_a_trace() {
    let (collector, endpoint) = Collector::start().await;
    let traces = format!("[traces]\nendpoint = '{endpoint}'\nsample_ratio = 0.0\n");
    let fixture = Fixture::start(&format!(
        "{traces}{AUTH}[namespaces.default]\nembedded.path = ':memory:'\n"
    ))
    .await;
    let strange = TRACE.replace('0', "1");
    let parent = format!("00-{strange}-{CALLER}-01");
    let mut locks = fixture.calls.locks();
    let refused = locks.acquire(traced(ask("default", "x", "o"), &parent)).await;
    assert_eq!(refused.expect_err("a stranger").code(), Code::Unauthenticated);
    // Health is open to everybody.
    let mut check = Request::new(HealthCheckRequest::default());
    check
        .metadata_mut()
        .insert("traceparent", parent.parse().expect("a header"));
    let mut health = HealthClient::new(fixture.calls.0.clone());
    health.check(check).await.expect("serves");
    let mut known = traced(ask("default", "x", "o"), &format!("00-{TRACE}-{CALLER}-01"));
    known
        .metadata_mut()
        .insert("authorization", "Bearer secret".parse().expect("a header"));
    locks.acquire(known).await.expect("granted");
    // Spans come in their order.
    collector.trace(TRACE, &["Acquire", "acquire"]).await;
    let spans = collector.spans();
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_collector_delays_nobody() {
    let mut fixture = fixture("http://127.0.0.1:1", "1").await;
    for _ in 0..50 {
        let lease = fixture.calls.acquire(ask("default", "x", "o")).await;
        fixture.calls.release(&lease).await;
    }
    fixture.server.stop();
    assert!(fixture.server.end().success());
}
