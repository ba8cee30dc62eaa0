use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::{BoxFuture, join_all};
use http::{Request, Response};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use tower::Service;

use super::*;
use crate::api::capacity::Capacity;
use crate::api::connection::Remote;
use crate::api::console::Limits;
use crate::api::console::overview_permits::{OverviewPermits, PLACES, READING};
use crate::api::peer::Peer;
use crate::api::settings::Settings;

fn lock(name: &str, owner: &str, waiters: u32, ttl_s: i64) -> proto::LockSummary {
    proto::LockSummary {
        name: name.into(),
        holder_count: 1,
        waiter_count: waiters,
        first_holder: Some(proto::Holder {
            owner: owner.into(),
            remaining_ttl: Some(prost_types::Duration {
                seconds: ttl_s,
                nanos: 0,
            }),
            ..proto::Holder::default()
        }),
    }
}

#[test]
fn the_longest_queues_and_the_owners_of_most_locks_come_first() {
    let one = Holding {
        owner: "one".into(),
        identity: String::new(),
    };
    let mut reading = Reading {
        of: Some(one),
        ..Reading::default()
    };
    let many = (0..300).map(|number| lock(&format!("many-{number:03}"), "batch", 1, 9));
    reading.add(many.collect());
    reading.add(vec![
        lock("b", "one", 7, 3),
        lock("a", "one", 7, 2),
        lock("idle", "two", 0, 1),
    ]);
    let json = reading.json().unwrap_or_else(|status| panic!("{status}"));
    let shown: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let names = |key: &str, of: &str| -> Vec<String> {
        let all = shown[key].as_array().unwrap().iter();
        all.map(|one| one[of].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("longest", "name")[..3], ["a", "b", "many-000"]);
    assert_eq!(shown["longest"].as_array().unwrap().len(), SHOWN);
    assert_eq!(shown["longest"][0]["firstHolder"]["owner"], "one");
    assert_eq!(names("held", "name"), ["b", "a"]);
    assert_eq!(names("owners", "owner"), ["batch", "one", "two"]);
    assert_eq!(
        (&shown["owners"][0]["locks"], &shown["owners"][1]["shortestTtlS"]),
        (&300.into(), &2.0.into())
    );
    assert_eq!(shown["owners"][0]["names"].as_array().unwrap().len(), NAMED);
    assert_eq!((&shown["locks"], &shown["waiters"]), (&303.into(), &314.into()));
}

#[test]
fn owners_are_counted_within_a_bound_of_bytes() {
    let mut reading = Reading::default();
    let owner = "x".repeat(200);
    let many = (0..20_000).map(|number| lock(&format!("lock-{number}"), &format!("{owner}{number}"), 0, 9));
    reading.add(many.collect());
    assert!(reading.owner_bytes < OWNER_BYTES + 2048, "{}", reading.owner_bytes);
    assert!(reading.owners.len() > 1000 && reading.owners.len() < 20_000);
    let json = reading.json().unwrap_or_else(|status| panic!("{status}"));
    let shown: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&shown["locks"], &shown["allOwners"]), (&20_000.into(), &false.into()));
}

/// How long the store takes for a page.
const SLOW: Duration = Duration::from_secs(1);

/// How many calls of a store are under way, and how many were at most.
type Counts = Arc<[AtomicUsize; 2]>;
type Answering = BoxFuture<'static, Result<Response<Body>, Infallible>>;

/// A store with so many pages, each of which takes this time.
fn slow(
    pages: usize,
    each: Duration,
    counts: &Counts,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = Answering> + Clone + Send + 'static
{
    let own = Arc::clone(counts);
    tower::service_fn(move |request: Request<Body>| {
        let counts = Arc::clone(&own);
        let read = tower::service_fn(move |asked: tonic::Request<proto::ListLocksRequest>| {
            let counts = Arc::clone(&counts);
            async move {
                let now = counts[0].fetch_add(1, Ordering::Relaxed) + 1;
                counts[1].fetch_max(now, Ordering::Relaxed);
                sleep(each).await;
                counts[0].fetch_sub(1, Ordering::Relaxed);
                let number: usize = asked.into_inner().page_token.parse().unwrap_or(0);
                let next = (number + 1 < pages).then(|| (number + 1).to_string());
                Ok(tonic::Response::new(proto::ListLocksResponse {
                    locks: vec![lock(&number.to_string(), "me", 1, 9)],
                    next_page_token: next.unwrap_or_default(),
                }))
            }
        });
        let answer: Answering = Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<proto::ListLocksResponse, proto::ListLocksRequest>::default());
            Ok(grpc.unary(read, request).await)
        });
        answer
    })
}

fn calls_of<S>(service: S, limits: Limits, remote: Remote) -> Calls<S> {
    Calls {
        service,
        limits,
        remote,
    }
}

fn limits(overviews: &Arc<OverviewPermits>) -> Limits {
    Limits {
        request_bytes: 1000,
        page: 1000,
        overviews: Arc::clone(overviews),
    }
}

const ALL: &[u8] = br#"{"namespace":"default"}"#;

#[tokio::test(start_paused = true)]
async fn an_overview_of_a_slow_store_shows_what_was_read_in_time() {
    let service = slow(1000, SLOW, &Counts::default());
    let mut calls = calls_of(service, limits(&Arc::default()), Remote::new(Peer::Unix, None));
    let began = Instant::now();
    let json = overview(&mut calls, &HeaderMap::new(), ALL).await;
    let json = json.unwrap_or_else(|status| panic!("{status}"));
    assert!(began.elapsed() <= TIME_LIMIT + SLOW, "{:?}", began.elapsed());
    let shown: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let locks = shown["locks"].as_u64().unwrap();
    assert!((6..=8).contains(&locks), "{shown}");
    assert_eq!(shown["complete"], false);

    let service = slow(3, SLOW, &Counts::default());
    let mut calls = calls_of(service, limits(&Arc::default()), Remote::new(Peer::Unix, None));
    let json = overview(&mut calls, &HeaderMap::new(), ALL).await;
    let shown: serde_json::Value = serde_json::from_slice(&json.unwrap_or_else(|status| panic!("{status}"))).unwrap();
    assert_eq!((&shown["locks"], &shown["complete"]), (&3.into(), &true.into()));

    let service = slow(3, Duration::from_secs(3600), &Counts::default());
    let mut calls = calls_of(service, limits(&Arc::default()), Remote::new(Peer::Unix, None));
    let failed = overview(&mut calls, &HeaderMap::new(), ALL).await;
    assert_eq!(failed.unwrap_err().code(), tonic::Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn only_a_few_overviews_are_read_at_once_and_few_wait() {
    let counts = Counts::default();
    let service = slow(1, Duration::from_millis(100), &counts);
    let permits = Arc::default();
    let all = (0..PLACES + 8).map(|_| {
        let mut calls = calls_of(service.clone(), limits(&permits), Remote::new(Peer::Unix, None));
        async move { overview(&mut calls, &HeaderMap::new(), ALL).await }
    });
    let ended = join_all(all).await;
    assert_eq!(counts[1].load(Ordering::Relaxed), READING);
    let refused: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 8);
    assert!(
        refused
            .iter()
            .all(|status| status.code() == tonic::Code::ResourceExhausted)
    );

    // Nobody waits for ever.
    let service = slow(1000, SLOW, &Counts::default());
    let all = (0..2 * READING).map(|_| {
        let mut calls = calls_of(service.clone(), limits(&permits), Remote::new(Peer::Unix, None));
        async move { overview(&mut calls, &HeaderMap::new(), ALL).await }
    });
    let began = Instant::now();
    let ended = join_all(all).await;
    assert_eq!(ended.iter().filter(|ended| ended.is_ok()).count(), READING);
    assert!(began.elapsed() <= TIME_LIMIT + SLOW, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn overviews_of_one_address_leave_places_to_others() {
    let capacity = Capacity::new(&Settings::default(), None);
    let remote = |address: &str| {
        let peer = Peer::Tcp(address.parse().unwrap());
        let mut remote = Remote::new(peer, None);
        remote.usage = capacity.connect(peer, CancellationToken::new()).map(Arc::new);
        assert!(remote.usage.is_some());
        remote
    };
    let (permits, counts) = (Arc::default(), Counts::default());
    // So many that some of them still wait when others of them have been read.
    let crowd = (0..2 * READING).map(|number| {
        let own = remote(&format!("10.0.0.1:{number}"));
        let mut calls = calls_of(slow(3, SLOW, &counts), limits(&permits), own);
        async move { overview(&mut calls, &HeaderMap::new(), ALL).await.map(drop) }
    });
    let crowd = tokio::spawn(join_all(crowd));
    for number in 0..4 {
        sleep(SLOW).await;
        let own = remote(&format!("10.0.0.2:{number}"));
        let mut calls = calls_of(slow(1, SLOW / 2, &Counts::default()), limits(&permits), own);
        let began = Instant::now();
        let read = overview(&mut calls, &HeaderMap::new(), ALL).await;
        assert!(read.is_ok(), "{read:?}");
        assert!(began.elapsed() < SLOW, "it does not wait");
    }
    let crowd = crowd.await.unwrap();
    assert_eq!(counts[1].load(Ordering::Relaxed), READING / 2);
    let refused = crowd.into_iter().filter_map(Result::err);
    assert_eq!(refused.count(), READING, "in 4 s two times half of the places");
}
