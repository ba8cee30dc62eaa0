use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tokio::time::Instant;
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
const CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
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
    for method in [RENEW, RELEASE, CHECK] {
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

#[tokio::test]
async fn what_is_open_to_nobody_keeps_no_lease_and_no_watch_out() {
    let house = House::new(1);
    let _check = house.call(CHECK).await;
    let _stream = house.call(HEALTH_WATCH).await;
    for method in [CHECK, HEALTH_WATCH] {
        assert!(house.refusal(method).await.is_some(), "{method}");
    }
    for method in [RENEW, WATCH, GET] {
        assert_eq!(house.refusal(method).await, None, "{method}");
    }
}

impl House {
    /// Calls a method with a request whose message never comes, and says why that ended and when.
    async fn half_open(&self, method: &str) -> (Status, Duration) {
        let began = Instant::now();
        let inner = service_fn(|request: Request<Body>| {
            Box::pin(async move {
                let mut body = request.into_body();
                let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
                let late = frame.expect("a frame").expect_err("no message came");
                Ok::<_, Status>(late.into_http::<Silent>())
            })
        });
        let request = Request::builder().uri(method).body(Body::new(Silent)).unwrap();
        let answer = Gate::new(inner, self.permits.clone()).oneshot(request).await.unwrap();
        (Status::from_header_map(answer.headers()).unwrap(), began.elapsed())
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_message_does_not_come_leaves_its_place() {
    let house = House::new(1);
    for method in [RENEW, RELEASE, CHECK, GET, ACQUIRE, WATCH, HEALTH_WATCH] {
        let half_open = tokio::time::timeout(Duration::from_secs(60), house.half_open(method));
        let (status, after) = half_open.await.expect(method);
        assert_eq!(status.code(), Code::InvalidArgument, "{method}");
        assert_eq!(reason(&status).as_deref(), Some("INVALID_FIELD"), "{method}");
        assert!(
            after <= Duration::from_secs(5) + Duration::from_millis(10),
            "{method}: {after:?}"
        );
        assert_eq!(house.refusal(method).await, None, "{method}");
    }
}
