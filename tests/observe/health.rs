//! The health of namespaces as those see it who watch it over gRPC while the configuration changes.

use tonic::Streaming;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::observe::fixture::Fixture;
use crate::observe::server::PATIENCE;

const STAYS: &str = "[namespaces.stays]\nembedded.path = ':memory:'\n";
const OTHER: &str = "[namespaces.other]\nembedded.path = 'other.redb'\n";

async fn watch(fixture: &Fixture, service: &str) -> Streaming<HealthCheckResponse> {
    let mut health = HealthClient::new(fixture.calls.0.clone());
    let ask = HealthCheckRequest {
        service: service.into(),
    };
    health.watch(ask).await.expect("a stream").into_inner()
}

async fn next(statuses: &mut Streaming<HealthCheckResponse>) -> ServingStatus {
    let next = tokio::time::timeout(PATIENCE, statuses.message()).await;
    let next = next.expect("a status in time").expect("no error");
    next.expect("no end").status()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_watches_a_namespace_sees_it_go_and_come() {
    let mut fixture = Fixture::start(&format!("{STAYS}{OTHER}")).await;
    let mut other = watch(&fixture, "namespace/other").await;
    let mut new = watch(&fixture, "namespace/new").await;
    let mut stays = watch(&fixture, "namespace/stays").await;
    for (statuses, first) in [
        (&mut other, ServingStatus::Serving),
        (&mut new, ServingStatus::ServiceUnknown),
        (&mut stays, ServingStatus::Serving),
    ] {
        assert_eq!(next(statuses).await, first);
    }

    fixture.configure(&format!("{STAYS}[namespaces.new]\nembedded.path = ':memory:'\n"));
    assert_eq!(next(&mut other).await, ServingStatus::ServiceUnknown);
    assert_eq!(next(&mut new).await, ServingStatus::Serving);

    fixture.configure(&format!("{STAYS}{OTHER}"));
    assert_eq!(next(&mut other).await, ServingStatus::Serving);
    assert_eq!(next(&mut new).await, ServingStatus::ServiceUnknown);
    // What stays has nothing new to tell, until the server ends.
    fixture.server.stop();
    for statuses in [&mut other, &mut stays] {
        assert_eq!(next(statuses).await, ServingStatus::NotServing);
    }
}
