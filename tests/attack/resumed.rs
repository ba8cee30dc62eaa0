//! Sessions that break off again and again, and locks that are kept for a day.

use std::time::Duration;

use fencepost::api::proto::session_command::{Acquire, Command, Open};
use fencepost::api::proto::session_event::Event;
use fencepost::api::proto::{
    AcquireRequest, GetLockRequest, ReleaseRequest, SessionCommand, SessionEvent, SessionRequest, SessionResponse,
};
use prost::Message;
use tokio::time::{Instant, sleep, timeout};

use super::fixture::{Attacker, Client, NAMESPACE, PATIENCE, ask, bearers, framed, runtime, start, wire, work};
use crate::server::resident;

const SESSION: &str = "/fencepost.v1.LockService/Session";
const MIB: u64 = 1 << 20;
/// The longest grace.
const GRACE: Duration = Duration::from_secs(10);
/// How many waits each stream has.
const WAITS: usize = 500;
/// How many places the server keeps of one identity.
const KEPT: usize = 10_000;
/// How long the normal client works beside the attack.
const WORK: Duration = Duration::from_secs(2);

async fn waiting(client: &Client) -> usize {
    let look = GetLockRequest {
        namespace: NAMESPACE.into(),
        name: "held".into(),
    };
    let shown = client.locks.clone().get_lock(client.with_token(look)).await;
    let shown = shown.expect("it may look").into_inner().lock;
    shown.expect("a state").waiter_count as usize
}

/// A stream whose waits have these request ids, and which breaks off once so many wait.
async fn break_off(attacker: &Attacker, (session, number): (&str, u64), ids: impl Iterator<Item = usize>) {
    let (answer, mut commands) = attacker.open(SESSION).await.expect("the connection is open");
    let open = Command::Open(Open {
        session_id: session.into(),
        number,
        grace: Some(wire(GRACE)),
        ..Open::default()
    });
    let waits = ids.map(|id| {
        Command::Acquire(Acquire {
            request: Some(AcquireRequest {
                request_id: id.to_string(),
                ..ask("held", 6 * GRACE)
            }),
            keep: false,
        })
    });
    let all = [open].into_iter().chain(waits);
    let all = (1..).zip(all).map(|(id, command)| SessionCommand {
        id,
        command: Some(command),
    });
    let request = SessionRequest {
        commands: all.collect(),
    };
    commands.send_data(framed(&request), false).expect("the stream is open");
    let mut events = timeout(PATIENCE, answer)
        .await
        .expect("in time")
        .expect("headers")
        .into_body();
    // The result of the open is sent when all commands of the message have begun.
    let mut received = Vec::new();
    while !has_result(&received) {
        let part = timeout(PATIENCE, events.data())
            .await
            .expect("in time")
            .expect("an event");
        received.extend_from_slice(&part.expect("no reset"));
    }
}

/// Whether these messages have the result of a command.
fn has_result(mut received: &[u8]) -> bool {
    while let Some((prefix, rest)) = received.split_at_checked(5) {
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        let Some((message, rest)) = rest.split_at_checked(length) else {
            return false;
        };
        let message = SessionResponse::decode(message).expect("a message");
        let is_result = |event: &SessionEvent| matches!(event.event, Some(Event::Result(_)));
        if message.events.iter().any(is_result) {
            return true;
        }
        received = rest;
    }
    false
}

// G224
#[test]
fn sessions_that_break_off_keep_the_share_of_their_identity_and_no_more() {
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &bearers(&["attacker", "normal"]));
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("normal")).await;
        let held = normal.acquire(ask("held", Duration::ZERO)).await.expect("it is free");
        let attacker = Attacker::connect(&server.address, Some("attacker"), 1 << 20).await;
        let before = resident(server.id());
        let (began, mut most) = (Instant::now(), 0);
        for round in 0..30 {
            let ids = round * WAITS..(round + 1) * WAITS;
            break_off(&attacker, (&format!("session {round}"), 1), ids).await;
            most = most.max(waiting(&normal).await);
        }
        let grown = resident(server.id()).saturating_sub(before);
        println!(
            "{most} waited, after {:?} the server had grown by {} MiB",
            began.elapsed(),
            grown / MIB
        );
        assert!((WAITS..=KEPT + WAITS).contains(&most), "{most}");
        assert!(grown < 96 * MIB, "{grown}");
        normal.release(&held.lease_id).await.expect("it is held");
        let held = normal.acquire(ask("held", 6 * GRACE)).await.expect("the graces end");
        assert!(began.elapsed() < 6 * GRACE, "{:?}", began.elapsed());
        normal.release(&held.lease_id).await.expect("it is held");
        work(&normal, WORK).await.well();
    });
}

// G224
#[test]
fn a_session_that_resumes_for_ever_has_the_places_of_one_and_holds_nobody_up() {
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, &bearers(&["attacker", "normal"]));
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("normal")).await;
        let held = normal.acquire(ask("held", Duration::ZERO)).await.expect("it is free");
        let attacker = Attacker::connect(&server.address, Some("attacker"), 1 << 20).await;
        for number in 1..=40 {
            break_off(&attacker, ("session", number), 0..WAITS).await;
            let waiting = waiting(&normal).await;
            assert!(waiting <= WAITS, "{waiting}");
        }
        work(&normal, WORK).await.well();
        normal.release(&held.lease_id).await.expect("it is held");
        let began = Instant::now();
        while waiting(&normal).await > 0 {
            assert!(began.elapsed() < GRACE + PATIENCE, "it is over with the grace");
            sleep(Duration::from_millis(100)).await;
        }
    });
}

// G210
#[test]
fn locks_that_are_kept_for_a_day_count_for_the_limit_of_leases() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(
        &home,
        &format!(
            "{}[[auth.limits]]\nidentities = [\"token:attacker\"]\nlease_limit = 3\n",
            bearers(&["attacker", "normal"])
        ),
    );
    runtime().block_on(async {
        let attacker = Client::connect(&server.address, Some("attacker")).await;
        let day = Duration::from_secs(24 * 3_600);
        let mut kept = 0;
        while let Ok(lease) = attacker.acquire(ask(&format!("kept/{kept}"), Duration::ZERO)).await {
            let release = ReleaseRequest {
                lease_id: lease.lease_id,
                keep_for: Some(wire(day)),
            };
            let released = attacker.locks.clone().release(attacker.with_token(release)).await;
            assert_eq!(released.expect("released").into_inner().kept_for, Some(wire(day)));
            kept += 1;
            assert!(kept <= 3, "{kept} locks are kept");
        }
        assert_eq!(kept, 3);
        let normal = Client::connect(&server.address, Some("normal")).await;
        work(&normal, WORK).await.well();
        let refused = normal.acquire(ask("kept/0", Duration::ZERO)).await;
        assert_eq!(refused.expect_err("it is kept").code(), tonic::Code::Aborted);
    });
}
