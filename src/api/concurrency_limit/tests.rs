use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::*;
use crate::api::capacity::Capacity;
use crate::api::connection::Remote;
use crate::api::peer::Peer;
use crate::api::settings::Settings;
use crate::api::status::{self, reason};
use crate::name::Identity;
use crate::rpc::path::{self, ACQUIRE, RELEASE, RENEW};

/// A body that never has a frame.
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

struct TestServer {
    permits: Arc<Permits>,
    drain: CancellationToken,
}

impl TestServer {
    fn new(most: usize) -> Self {
        let drain = CancellationToken::new();
        let settings = settings(most);
        let capacity = Capacity::new(&settings, None);
        let permits = Arc::new(Permits::new(&settings, &capacity, drain.clone()));
        Self { permits, drain }
    }

    /// An admitted call without an answer, which is open until the returned value is dropped.
    fn open(&self, method: &str) -> impl Sized {
        let request = Request::builder().uri(method).body(Body::empty()).unwrap();
        self.permits.begin(request)
    }

    /// Calls a method whose answer is ready at once and whose body does not end.
    fn call(&self, method: &str) -> Result<CallBody<Silent>, Status> {
        let request = Request::builder().uri(method).body(Body::empty()).unwrap();
        let (_, terms) = self.permits.begin(request).map_err(status::of)?;
        Ok(CallBody::new(Silent, None, terms, None))
    }

    /// The code and reason with which a method is refused; `None` if it is admitted.
    fn refusal(&self, method: &str) -> Option<(Code, String)> {
        let status = self.call(method).err()?;
        Some((status.code(), reason(&status)?))
    }
}

const WATCH: &str = path::WATCH_LOCK;
const CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
const GET: &str = path::GET_LOCK;

#[test]
fn open_calls_of_other_kinds_do_not_block_a_release() {
    let server = TestServer::new(1);
    let _acquire = server.open(ACQUIRE);
    let _watch = server.open(WATCH);
    let _get = server.open(GET);
    let full = Some((Code::ResourceExhausted, "OVERLOADED".to_owned()));
    assert_eq!(server.refusal(ACQUIRE), full);
    assert_eq!(server.refusal(WATCH), full);
    assert_eq!(server.refusal(GET), full);
    assert_eq!(server.refusal(RELEASE), None);
    assert_eq!(server.refusal(RENEW), None);
}

#[test]
fn each_kind_has_permits_of_its_own() {
    let kinds = [ACQUIRE, WATCH, HEALTH_WATCH, RENEW, CHECK, GET];
    for full in kinds {
        let server = TestServer::new(1);
        let _open = server.open(full);
        for method in kinds {
            assert_eq!(
                server.refusal(method).is_some(),
                method == full,
                "{method} beside {full}"
            );
        }
    }
}

#[test]
fn an_answered_call_returns_its_permit_before_its_client_reads_the_answer() {
    let server = TestServer::new(1);
    for method in [ACQUIRE, RENEW, RELEASE, CHECK, GET] {
        let _untaken = server.call(method);
        assert_eq!(server.refusal(method), None, "{method}");
    }
}

// G155
#[test]
fn one_identity_and_one_address_have_a_share_of_each_limit() {
    let server = TestServer::new(4);
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
        caller.usage = Some(usage.identified(&Identity::authenticated(name)).unwrap());
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
        let admit = |caller: &Caller| server.permits.admit(kind, Some(caller));
        let one = [
            known("10.0.0.1:1", "a"),
            known("10.0.0.2:1", "a"),
            known("10.0.0.3:1", "a"),
        ];
        let _held = (admit(&one[0]).unwrap(), admit(&one[1]).unwrap());
        assert!(admit(&one[2]).is_err(), "{kind:?}: the share of an identity is two");
        assert!(admit(&connected("10.0.0.4:1")).is_ok(), "{kind:?}");
    }
    let admit = |caller: &Caller| server.permits.admit(Kind::Finishing, Some(caller));
    let _held = (
        admit(&connected("10.0.0.5:1")).unwrap(),
        admit(&known("10.0.0.5:2", "b")).unwrap(),
    );
    assert!(
        admit(&connected("10.0.0.5:3")).is_err(),
        "the share of an address is two"
    );
    assert!(admit(&connected("10.0.0.6:1")).is_ok());
}

#[test]
fn a_stream_returns_its_permit_when_it_ends() {
    let server = TestServer::new(1);
    let first = server.call(WATCH);
    assert!(server.refusal(WATCH).is_some());
    drop(first);
    assert_eq!(server.refusal(WATCH), None);
}

// G62
#[test]
fn a_drain_admits_only_renew_release_and_health_checks() {
    let server = TestServer::new(1);
    server.drain.cancel();
    let draining = Some((Code::Unavailable, "DRAINING".to_owned()));
    for method in [ACQUIRE, WATCH, GET, path::ADMIT] {
        assert_eq!(server.refusal(method), draining, "{method}");
    }
    for method in [RENEW, RELEASE, CHECK] {
        assert_eq!(server.refusal(method), None, "{method}");
    }
}

#[tokio::test]
async fn a_drain_ends_open_streams_at_once() {
    let server = TestServer::new(1);
    let mut body = server.call(WATCH).unwrap();
    let next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
    let drain = server.drain.clone();
    let (frame, ()) = tokio::join!(next, async move { drain.cancel() });
    let trailers = frame.unwrap().unwrap().into_trailers().unwrap();
    let status = Status::from_header_map(&trailers).unwrap();
    assert_eq!(reason(&status).as_deref(), Some("DRAINING"));
}

#[test]
fn unauthenticated_calls_do_not_block_leases_and_watches() {
    let server = TestServer::new(1);
    let _check = server.open(CHECK);
    let _stream = server.call(HEALTH_WATCH);
    for method in [CHECK, HEALTH_WATCH] {
        assert!(server.refusal(method).is_some(), "{method}");
    }
    for method in [RENEW, WATCH, GET] {
        assert_eq!(server.refusal(method), None, "{method}");
    }
}

impl TestServer {
    /// Calls a method with a request whose message never arrives. Returns the status and the time until it.
    async fn half_open(&self, method: &str) -> (Status, Duration) {
        let began = Instant::now();
        let request = Request::builder().uri(method).body(Body::new(Silent)).unwrap();
        let (request, _terms) = self.permits.begin(request).unwrap();
        let mut body = request.into_body();
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let late = frame.expect("a frame").expect_err("no message arrives");
        (late, began.elapsed())
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_message_times_out_and_returns_its_permit() {
    let server = TestServer::new(1);
    for method in [RENEW, RELEASE, CHECK, GET, ACQUIRE, WATCH, HEALTH_WATCH] {
        let half_open = tokio::time::timeout(Duration::from_secs(60), server.half_open(method));
        let (status, after) = half_open.await.expect(method);
        assert_eq!(status.code(), Code::InvalidArgument, "{method}");
        assert_eq!(reason(&status).as_deref(), Some("INVALID_FIELD"), "{method}");
        assert!(
            after <= Duration::from_secs(5) + Duration::from_millis(10),
            "{method}: {after:?}"
        );
        assert_eq!(server.refusal(method), None, "{method}");
    }
}
