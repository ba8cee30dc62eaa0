use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tower::{ServiceExt, service_fn};

use super::*;
use crate::api::capacity::Capacity;
use crate::api::connection::{Peer, Remote};
use crate::api::settings::Settings;
use crate::api::status::reason;
use crate::name::Identity;

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
        let settings = settings(most);
        let capacity = Capacity::new(&settings, None);
        let permits = Arc::new(Permits::new(&settings, &capacity, drain.clone()));
        Self { permits, drain }
    }

    /// A call that was let in and has no answer yet, while what it gives back lives.
    fn open(&self, method: &str) -> impl Sized {
        let inner = service_fn(|_: Request<Body>| futures::future::pending::<Result<Response<Silent>, Status>>());
        let request = Request::builder().uri(method).body(Body::empty()).unwrap();
        ConcurrencyLimit::new(inner, self.permits.clone()).call(request)
    }

    /// Calls a method whose answer comes at once, with a body that goes on.
    async fn call(&self, method: &str) -> Response<PermitBody<Silent>> {
        let inner = service_fn(|_: Request<Body>| futures::future::ok::<_, Status>(Response::new(Silent)));
        let request = Request::builder().uri(method).body(Body::empty()).unwrap();
        let gate = ConcurrencyLimit::new(inner, self.permits.clone());
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
    let _acquire = house.open(ACQUIRE);
    let _watch = house.open(WATCH);
    let _get = house.open(GET);
    let full = Some((Code::ResourceExhausted, "OVERLOADED".to_owned()));
    assert_eq!(house.refusal(ACQUIRE).await, full);
    assert_eq!(house.refusal(WATCH).await, full);
    assert_eq!(house.refusal(GET).await, full);
    assert_eq!(house.refusal(RELEASE).await, None);
    assert_eq!(house.refusal(RENEW).await, None);
}

#[tokio::test]
async fn a_call_that_was_answered_keeps_nobody_out_however_late_its_client_takes_the_answer() {
    let house = House::new(1);
    for method in [ACQUIRE, RENEW, RELEASE, CHECK, GET] {
        let _untaken = house.call(method).await;
        assert_eq!(house.refusal(method).await, None, "{method}");
    }
}

#[tokio::test]
async fn one_identity_and_one_address_leave_the_others_their_share() {
    let house = House::new(4);
    let capacity = Capacity::new(&settings(4), None);
    let connected = |address: &str| {
        let peer = Peer::Tcp(address.parse().unwrap());
        let usage = capacity.connect(peer, CancellationToken::new()).unwrap();
        let mut caller = Caller::of(&mut http::Extensions::new());
        let mut remote = Remote::new(peer, None);
        remote.usage = Some(Arc::new(usage));
        caller.peer = Some(remote);
        caller
    };
    let known = |address: &str, name: &str| {
        let mut caller = connected(address);
        let usage = caller.peer.as_ref().unwrap().usage.clone().unwrap();
        caller.usage = Some(usage.identified(&Identity::proven(name)).unwrap());
        caller
    };
    let kinds = [
        Kind::Acquire,
        Kind::Stream,
        Kind::OpenStream,
        Kind::Finishing,
        Kind::Health,
        Kind::Other,
    ];
    for kind in kinds {
        let admit = |caller: &Caller| house.permits.admit(kind, Some(caller));
        let one = [
            known("10.0.0.1:1", "a"),
            known("10.0.0.2:1", "a"),
            known("10.0.0.3:1", "a"),
        ];
        let _held = (admit(&one[0]).unwrap(), admit(&one[1]).unwrap());
        assert!(admit(&one[2]).is_err(), "{kind:?}: two are the share of an identity");
        assert!(admit(&connected("10.0.0.4:1")).is_ok(), "{kind:?}");
    }
    let admit = |caller: &Caller| house.permits.admit(Kind::Finishing, Some(caller));
    let _held = (
        admit(&connected("10.0.0.5:1")).unwrap(),
        admit(&known("10.0.0.5:2", "b")).unwrap(),
    );
    assert!(
        admit(&connected("10.0.0.5:3")).is_err(),
        "two are the share of an address"
    );
    assert!(admit(&connected("10.0.0.6:1")).is_ok());
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
    let _check = house.open(CHECK);
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
        let answer = ConcurrencyLimit::new(inner, self.permits.clone()).oneshot(request).await.unwrap();
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
