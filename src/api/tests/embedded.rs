//! A grant whose answer is dropped, and one whose answer is sent, with a real store.

use std::future::poll_fn;
use std::pin::Pin;

use http_body::Body as _;
use prost::Message;
use tonic::body::Body;
use tower::ServiceExt;

use super::super::*;
use crate::api::authenticate::Caller;
use crate::api::large_reads::Step;
use crate::api::proto::{AcquireRequest, GetLockRequest, ListLocksRequest};
use crate::auth::Auth;
use crate::backend::embedded::Store;
use crate::limits::Limits;
use crate::locks::{Acquire, Locks};
use crate::name::{Identity, LockName, Metadata, Mode, Namespace, Owner};

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

// G193
#[tokio::test]
async fn pages_and_long_queues_are_read_when_there_is_a_place_to_convert_them() {
    const CALLS: usize = 10;
    let (namespaces, settings) = (namespaces(), Settings::default());
    let locks = namespaces.get("default").unwrap();
    for number in 0..50 {
        let reader = Acquire {
            lock: LockName::new("a").unwrap(),
            owner: Owner::new(&number.to_string()).unwrap(),
            identity: Identity::anonymous(),
            mode: Mode::Shared,
            ttl: None,
            wait: Duration::ZERO,
            request_id: None,
            reentrant: false,
            metadata: Metadata::default(),
        };
        locks.acquire(reader).await.unwrap().delivered();
    }
    let capacity = Capacity::new(&settings, None);
    let api = Arc::new(Api {
        guarded: GuardedNamespaces::new(namespaces.clone(), Access::default().quotas),
        permits: Arc::new(Permits::new(&settings, &capacity, CancellationToken::new())),
        metrics: CallMetrics(None),
        denied: DeniedActions::default(),
        bounds: Bounds::of(&settings),
        pages: Pages::of(&settings),
        large_reads: LargeReads::new(1),
        request_bytes: settings.request_bytes,
        response_bytes: settings.response_bytes,
    });
    let mut caller = Caller::of(&mut http::Extensions::new());
    caller.policy = None;
    let read = Step::Read(Namespace::new("default").unwrap());
    for is_list in [true, false] {
        let held = api.large_reads.enter(Step::Convert, &caller).await;
        let calls = (0..CALLS).map(|_| {
            let (api, caller) = (Arc::clone(&api), caller.clone());
            let list = ListLocksRequest {
                namespace: "default".into(),
                ..ListLocksRequest::default()
            };
            let get = GetLockRequest {
                namespace: "default".into(),
                name: "a".into(),
            };
            tokio::spawn(async move {
                match is_list {
                    true => api
                        .list_locks(caller, list)
                        .await
                        .map(|(page, place)| (page.locks.len(), place)),
                    false => api
                        .get_lock(&caller, get)
                        .await
                        .map(|(state, place)| (state.lock.unwrap().holders.len(), place)),
                }
            })
        });
        let calls: Vec<_> = calls.collect();
        let queued = async {
            while api.large_reads.count(&read) != (1, CALLS - 1) || api.large_reads.count(&Step::Convert) != (1, 1) {
                tokio::task::yield_now().await;
            }
        };
        let queued = tokio::time::timeout(Duration::from_secs(10), queued).await;
        queued.expect("one was read, the others wait for it");
        drop(held);
        for call in calls {
            let (answered, place) = call.await.unwrap().unwrap();
            assert_eq!(answered, if is_list { 1 } else { 50 });
            assert!(
                place.is_some(),
                "it is kept until the answer is in the form for its client"
            );
        }
    }
}
