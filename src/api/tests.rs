#[cfg(feature = "embedded")]
mod embedded;

use std::future::pending;

use futures::StreamExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::proto::admin_service_client::AdminServiceClient;
use super::proto::lock_service_client::LockServiceClient;
use super::proto::{AcquireRequest, CheckTokenRequest, ForceReleaseRequest, ReleaseRequest};
use super::*;
use crate::supervisor::{failpoint, restarts};

/// A server.
pub(super) struct Running {
    addresses: Vec<String>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    /// One without namespaces, for tests that need no store.
    async fn on(addresses: &[&str], settings: Settings) -> Self {
        Self::serving(Namespaces::default(), addresses, settings).await
    }

    pub(super) async fn serving(namespaces: Namespaces, addresses: &[&str], settings: Settings) -> Self {
        let mut listeners = Vec::new();
        for address in addresses {
            listeners.push(Listener::bind(&address.parse().unwrap()).await.unwrap());
        }
        let addresses = listeners.iter().map(Listener::local_addr).collect();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move { stopped.await.unwrap() };
        let served = tokio::spawn(serve(listeners, namespaces, settings, shutdown));
        Self {
            addresses,
            stop,
            served,
        }
    }

    pub(super) async fn channel(&self, index: usize) -> Channel {
        let address = &self.addresses[index];
        let uri = if address.starts_with("unix:") {
            address.clone()
        } else {
            format!("http://{address}")
        };
        Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
    }

    /// Stops it, and returns how long the drain took.
    pub(super) async fn stop(self) -> Duration {
        let began = tokio::time::Instant::now();
        self.stop.send(()).unwrap();
        self.served.await.unwrap().unwrap();
        began.elapsed()
    }
}

fn reflection_request(message: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message),
    }
}

/// A reflection stream that sends one request and stays open.
async fn reflect(channel: Channel, message: MessageRequest) -> tonic::Streaming<ServerReflectionResponse> {
    let requests = futures::stream::iter([reflection_request(message)]).chain(futures::stream::pending());
    let answer = ServerReflectionClient::new(channel)
        .server_reflection_info(requests)
        .await;
    answer.unwrap().into_inner()
}

// G69
#[tokio::test]
async fn all_listeners_serve_and_bad_input_leaves_them_serving() {
    let folder = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}/f.sock", folder.path().display());
    let server = Running::on(&["127.0.0.1:0", "[::1]:0", &unix], Settings::default()).await;
    for index in 0..server.addresses.len() {
        let mut locks = LockServiceClient::new(server.channel(index).await);
        let empty = locks.acquire(AcquireRequest::default()).await.unwrap_err();
        assert_eq!(
            (empty.code(), status::reason(&empty).as_deref()),
            (Code::InvalidArgument, Some("INVALID_FIELD"))
        );
        let garbage = locks
            .release(ReleaseRequest {
                lease_id: "x".into(),
                keep_for: None,
            })
            .await
            .unwrap_err();
        assert_eq!(garbage.code(), Code::InvalidArgument);
        let namespace = "none".to_owned();
        let nowhere = locks
            .check_token(CheckTokenRequest {
                namespace,
                ..Default::default()
            })
            .await
            .unwrap_err();
        assert_eq!(status::reason(&nowhere).as_deref(), Some("NAMESPACE_NOT_FOUND"));
        assert!(nowhere.metadata().contains_key("x-request-id"));
    }
    server.stop().await;
    assert!(!folder.path().join("f.sock").exists());
}

// G69
#[tokio::test]
async fn a_too_large_request_is_an_invalid_field() {
    let server = Running::on(&["127.0.0.1:0"], Settings::default()).await;
    let mut locks = LockServiceClient::new(server.channel(0).await);
    let lease_id = "x".repeat(Settings::default().request_bytes);
    let status = locks
        .release(ReleaseRequest {
            lease_id,
            keep_for: None,
        })
        .await
        .unwrap_err();
    let long = || "x".repeat(Settings::default().request_bytes);
    let mut admin = AdminServiceClient::new(server.channel(0).await);
    let name = ForceReleaseRequest {
        name: long(),
        ..ForceReleaseRequest::default()
    };
    let mut health = HealthClient::new(server.channel(0).await);
    let service = HealthCheckRequest { service: long() };
    let all = [
        status,
        admin.force_release(name).await.unwrap_err(),
        health.check(service).await.unwrap_err(),
    ];
    for status in all {
        assert_eq!(status.message(), "request: must be at most 65536 bytes");
        assert_eq!(status::reason(&status).as_deref(), Some("INVALID_FIELD"));
    }
    server.stop().await;
}

#[tokio::test]
async fn reflection_knows_the_services_and_the_details_of_errors() {
    let server = Running::on(&["127.0.0.1:0"], Settings::default()).await;
    let mut answers = reflect(server.channel(0).await, MessageRequest::ListServices(String::new())).await;
    let answer = answers.next().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else {
        panic!("{answer:?}")
    };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in [
        "fencepost.v1.LockService",
        "fencepost.v1.AdminService",
        "grpc.health.v1.Health",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    for symbol in ["fencepost.v1.Lease", "google.rpc.ErrorInfo", "google.protobuf.Duration"] {
        let message = MessageRequest::FileContainingSymbol(symbol.into());
        let mut answers = reflect(server.channel(0).await, message).await;
        let answer = answers.next().await.unwrap().unwrap().message_response;
        assert!(
            matches!(answer, Some(MessageResponse::FileDescriptorResponse(_))),
            "{symbol}: {answer:?}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn open_streams_do_not_delay_a_drain() {
    let server = Running::on(&["127.0.0.1:0"], Settings::default()).await;
    let channel = server.channel(0).await;
    let watching = HealthClient::new(channel.clone())
        .watch(HealthCheckRequest::default())
        .await;
    let mut health = watching.unwrap().into_inner();
    let mut reflection = reflect(channel, MessageRequest::ListServices(String::new())).await;
    assert_eq!(health.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert!(reflection.next().await.unwrap().is_ok());
    let took = server.stop().await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(
        health.next().await.unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    let end = reflection.next().await.unwrap().unwrap_err();
    assert_eq!(status::reason(&end).as_deref(), Some("DRAINING"));
}

#[tokio::test]
async fn a_drain_is_bounded_and_then_cuts() {
    let drain_timeout = Duration::from_millis(300);
    let settings = Settings {
        drain_timeout,
        ..Settings::default()
    };
    let server = Running::on(&["127.0.0.1:0"], settings).await;
    // A request whose message never arrives stays in flight until its client ends it.
    let channel = server.channel(0).await;
    let call = tokio::spawn(async move {
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<ReleaseRequest, super::proto::ReleaseResponse>::default();
        let path = http::uri::PathAndQuery::from_static("/fencepost.v1.LockService/Release");
        let never = futures::stream::once(pending::<ReleaseRequest>());
        grpc.client_streaming(tonic::Request::new(never), path, codec).await
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!call.is_finished());
    let took = server.stop().await;
    assert!((drain_timeout..Duration::from_secs(5)).contains(&took), "{took:?}");
    assert!(call.await.unwrap().is_err());
}

// G188
#[tokio::test]
async fn after_a_panic_of_its_accept_loop_a_listener_accepts_again() {
    let server = Running::on(&["127.0.0.1:0"], Settings::default()).await;
    let panics = || restarts().get("accept").copied().unwrap_or_default();
    let before = panics();
    for turn in 0..2 {
        let mut health = HealthClient::new(server.channel(0).await);
        health.check(HealthCheckRequest::default()).await.unwrap();
        assert_eq!(panics() > before, turn > 0);
        failpoint::panic_all();
    }
    server.stop().await;
}
