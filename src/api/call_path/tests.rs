use std::future::ready;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::{FutureExt, poll_immediate};
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic_prost::ProstCodec;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::api::capacity::Capacity;
use crate::api::connection::Remote;
use crate::api::peer::Peer;
use crate::api::proto::{AcquireRequest, AcquireResponse};
use crate::api::request_log::REQUEST_ID;
use crate::api::settings::Settings;
use crate::api::status::reason;
use crate::auth::{Auth, AuthenticatedIdentity, JwtSettings, Policy, PolicySettings, PresentedCredentials, Until};
use crate::backend::BackendError;
use crate::name::Identity;

const REQUEST_BYTES: usize = 16;

/// The path of calls to this service, with a policy or without one.
fn path<S>(inner: S, auth: Auth) -> CallPath<S> {
    let settings = Settings {
        request_bytes: REQUEST_BYTES,
        ..Settings::default()
    };
    let capacity = Capacity::new(&settings, None);
    let permits = Arc::new(Permits::new(&settings, &capacity, CancellationToken::new()));
    CallPath::new(inner, CallMetrics(None), Authentication::new(auth, None), permits)
}

/// The answer of this service to a request.
async fn answered<F>(
    inner: impl FnMut(Request<Body>) -> F + Clone + Unpin,
    request: Request<Body>,
) -> Response<AnswerBody>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    let Ok(answer) = path(service_fn(inner), Auth::default()).oneshot(request).await;
    answer
}

/// The client's status when `handle` processes a framed request of these bytes.
async fn status_of<H, F>(bytes: &str, handle: H) -> Status
where
    H: Fn() -> F + Clone + Send + Unpin + 'static,
    F: Future<Output = Result<tonic::Response<AcquireResponse>, Status>> + Send + 'static,
{
    let inner = move |request: Request<Body>| {
        let handle = handle.clone();
        let handler = service_fn(move |_: tonic::Request<AcquireRequest>| handle());
        Box::pin(async move {
            let codec = ProstCodec::<AcquireResponse, AcquireRequest>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(REQUEST_BYTES);
            Ok(grpc.unary(handler, request).await)
        })
    };
    let answer = answered(inner, Request::new(Body::new(bytes.to_owned()))).await;
    Status::from_header_map(answer.headers()).unwrap()
}

async fn fine() -> Result<tonic::Response<AcquireResponse>, Status> {
    Ok(tonic::Response::new(AcquireResponse::default()))
}

#[tokio::test]
async fn a_panic_is_internal_without_details() {
    let status = status_of("\0\0\0\0\0", || async { panic!("the secret is 42") }).await;
    assert_eq!((status.code(), status.message()), (Code::Internal, "internal error"));
    assert_eq!(reason(&status).as_deref(), Some("INTERNAL"));
    assert!(!String::from_utf8_lossy(status.details()).contains("secret"));
}

#[tokio::test]
async fn a_broken_store_is_internal_without_details() {
    let broken = || BackendError::Broken {
        reason: "secret".into(),
    };
    let status = status_of("\0\0\0\0\0", move || async move { Err(status::of(broken())) }).await;
    assert_eq!((status.code(), status.message()), (Code::Internal, "internal error"));
    assert_eq!(reason(&status).as_deref(), Some("INTERNAL"));
    assert!(!String::from_utf8_lossy(status.details()).contains("secret"));
}

#[tokio::test]
async fn a_request_that_cannot_be_read_is_an_invalid_field() {
    for (bytes, bounds) in [
        (
            "\0\0\0\0\u{2}\u{a}\u{7f}",
            "must be one whole message of the method's request type",
        ),
        ("", "must be one whole message of the method's request type"),
        ("\0\0\0\0\u{11}01234567890123456", "must be at most 16 bytes"),
    ] {
        let status = status_of(bytes, fine).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{bytes:?}");
        assert_eq!(reason(&status).as_deref(), Some("INVALID_FIELD"));
        assert_eq!(status.message(), format!("request: {bounds}"));
    }
}

#[tokio::test]
async fn an_unknown_method_is_answered_with_a_message() {
    let unknown = |_| {
        let answer = Response::builder().header("grpc-status", "12").body(Body::empty());
        ready(Ok(answer.unwrap()))
    };
    let answer = answered(unknown, Request::new(Body::empty())).await;
    let status = Status::from_header_map(answer.headers()).unwrap();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(
        status.message().starts_with("this server has no such method"),
        "{status:?}"
    );
}

#[tokio::test]
async fn an_error_returns_the_id_of_its_call() {
    let refusing = |_| ready(Ok(Status::aborted("held").into_http()));
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(REQUEST_ID, "mine".parse().unwrap());
    assert_eq!(answered(refusing, request).await.headers()[REQUEST_ID], "mine");
}

/// Signs tokens.
struct Issuer(Ed25519KeyPair);

impl Issuer {
    fn new() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn policy(&self) -> Policy {
        let folder = tempfile::tempdir().unwrap();
        let jwks_file = folder.path().join("keys");
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key());
        let keys = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x }] });
        std::fs::write(&jwks_file, keys.to_string()).unwrap();
        let jwt = JwtSettings {
            jwks_file,
            issuer: "i".into(),
            audiences: vec!["a".into()],
            ..JwtSettings::default()
        };
        let settings = PolicySettings {
            jwt: Some(jwt),
            ..PolicySettings::default()
        };
        Policy::open(&settings).unwrap()
    }

    fn token(&self, id: u32) -> String {
        let claims = json!({ "iss": "i", "aud": "a", "sub": "s", "exp": u32::MAX, "jti": id });
        let [head, body] = [json!({ "alg": "EdDSA" }), claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(format!("{head}.{body}").as_bytes()));
        format!("{head}.{body}.{signature}")
    }
}

#[tokio::test]
async fn a_call_with_a_known_token_does_not_overtake_one_whose_token_is_verified() {
    let issuer = Issuer::new();
    let started = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&started);
    let inner = tower::service_fn(move |request: Request<Body>| {
        let noted = Arc::clone(&noted);
        noted.lock().push(request.uri().path().to_owned());
        ready(Ok(Response::new(Body::empty())))
    });
    let auth = Auth::new(Some(issuer.policy()));
    let mut path = path(inner, auth.clone());
    let connection = Remote::new(Peer::Unix, None);
    let mut call = |method: &str, token: u32| {
        let request = Request::builder().uri(method).extension(connection.clone());
        let request = request.header(AUTHORIZATION, format!("Bearer {}", issuer.token(token)));
        path.call(request.body(Body::empty()).unwrap())
    };
    call("/before", 1).await.unwrap();
    let another = PresentedCredentials::Verified(AuthenticatedIdentity {
        identity: Identity::authenticated("jwt:b"),
        until: Until::default(),
    });
    let verifications = Arc::clone(&connection.verifications);
    let (_, turn) = verifications.authenticate(auth, another, ready(())).await.unwrap();
    let mut new = call("/new", 2).fuse();
    assert!(poll_immediate(&mut new).await.is_none(), "another call has its turn");
    let mut known = call("/known", 1).fuse();
    assert!(poll_immediate(&mut known).await.is_none(), "it waits for its turn");
    drop(turn);
    while started.lock().len() < 3 {
        let _ = poll_immediate(&mut new).await;
        for _ in 0..2 {
            let _ = poll_immediate(&mut known).await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(*started.lock(), ["/before", "/new", "/known"]);
}
