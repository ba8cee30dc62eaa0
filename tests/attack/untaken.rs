//! Clients that take no answer: their windows are zero, and they answer pings.

use std::time::Duration;

use fencepost::api::proto::session_command::{Acquire, Command};
use fencepost::api::proto::{
    AcquireRequest, KeepAliveRequest, RenewRequest, SessionCommand, SessionRequest, WatchLockRequest,
};
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use tonic_health::pb::HealthCheckRequest;

use super::fixture::{Attacker, Client, NAMESPACE, ask, bearers, framed, runtime, start, work};
use super::server::Server;

/// How soon the connection of a client that takes nothing is closed.
const CLOSED_WITHIN: Duration = Duration::from_secs(15);
/// For how long the normal client works beside an attack.
const WORK: Duration = Duration::from_secs(3);
/// How many calls of a kind the server takes at once.
const MOST: u32 = 50;
const RENEW: &str = "/fencepost.v1.LockService/Renew";
const ACQUIRE: &str = "/fencepost.v1.LockService/Acquire";
const WATCH: &str = "/fencepost.v1.LockService/WatchLock";
const KEEP_ALIVE: &str = "/fencepost.v1.LockService/KeepAlive";
const SESSION: &str = "/fencepost.v1.LockService/Session";
const CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// All callers are at one address here, which has this share of everything.
fn limits(peer_share: u32) -> String {
    format!(
        "[server]\npeer_share = {peer_share}\ncall_limit = {MOST}\nacquire_limit = {MOST}\nstream_limit = {MOST}\n{}",
        bearers(&["a", "b"])
    )
}

/// Begins far more calls than the server takes at once, and keeps all their answers waiting.
async fn stall(attacker: &Attacker, method: &str, message: &impl Message) -> Vec<h2::client::ResponseFuture> {
    let mut answers = Vec::new();
    for _ in 0..10 * MOST {
        answers.extend(attacker.call(method, message).await);
    }
    answers
}

/// The normal client beside calls of one method whose answers nobody takes, by a caller with a name or without
/// one. Answers how long the server bore with it.
fn beside(server: &Server, name: Option<&str>, method: &str, message: &impl Message) -> Duration {
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("b")).await;
        let attacker = Attacker::connect(&server.address, name, 0).await;
        let began = Instant::now();
        let _untaken = stall(&attacker, method, message).await;
        work(&normal, WORK).await.well();
        timeout(CLOSED_WITHIN + WORK, attacker.closed())
            .await
            .expect("it is closed");
        began.elapsed()
    })
}

// G46
#[test]
fn answers_to_renewals_and_acquires_that_nobody_takes_hold_nobody_up() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &limits(100));
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("b")).await;
        let owner = Client::connect(&server.address, Some("a")).await;
        let lease = owner.acquire(ask("of-a", Duration::ZERO)).await.expect("it is free");
        let attacker = Attacker::connect(&server.address, Some("a"), 0).await;
        let own = RenewRequest {
            lease_id: lease.lease_id,
            ttl: None,
        };
        let began = Instant::now();
        let _renewals = stall(&attacker, RENEW, &own).await;
        let mut _acquires = Vec::new();
        for number in 0..10 * MOST {
            let each: AcquireRequest = ask(&format!("of-a/{number}"), Duration::ZERO);
            _acquires.extend(attacker.call(ACQUIRE, &each).await);
        }
        work(&normal, WORK).await.well();
        assert!(held_by_a(&normal).await > 0, "some were granted");
        timeout(CLOSED_WITHIN, attacker.closed()).await.expect("it is closed");
        println!("closed after {:?}", began.elapsed());

        // Nobody took the grants, so they are taken back long before their TTL.
        let mut left = u32::MAX;
        while left != 0 && began.elapsed() < CLOSED_WITHIN + WORK {
            left = held_by_a(&normal).await;
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(left, 0, "grants that nobody took are still held");
    });
}

/// How many of the attacker's locks are held.
async fn held_by_a(client: &Client) -> u32 {
    let all = fencepost::api::proto::ListLocksRequest {
        namespace: NAMESPACE.into(),
        prefix: "of-a/".into(),
        page_size: 1_000,
        ..Default::default()
    };
    let page = client.locks.clone().list_locks(client.with_token(all)).await;
    let locks = page.expect("a page").into_inner().locks;
    locks.iter().map(|lock| lock.holder_count).sum()
}

// G46
#[test]
fn health_checks_of_nobody_whose_answers_nobody_takes_hold_nobody_up() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &limits(50));
    let closed = beside(&server, None, CHECK, &HealthCheckRequest::default());
    println!("closed after {closed:?}");
    assert!(closed < CLOSED_WITHIN + WORK / 2, "{closed:?}");
}

// G46
#[test]
fn streams_that_nobody_reads_end_and_hold_nobody_up() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &limits(100));
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("b")).await;
        let nobody = Attacker::connect(&server.address, None, 0).await;
        let somebody = Attacker::connect(&server.address, Some("a"), 0).await;
        let watched = WatchLockRequest {
            namespace: NAMESPACE.into(),
            name: "worked".into(),
        };
        let began = Instant::now();
        let health = stall(&nobody, HEALTH_WATCH, &HealthCheckRequest::default()).await;
        let mut streams = Vec::new();
        for _ in 0..5 * MOST {
            streams.extend(somebody.call(WATCH, &watched).await);
            streams.extend(somebody.call(KEEP_ALIVE, &KeepAliveRequest::default()).await);
        }
        // Half of the places are left to other identities.
        let mut own = normal.locks.clone();
        let stream = own
            .watch_lock(normal.with_token(watched))
            .await
            .expect("a place is left");
        let mut stream = stream.into_inner();
        assert!(stream.message().await.expect("a message").is_some());
        work(&normal, WORK).await.well();
        let mut ended = 0;
        for answer in health.into_iter().chain(streams) {
            let Ok(answer) = answer.await else {
                ended += 1;
                continue;
            };
            let mut body = answer.into_body();
            while let Some(part) = timeout(CLOSED_WITHIN, body.data()).await.expect("it ends") {
                if part.is_err() {
                    ended += 1;
                    break;
                }
            }
        }
        assert!(began.elapsed() < CLOSED_WITHIN + WORK, "{:?}", began.elapsed());
        println!("{ended} streams ended within {:?}", began.elapsed());
        assert!(ended >= MOST / 2, "{ended} streams ended");
    });
}

/// Reads what arrives and acknowledges nothing, so that the window stays used. Answers whether the stream was ended.
async fn has_ended(stream: &mut h2::RecvStream) -> bool {
    while let Ok(Some(part)) = timeout(Duration::from_millis(50), stream.data()).await {
        if part.is_err() {
            return true;
        }
    }
    false
}

#[test]
fn a_stream_that_nobody_reads_ends_and_its_connection_serves_other_calls_on() {
    /// Room for the answer of a call, and not for all changes of a lock.
    const WINDOW: u32 = 300;
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &limits(100));
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("b")).await;
        let attacker = Attacker::connect(&server.address, Some("a"), WINDOW).await;
        let watched = WatchLockRequest {
            namespace: NAMESPACE.into(),
            name: "worked".into(),
        };
        let json = format!(r#"{{"namespace":"{NAMESPACE}","name":"worked"}}"#);
        let forms = [
            ("application/grpc", watched.encode_to_vec()),
            ("application/connect+json", json.into_bytes()),
        ];
        let (began, mut open, mut served) = (Instant::now(), Vec::new(), 0);
        for (content_type, message) in forms {
            let watch = attacker.call_as(content_type, WATCH, &message).await;
            open.push(watch.expect("a connection").await.expect("headers").into_body());
        }
        // The lock changes all the time.
        while !open.is_empty() && began.elapsed() < CLOSED_WITHIN + WORK {
            let lease = normal.acquire(ask("worked", Duration::ZERO)).await.expect("it is free");
            normal.release(&lease.lease_id).await.expect("it is held");
            assert!(attacker.is_served().await, "after {:?}", began.elapsed());
            served += 1;
            for mut watch in std::mem::take(&mut open) {
                if !has_ended(&mut watch).await {
                    open.push(watch);
                }
            }
        }
        println!(
            "they ended after {:?}, {served} other calls were served",
            began.elapsed()
        );
        assert!(open.is_empty(), "{} streams go on", open.len());
        sleep(WORK / 10).await;
        assert!(attacker.is_served().await, "the connection stays open");
    });
}

/// A request of a session for locks of the attacker.
fn takes(first: u64, locks: u64) -> SessionRequest {
    let command = |id: u64| SessionCommand {
        id,
        command: Some(Command::Acquire(Acquire {
            request: Some(ask(&format!("of-a/{id}"), Duration::ZERO)),
            keep: true,
        })),
    };
    SessionRequest {
        commands: (first..first + locks).map(command).collect(),
    }
}

// G46
#[test]
fn a_session_whose_client_takes_nothing_is_cut_and_its_grants_are_taken_back() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &limits(100));
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("b")).await;
        let attacker = Attacker::connect(&server.address, Some("a"), 0).await;
        let began = Instant::now();
        let (answer, mut commands) = attacker.open(SESSION).await.expect("a connection");
        for batch in 0..4 {
            commands
                .send_data(framed(&takes(batch * 20, 20)), false)
                .expect("the stream is open");
        }
        let mut events = answer.await.expect("headers").into_body();
        let mut granted = 0;
        while granted == 0 && began.elapsed() < WORK {
            granted = held_by_a(&normal).await;
        }
        assert!(granted > 0, "some were granted");
        work(&normal, WORK).await.well();
        let ended = timeout(CLOSED_WITHIN, events.data()).await.expect("it is cut");
        assert!(!matches!(ended, Some(Ok(_))), "{ended:?}");
        println!("cut after {:?}", began.elapsed());
        let mut left = u32::MAX;
        while left != 0 && began.elapsed() < CLOSED_WITHIN + WORK {
            left = held_by_a(&normal).await;
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(left, 0, "grants that nobody took are still held");
        assert!(attacker.is_served().await || attacker.is_closed(), "other calls go on");
    });
}

#[test]
fn a_session_with_garbage_ends_alone() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &limits(100));
    runtime().block_on(async {
        let attacker = Attacker::connect(&server.address, Some("a"), 65_535).await;
        let garbage: [&[u8]; 4] = [
            b"\0\0\0\0\x04\xff\xff\xff\xff",
            b"\0\xff\xff\xff\xff",
            b"\x07\0\0\0\x01a",
            b"GET / HTTP/1.1\r\n\r\n",
        ];
        for bytes in garbage {
            let (answer, mut commands) = attacker.open(SESSION).await.expect("a connection");
            commands
                .send_data(bytes::Bytes::from_static(bytes), false)
                .expect("the stream is open");
            let mut events = answer.await.expect("headers").into_body();
            while let Some(part) = timeout(CLOSED_WITHIN, events.data()).await.expect("it ends") {
                let part = part.expect("no reset");
                // What is read makes room for what comes.
                events
                    .flow_control()
                    .release_capacity(part.len())
                    .expect("it was taken");
            }
            let trailers = events.trailers().await.expect("no reset").expect("trailers");
            assert_eq!(trailers["grpc-status"], "3", "{bytes:?}: {trailers:?}");
        }
        assert!(attacker.is_served().await);
    });
}
