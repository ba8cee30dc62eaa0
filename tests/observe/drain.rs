//! Health over HTTP, also while the server ends.

use std::time::Duration;

use futures::stream;
use http::uri::PathAndQuery;
use tonic::Request;

use crate::observe::fixture::{Fixture, eventually};
#[cfg(feature = "redis")]
use crate::observe::redis_servers::{RedisServer, available};
use fencepost::api::proto::{RenewRequest, RenewResponse};

const MEMORY: &str = "[namespaces.default]\nembedded.path = ':memory:'\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_drains_is_healthy_and_not_ready() {
    let fixture = Fixture::start(MEMORY).await;
    assert_eq!(fixture.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(fixture.get("/readyz"), (200, "ready\n".to_owned()));

    // A call whose request never ends keeps the drain open.
    let mut grpc = tonic::client::Grpc::new(fixture.calls.0.clone());
    let call = tokio::spawn(async move {
        grpc.ready().await.expect("a connection");
        let path = PathAndQuery::from_static("/fencepost.v1.LockService/Renew");
        let codec = tonic_prost::ProstCodec::<RenewRequest, RenewResponse>::default();
        let request = Request::new(stream::pending());
        grpc.client_streaming(request, path, codec).await.map(drop)
    });
    // It is under way once the server has the head of its request, which nothing shows: other calls
    // on the same connection come after it.
    tokio::time::sleep(Duration::from_millis(200)).await;
    fixture.signal("TERM");
    eventually("not ready", || fixture.get("/readyz") == (503, "draining\n".to_owned())).await;
    assert_eq!(fixture.get("/healthz"), (200, "ok\n".to_owned()));
    fixture.shows("fencepost_draining", &[], 1.0).await;
    call.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_ready_when_the_stores_that_were_named_serve() {
    // Nobody listens there.
    let namespaces = "[namespaces.here]\nembedded.path = ':memory:'\n[namespaces.away]\nbackend = 'redis'\n\
                      redis.urls = ['redis://127.0.0.1:1']\n";
    let at_once = format!("first_contact_timeout = '0s'\n{namespaces}");
    let mut fixture = Fixture::start(&at_once).await;
    // By default a store is its namespace's affair, and shows all the same.
    let ready = (200, "ready\naway does not serve\n".to_owned());
    assert_eq!(fixture.get("/readyz"), ready);
    fixture.configure(&format!("ready_namespaces = ['here', 'away']\n{at_once}"));
    let missing = (503, "away does not serve\n".to_owned());
    eventually("not ready", || fixture.get("/readyz") == missing).await;
    fixture
        .shows(
            "fencepost_backend_healthy",
            &[("namespace", "away"), ("backend", "redis")],
            0.0,
        )
        .await;
    fixture.configure(&format!("ready_namespaces = ['here']\n{at_once}"));
    eventually("ready", || fixture.get("/readyz").0 == 200).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_in_quarantine_is_shown_and_leaves_the_server_ready_unless_it_is_named() {
    common::skip_unless!(available());
    let redis = RedisServer::start(&[]);
    let namespaces = format!(
        "[namespaces.default]\nbackend = 'redis'\nredis.urls = ['{}']\n",
        redis.url()
    );
    let mut fixture = Fixture::start(&namespaces).await;
    let told = |(_, body): &(u16, String)| {
        body.contains("default grants nothing for another 23h 59m") && body.ends_with(": fencepost admit default\n")
    };
    eventually("it is told", || told(&fixture.get("/readyz"))).await;
    assert_eq!(fixture.get("/readyz").0, 200);
    fixture.configure(&format!("ready_namespaces = ['default']\n{namespaces}"));
    eventually("not ready", || fixture.get("/readyz").0 == 503).await;
    assert!(told(&fixture.get("/readyz")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_question_of_this_port_is_refused() {
    let fixture = Fixture::start(MEMORY).await;
    assert_eq!(fixture.get("/").0, 404);
    assert_eq!(fixture.get("/metrics/").0, 404);
    let post = "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(fixture.http(post).0, 405);
    let head = "HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert_eq!(fixture.http(head), (200, String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_say_nothing_keep_nobody_out() {
    use std::net::TcpStream;
    let fixture = Fixture::start(MEMORY).await;
    let address = fixture.server.metrics.as_ref().expect("an HTTP port");
    let silent: Vec<_> = (0..64)
        .map(|_| TcpStream::connect(address).expect("the port"))
        .collect();
    // For one more the oldest of them is given up, and this one is answered.
    assert_eq!(fixture.get("/healthz").0, 200);
    drop(silent);
}
