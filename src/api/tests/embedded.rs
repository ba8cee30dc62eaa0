//! A grant whose answer is dropped, and one whose answer is sent, with a real store.

use std::future::poll_fn;
use std::pin::Pin;

use http_body::Body as _;
use prost::Message;
use tonic::body::Body;
use tower::ServiceExt;

use super::super::*;
use crate::api::proto::AcquireRequest;
use crate::auth::Auth;
use crate::backend::embedded::Store;
use crate::limits::Limits;
use crate::locks::Locks;
use crate::name::{LockName, Namespace};

mod sessions;

fn namespaces() -> Namespaces {
    let namespace = Namespace::new("default").unwrap();
    let backend = Store::memory().namespace(namespace.clone());
    Namespaces::new(vec![Locks::new(namespace, Limits::default(), backend)])
}

fn acquire() -> http::Request<Body> {
    let message = AcquireRequest {
        namespace: "default".into(),
        name: "a".into(),
        owner: "o".into(),
        ..Default::default()
    };
    let frame = [
        &[0, 0, 0, 0, message.encoded_len() as u8],
        message.encode_to_vec().as_slice(),
    ]
    .concat();
    let request = http::Request::builder().uri("/fencepost.v1.LockService/Acquire");
    request.body(Body::new(String::from_utf8(frame).unwrap())).unwrap()
}

async fn answer(namespaces: &Namespaces) -> impl http_body::Body<Data: bytes::Buf> + Unpin + use<> {
    let settings = Settings::default();
    let capacity = Capacity::new(&settings, None);
    let permits = Arc::new(Permits::new(&settings, &capacity, CancellationToken::new()));
    let methods = methods(namespaces, &Access::default(), &settings, &permits).unwrap();
    let path = CallPath::new(
        methods,
        CallMetrics(None),
        Authentication::new(Auth::default(), None),
        permits,
    );
    path.oneshot(acquire()).await.unwrap().into_body()
}

async fn holders(namespaces: &Namespaces) -> usize {
    let locks = namespaces.get("default").unwrap();
    locks
        .inspect(&LockName::new("a").unwrap(), 10)
        .await
        .unwrap()
        .holder_count
}

#[tokio::test]
async fn an_answer_dropped_before_it_is_sent_releases_the_lock() {
    let namespaces = namespaces();
    let body = answer(&namespaces).await;
    assert_eq!(holders(&namespaces).await, 1);
    drop(body);
    let freed = async {
        while holders(&namespaces).await > 0 {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(5), freed).await;
    assert!(waited.is_ok(), "the lock is still held");
}

// G16
#[tokio::test]
async fn a_sent_answer_keeps_the_lock() {
    let namespaces = namespaces();
    let mut body = answer(&namespaces).await;
    let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
    let mut data = frame.and_then(|frame| frame.ok()?.into_data().ok()).unwrap();
    bytes::Buf::advance(&mut data, 1);
    drop((data, body));
    tokio::task::yield_now().await;
    assert_eq!(holders(&namespaces).await, 1);
}
