//! Sessions while Redis stands still.

use std::time::{Duration, Instant};

use fencepost::api::proto::{AcquireRequest, Lease};
use fencepost::locks::Locks;

use crate::faults_redis::harness::{replica, standalone, take};
use crate::faults_redis::keeping::served;
use crate::faults_redis::servers::{RedisServer, available};
use crate::faults_redis::session_client::{SessionClient, acquire, renew};

/// How long Redis stands still, and for how long the first and the second command wait.
const PAUSE: Duration = Duration::from_millis(1500);
const FIRST: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(2);
/// How much longer a wait may take.
const LONGER: Duration = Duration::from_millis(450);

async fn open(locks: Vec<Locks>) -> SessionClient {
    let (commands, sent) = SessionClient::commands();
    let events = served(locks).await.session(sent).await.expect("a session");
    let opened = SessionClient::opened(commands, events.into_inner()).await;
    opened.expect("it is open")
}

fn ask(locks: &Locks, name: &str, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        namespace: locks.namespace().to_string(),
        name: name.into(),
        owner: "b".into(),
        wait: Some(wait.try_into().expect("a short time")),
        ..AcquireRequest::default()
    }
}

/// Asserts that a wait which was sent then ends in time.
async fn ends(session: &mut SessionClient, id: u64, sent: Instant, wait: Duration) {
    let status = session.result(id).await.expect_err("it is held");
    let took = sent.elapsed();
    let reason = status.metadata().get("fencepost-reason");
    assert!(reason.is_some_and(|reason| reason == "WAIT_TIMEOUT"), "{status:?}");
    assert!(took >= wait && took < wait + LONGER, "{took:?}");
}

/// The Acquires begin when the Renew before them on their lock was answered. One of them ends before, the other after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wait_of_a_command_counts_from_its_arrival_also_behind_one_that_hangs() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let redis = replica(&standalone(&server.url())).await;
    let held = take(&redis, "a", Duration::from_secs(60)).await;
    let held = Lease {
        lease_id: held.key.to_lease_id(),
        ..Lease::default()
    };
    let mut session = open(vec![redis.clone()]).await;
    server.pause();
    let sent = Instant::now();
    let ids = session.send(vec![
        renew(&held, None),
        acquire(ask(&redis, "a", FIRST), false),
        acquire(ask(&redis, "a", SECOND), false),
        renew(&held, None),
    ]);
    ends(&mut session, ids[1], sent, FIRST).await;
    tokio::time::sleep(PAUSE.saturating_sub(sent.elapsed())).await;
    server.resume();
    session.lease(ids[0]).await.expect("renewed");
    ends(&mut session, ids[2], sent, SECOND).await;
    session.lease(ids[3]).await.expect("renewed");
}
