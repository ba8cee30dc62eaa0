use tonic::body::Body as TonicBody;
use tonic_prost::ProstCodec;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::api::proto::{AcquireRequest, AcquireResponse};
use crate::api::status::reason;
use crate::backend::BackendError;

const REQUEST_BYTES: usize = 16;

/// The client's status when `handle` processes a framed request of these bytes.
async fn status_of<H, F>(bytes: &str, handle: H) -> Status
where
    H: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<tonic::Response<AcquireResponse>, Status>> + Send + 'static,
{
    let inner = service_fn(move |request| {
        let handle = handle.clone();
        let handler = service_fn(move |_: tonic::Request<AcquireRequest>| handle());
        Box::pin(async move {
            let codec = ProstCodec::<AcquireResponse, AcquireRequest>::default();
            let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(REQUEST_BYTES);
            Ok::<_, Status>(grpc.unary(handler, request).await)
        })
    });
    let request = Request::new(TonicBody::new(bytes.to_owned()));
    let response = CatchPanic {
        request_bytes: REQUEST_BYTES,
    }
    .around(inner)
    .oneshot(request)
    .await
    .unwrap();
    Status::from_header_map(response.headers()).unwrap()
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
    let unknown = service_fn(|_: Request<TonicBody>| {
        let response = Response::builder().header("grpc-status", "12").body(TonicBody::empty());
        futures::future::ok::<_, Status>(response.unwrap())
    });
    let layer = CatchPanic {
        request_bytes: REQUEST_BYTES,
    };
    let response = layer
        .around(unknown)
        .oneshot(Request::new(TonicBody::empty()))
        .await
        .unwrap();
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_eq!((status.code(), status.message()), (Code::Unimplemented, UNKNOWN_METHOD));
}
