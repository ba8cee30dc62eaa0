//! Many leases that sessions keep: none is lost, and keeping them costs the server little.

use std::time::{Duration, Instant};

use fencepost::api::proto::AcquireRequest;
use fencepost::api::proto::session_command::{Command, KeepAlive};
use fencepost::api::proto::session_event::Event;

use super::server::{Server, cpu};
use super::session_client::{SessionClient, acquire};
use super::sessions::{open, start_on};
use super::traffic::{Client, alone, ask, connect, held, runtime};

/// How many leases are kept, and by how many sessions of ten.
const LEASES: usize = if cfg!(feature = "soak") { 10_000 } else { 1_500 };
const OF_EACH: usize = 10;
/// How long each lives without a renewal, which is longer than it takes to take all; and for how long they are kept.
const TTL: Duration = Duration::from_secs(if cfg!(feature = "soak") { 30 } else { 12 });
const KEPT: Duration = Duration::from_secs(if cfg!(feature = "soak") { 300 } else { 12 });
/// The processor time that keeping them may take in a soak of an optimised build, in seconds of each second.
const MAY_TAKE: f64 = 0.02;
/// How many commands are sent in one message.
const BATCH: usize = 200;

/// Takes locks of these numbers and keeps them.
async fn take_all(session: &mut SessionClient, numbers: std::ops::Range<usize>) {
    let locks: Vec<_> = numbers.collect();
    for some in locks.chunks(BATCH) {
        let takes = some.iter().map(|number| {
            let request = AcquireRequest {
                ttl: Some(TTL.try_into().expect("a short time")),
                ..ask(&format!("kept-{number}"), Duration::ZERO)
            };
            acquire(request, true)
        });
        for id in session.send(takes.collect()) {
            session.lease(id).await.expect("it is free");
        }
    }
}

/// Answers each ask until then, and says how many beats renewed all leases.
async fn keep(session: &mut SessionClient, until: Instant) -> usize {
    // An ask may have come while the locks were taken.
    session.one(Command::KeepAlive(KeepAlive {}));
    let mut beats = 0;
    while Instant::now() < until {
        match session.next().await.expect("no error").expect("not the end") {
            Event::Ask(_) => drop(session.one(Command::KeepAlive(KeepAlive {}))),
            Event::Kept(kept) => {
                assert!(kept.not_renewed.is_empty(), "{:?}", kept.not_renewed.first());
                beats += 1;
            }
            Event::Lost(lost) => panic!("{lost:?}"),
            other => panic!("{other:?}"),
        }
    }
    beats
}

/// Takes all leases by these sessions and keeps them.
async fn keep_all(server: &Server, client: &Client, sessions: usize) {
    let of_each = LEASES / sessions;
    let takes = (0..sessions).map(|number| async move {
        let mut session = open(client).await;
        take_all(&mut session, number * of_each..(number + 1) * of_each).await;
        session
    });
    let mut open_sessions = futures::future::join_all(takes).await;
    assert_eq!(held(client).await, LEASES);
    let (began, before) = (Instant::now(), cpu(server.id()));
    let until = began + KEPT;
    let beats = open_sessions.iter_mut().map(|session| keep(session, until));
    let beats = futures::future::join_all(beats).await;
    let (took, of_time) = (cpu(server.id()).saturating_sub(before), began.elapsed());
    let share = took.as_secs_f64() / of_time.as_secs_f64();
    println!(
        "{LEASES} leases of {sessions} sessions: {:.2} % of a processor",
        share * 100.0
    );
    // One at each third of the TTL, and no more than one more at the start.
    let expected = KEPT.as_secs_f64() / TTL.as_secs_f64() * 3.0;
    for beats in beats {
        assert!(beats as f64 > expected / 2.0, "{beats} of {expected}");
        assert!((beats as f64) < expected + 2.0, "{beats} of {expected}");
    }
    assert_eq!(held(client).await, LEASES, "none was lost");
    if cfg!(feature = "soak") && !cfg!(debug_assertions) {
        assert!(share < MAY_TAKE, "{share}");
    }
}

#[test]
fn thousands_of_leases_are_kept_by_one_session() {
    let _alone = alone();
    let (_home, server) = start_on("", "locks.redb");
    runtime().block_on(async {
        let client = connect(&server.address).await;
        keep_all(&server, &client, 1).await;
    });
}

#[test]
fn thousands_of_leases_are_kept_by_sessions_of_ten() {
    let _alone = alone();
    let (_home, server) = start_on("", "locks.redb");
    runtime().block_on(async {
        let client = connect(&server.address).await;
        keep_all(&server, &client, LEASES / OF_EACH).await;
    });
}
