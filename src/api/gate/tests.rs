use std::future::poll_fn;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tonic::{Code, Status};
use tower::{ServiceExt, service_fn};

use super::*;
use crate::api::status::reason;

/// A body that never says anything.
#[derive(Debug, Default)]
struct Silent;

impl http_body::Body for Silent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Pending
    }
}

fn settings(most: usize) -> Settings {
    Settings {
        max_acquires: most,
        max_streams: most,
        max_calls: most,
        ..Settings::default()
    }
}

struct House {
    permits: Arc<Permits>,
    drain: CancellationToken,
}

impl House {
    fn new(most: usize) -> Self {
        let drain = CancellationToken::new();
        let permits = Arc::new(Permits::new(&settings(most), drain.clone()));
        Self { permits, drain }
    }

    /// Calls a method whose answer comes at once, with a body that goes on.
    async fn call(&self, method: &str) -> Response<Passed<Silent>> {
        let inner = service_fn(|_: Request<Body>| futures::future::ok::<_, Status>(Response::new(Silent)));
        let request = Request::builder().uri(method).body(Body::empty()).unwrap();
        let gate = Gate::new(inner, self.permits.clone());
        gate.oneshot(request).await.unwrap()
    }

    /// The code and reason with which a method is refused; nothing when it is let in.
    async fn refusal(&self, method: &str) -> Option<(Code, String)> {
        let status = Status::from_header_map(self.call(method).await.headers())?;
        Some((status.code(), reason(&status)?))
    }
}

const ACQUIRE: &str = "/fencepost.v1.LockService/Acquire";
const RENEW: &str = "/fencepost.v1.LockService/Renew";
const RELEASE: &str = "/fencepost.v1.LockService/Release";
const WATCH: &str = "/fencepost.v1.LockService/WatchLock";
const GET: &str = "/fencepost.v1.LockService/GetLock";

#[tokio::test]
async fn open_calls_of_other_kinds_keep_no_release_out() {
    let house = House::new(1);
    let _acquire = house.call(ACQUIRE).await;
    let _watch = house.call(WATCH).await;
    let _get = house.call(GET).await;
    let full = Some((Code::ResourceExhausted, "OVERLOADED".to_owned()));
    assert_eq!(house.refusal(ACQUIRE).await, full);
    assert_eq!(house.refusal(WATCH).await, full);
    assert_eq!(house.refusal(GET).await, full);
    assert_eq!(house.refusal(RELEASE).await, None);
    assert_eq!(house.refusal(RENEW).await, None);
}

#[tokio::test]
async fn a_place_is_free_again_when_its_call_ends() {
    let house = House::new(1);
    let first = house.call(WATCH).await;
    assert!(house.refusal(WATCH).await.is_some());
    drop(first);
    assert_eq!(house.refusal(WATCH).await, None);
}

#[tokio::test]
async fn a_drain_refuses_all_but_what_finishes() {
    let house = House::new(1);
    house.drain.cancel();
    let draining = Some((Code::Unavailable, "DRAINING".to_owned()));
    for method in [ACQUIRE, WATCH, GET, "/fencepost.v1.AdminService/Admit"] {
        assert_eq!(house.refusal(method).await, draining, "{method}");
    }
    for method in [RENEW, RELEASE, "/grpc.health.v1.Health/Check"] {
        assert_eq!(house.refusal(method).await, None, "{method}");
    }
}

#[tokio::test]
async fn a_drain_ends_open_streams_at_once() {
    let house = House::new(1);
    let mut body = house.call(WATCH).await.into_body();
    let next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
    let drain = house.drain.clone();
    let (frame, ()) = tokio::join!(next, async move { drain.cancel() });
    let trailers = frame.unwrap().unwrap().into_trailers().unwrap();
    let status = Status::from_header_map(&trailers).unwrap();
    assert_eq!(reason(&status).as_deref(), Some("DRAINING"));
}
