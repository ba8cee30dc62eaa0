//! A server is not ready before its stores have served once.

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::observe::fixture::{Fixture, eventually};

/// A namespace in memory, and one whose Redis nobody has started.
const AWAY: &str = "[namespaces.here]\nembedded.path = ':memory:'\n[namespaces.away]\nbackend = 'redis'\n\
                    redis.urls = ['redis://127.0.0.1:1']\n";

/// The health of the server as a whole over gRPC.
async fn health(fixture: &Fixture) -> ServingStatus {
    let mut health = HealthClient::new(fixture.calls.0.clone());
    let answer = health.check(HealthCheckRequest::default()).await;
    answer.expect("an answer").into_inner().status()
}

// G182
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_not_ready_before_each_store_has_served() {
    let fixture = Fixture::start(AWAY).await;
    let waits = (503, "away has not served since the start\n".to_owned());
    eventually("only one is waited for", || fixture.get("/readyz") == waits).await;
    assert_eq!(health(&fixture).await, ServingStatus::NotServing);
    assert_eq!(fixture.get("/healthz").0, 200, "it must not be restarted");
}

// G182
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_ready_stays_so_in_an_outage() {
    use crate::observe::redis_servers::{RedisServer, available};
    common::skip_unless!(available());
    let mut redis = RedisServer::start(&[]);
    let url = redis.url();
    redis.kill9();
    let namespaces = format!("[namespaces.default]\nbackend = 'redis'\nredis.urls = ['{url}']\n");
    let fixture = Fixture::start(&namespaces).await;
    assert_eq!(fixture.get("/readyz").0, 503);
    let mut watch = HealthClient::new(fixture.calls.0.clone());
    let watch = watch.watch(HealthCheckRequest::default()).await;
    let mut watch = watch.expect("a stream").into_inner();
    let first = watch.message().await.expect("no error").expect("a status");
    assert_eq!(first.status(), ServingStatus::NotServing);
    // An empty Redis is in quarantine, which is the same for all servers.
    redis.restart();
    eventually("ready", || fixture.get("/readyz").0 == 200).await;
    let next = watch.message().await.expect("no error").expect("a status");
    assert_eq!(next.status(), ServingStatus::Serving);
    redis.kill9();
    let away = (200, "ready\ndefault does not serve\n".to_owned());
    eventually("the outage shows", || fixture.get("/readyz") == away).await;
    assert_eq!(health(&fixture).await, ServingStatus::Serving);
}

// G182
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_in_an_outage_is_ready_after_a_bounded_time() {
    let fixture = Fixture::start(&format!("first_contact_timeout = '1500ms'\n{AWAY}")).await;
    assert_eq!(fixture.get("/readyz").0, 503);
    let ready = (200, "ready\naway does not serve\n".to_owned());
    eventually("ready", || fixture.get("/readyz") == ready).await;
    assert_eq!(health(&fixture).await, ServingStatus::Serving);
    assert!(fixture.server.said("first_contact_timeout has passed"));
}

// G182
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_added_or_removed_later_is_not_waited_for() {
    let mut fixture = Fixture::start(AWAY).await;
    assert_eq!(fixture.get("/readyz").0, 503);
    let (here, _) = AWAY.split_once("[namespaces.away]").expect("two");
    fixture.configure(here);
    eventually("ready", || fixture.get("/readyz") == (200, "ready\n".to_owned())).await;
    fixture.configure(AWAY);
    let away = (200, "ready\naway does not serve\n".to_owned());
    eventually("added", || fixture.get("/readyz") == away).await;
}
