//! What a client is granted of several locks is given back where the answer lacks a lease.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use fencepost::api::proto::AcquireAllResponse;
use fencepost_client::Error;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tower::ServiceExt;

use crate::client::silence::Spawned;
use crate::client::{Fixture, NAMESPACE, connect, until_counts};

/// Longer than any test waits for the end of a lease.
const LONG: Duration = Duration::from_secs(3600);
/// The length of what precedes a message of gRPC.
const PREFIX: usize = 5;

/// The answer of AcquireAll without its last lease.
async fn shortened(answer: Response<Body>) -> Response<Body> {
    let (head, body) = answer.into_parts();
    let whole = body.collect().await.expect("an answer");
    let trailers = whole.trailers().cloned();
    let mut message = whole.to_bytes();
    message.advance(PREFIX);
    let mut answer = AcquireAllResponse::decode(message).expect("an answer");
    answer.leases.pop();
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(answer.encoded_len()).expect("a small message"));
    answer.encode(&mut framed).expect("room");
    let body = Full::<Bytes>::new(framed.freeze()).with_trailers(async { trailers.map(Ok) });
    Response::from_parts(head, Body::new(body))
}

/// The address of a gateway to this server that shortens the answers of AcquireAll, or keeps back the first one.
async fn gateway(server: &str, keeps_first: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let endpoint = Endpoint::from_shared(format!("http://{server}")).expect("a URI");
    let to: Channel = endpoint.connect().await.expect("a server");
    let keeps = Arc::new(AtomicBool::new(keeps_first));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (to, keeps) = (to.clone(), Arc::clone(&keeps));
            let pass = hyper::service::service_fn(move |request: Request<Incoming>| {
                let (to, keeps) = (to.clone(), Arc::clone(&keeps));
                async move {
                    let is_of_several = request.uri().path().ends_with("/AcquireAll");
                    let answer = to.oneshot(request.map(Body::new)).await?;
                    if !is_of_several {
                        return Ok(answer);
                    }
                    if keeps.swap(false, Ordering::Relaxed) {
                        return pending().await;
                    }
                    Ok::<_, tonic::transport::Error>(shortened(answer).await)
                }
            });
            let connection = hyper::server::conn::http2::Builder::new(Spawned);
            tokio::spawn(connection.serve_connection(TokioIo::new(socket), pass));
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_lacks_a_lease_is_an_error_and_the_others_are_given_back() {
    let fixture = Fixture::start().await;
    let client = connect(&[&gateway(&fixture.server.address, false).await]).await;
    let all = client
        .expect("a server")
        .acquire_all(NAMESPACE, &["a", "b"], "me")
        .ttl(LONG);
    let error = all.guards().await.expect_err("one is missing");
    assert!(
        matches!(&error, Error::Refused { reason, .. } if reason == "INCOMPLETE"),
        "{error:?}"
    );
    until_counts(&fixture.client().await, "a", (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_request_for_several_gives_back_what_an_answer_without_a_lease_grants() {
    let fixture = Fixture::start().await;
    let client = connect(&[&gateway(&fixture.server.address, true).await]).await;
    let all = client
        .expect("a server")
        .acquire_all(NAMESPACE, &["a", "b"], "me")
        .ttl(LONG);
    let asked = tokio::spawn(all.guards());
    let direct = fixture.client().await;
    until_counts(&direct, "a", (1, 0)).await;
    asked.abort();
    until_counts(&direct, "a", (0, 0)).await;
}
