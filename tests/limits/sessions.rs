//! Sessions at their limits: commands in flight, events that are not read, and sessions that are opened and dropped.

use std::time::Duration;

use fencepost::api::proto::session_command::{Command, KeepAlive};
use fencepost::api::proto::session_event::Event;
use fencepost::api::proto::session_event::command_result::Outcome;
use fencepost::api::proto::{
    AcquireAllRequest, GetLockRequest, KeepAliveRequest, Lease, LockToAcquire, WatchLockRequest, keep_alive_response,
};
use futures::StreamExt;
use futures::channel::mpsc::unbounded;
use prost::Message;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Endpoint;

use super::server::{Server, resident};
use super::session_client::{SessionClient, acquire, attach, cancel, close, detach, release, renew};
use super::traffic::{Client, NAMESPACE, ask, connect, give, runtime, take, until_waiting};

const WAIT: Duration = Duration::from_secs(60);
/// How many commands are sent in one message, within its limit.
const BATCH: usize = 200;
/// How many sessions are opened and dropped.
const SESSIONS: usize = if cfg!(feature = "soak") { 20_000 } else { 1_000 };
/// How much memory they may leave, in bytes.
const MAY_STAY: u64 = 32 << 20;

pub async fn open(client: &Client) -> SessionClient {
    let (commands, sent) = SessionClient::commands();
    let events = client.clone().session(sent).await.expect("a session");
    SessionClient::opened(commands, events.into_inner())
        .await
        .expect("it is open")
}

pub fn start() -> (tempfile::TempDir, Server) {
    start_with("")
}

/// Starts a server with these further lines of configuration.
fn start_with(lines: &str) -> (tempfile::TempDir, Server) {
    start_on(lines, ":memory:")
}

/// Starts a server with these further lines of configuration and this file.
pub fn start_on(lines: &str, path: &str) -> (tempfile::TempDir, Server) {
    let home = tempfile::tempdir().expect("a directory");
    let config = format!("data_dir = \"d\"\n{lines}[namespaces.default.embedded]\npath = \"{path}\"\n");
    std::fs::write(home.path().join("f.toml"), config).expect("a file");
    let server = Server::start_with(&home, &["--config", "f.toml", "--listen", "127.0.0.1:0"]);
    (home, server)
}

// G45, G225
#[test]
fn commands_beyond_those_that_may_be_in_flight_are_refused_and_those_that_finish_are_not() {
    let (_home, server) = start();
    runtime().block_on(async {
        let client = connect(&server.address).await;
        let held = take(&client, ask("held", Duration::ZERO)).await.expect("it is free");
        let mut session = open(&client).await;
        let mine = session.try_acquire(ask("mine", Duration::ZERO), true).await;
        let mine = mine.expect("it is free");
        let limit = session.opened.command_limit as usize;
        let mut ids = Vec::new();
        while ids.len() < limit + 10 {
            let batch = BATCH.min(limit + 10 - ids.len());
            ids.extend(session.send(vec![acquire(ask("held", WAIT), false); batch]));
        }
        for id in &ids[limit..] {
            refused(&mut session, *id).await;
        }
        until_waiting(&client, u32::try_from(limit).expect("few")).await;
        let other = session.try_acquire(ask("other", Duration::ZERO), false).await;
        other.expect("waits leave room for tries");
        let id = session.one(renew(&mine, None));
        session.lease(id).await.expect("renewed");
        assert!(session.keep_alive().await.not_renewed.is_empty());
        let ends_at_once = session.send(vec![attach(&[&held.lease_id]), detach(&held), cancel(ids[5])]);
        for id in ends_at_once {
            session.result(id).await.expect("it needs no place");
        }
        let status = session.result(ids[5]).await.expect_err("cancelled");
        assert_eq!(status.code(), Code::Cancelled, "{status:?}");
        let id = session.one(release(&held));
        session.result(id).await.expect("released");
        session.lease(ids[0]).await.expect("the first one is served");
        // Two places are free again.
        let again = session.send(vec![acquire(ask("held", WAIT), false); 3]);
        refused(&mut session, again[2]).await;
        // Those that keep leases have places of their own, and more of them.
        let beats = session.send(vec![Command::KeepAlive(KeepAlive {}); 3 * limit / 2]);
        let id = session.one(close(false));
        session.result(id).await.expect("closed");
        let (rest, end) = session.rest().await;
        assert!(end.is_none(), "{end:?}");
        let count = |is: fn(&Event) -> bool| rest.iter().filter(|event| is(event)).count();
        assert_eq!(count(|event| matches!(event, Event::Result(_))), limit, "one for each");
        assert_eq!(count(|event| matches!(event, Event::Kept(_))), beats.len());
        until_waiting(&client, 0).await;
    });
}

/// Asserts that a command was refused because of a limit.
async fn refused(session: &mut SessionClient, id: u64) {
    let status = session.result(id).await.expect_err("one too many");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
}

#[test]
fn waits_for_leases_to_keep_leave_places_for_leases_that_are_held() {
    /// How many leases all streams may keep, of which one address has half. Half of that may be waited for.
    const KEPT: usize = 1_000;
    const MAY_WAIT: usize = KEPT / 4;
    let (_home, server) = start_with(&format!("[server]\nkept_lease_limit = {KEPT}\n"));
    runtime().block_on(async {
        let client = connect(&server.address).await;
        let held = take(&client, ask("held", Duration::ZERO)).await.expect("it is free");
        let other = take(&client, ask("other", Duration::ZERO)).await.expect("it is free");
        let mut session = open(&client).await;
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.extend(session.send(vec![acquire(ask("held", WAIT), true); BATCH]));
        }
        for id in &ids[MAY_WAIT..] {
            refused(&mut session, *id).await;
        }
        until_waiting(&client, MAY_WAIT as u32).await;
        let several = ["held", "later"].map(|name| LockToAcquire {
            name: name.into(),
            mode: None,
        });
        let ask_all = AcquireAllRequest {
            namespace: NAMESPACE.into(),
            locks: several.into(),
            owner: "somebody".into(),
            wait: Some(WAIT.try_into().expect("a short time")),
            ..AcquireAllRequest::default()
        };
        let mut other_client = client.clone();
        let refused_at_once = timeout(WAIT / 6, other_client.acquire_all(ask_all)).await;
        let status = refused_at_once
            .expect("no place to wait")
            .expect_err("no place to wait");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let (beats, sent) = unbounded();
        let mut events = client.clone().keep_alive(sent).await.expect("a stream").into_inner();
        let lease_ids = vec![other.lease_id];
        let beat = KeepAliveRequest { beat: 1, lease_ids };
        beats.unbounded_send(beat).expect("it is open");
        loop {
            let message = events.message().await.expect("it has a place").expect("not the end");
            if let Some(keep_alive_response::Event::Kept(kept)) = message.event {
                assert!(kept.ttls[0].seconds > 0, "{kept:?}");
                break;
            }
        }
        // One that was granted is not waited for any more.
        give(&client, held).await;
        session.lease(ids[0]).await.expect("the first one is served");
        let more = session.send(vec![acquire(ask("held", WAIT), true); 2]);
        refused(&mut session, more[1]).await;
        until_waiting(&client, MAY_WAIT as u32).await;
    });
}

/// A session whose answers about a lock are large, and another one that makes them so.
async fn of_large_answers(server: &Server) -> (SessionClient, SessionClient) {
    /// As many claims as make an answer large.
    const WAITERS: u32 = 300;
    let client = connect(&server.address).await;
    take(&client, ask("held", Duration::ZERO)).await.expect("it is free");
    let mut crowd = open(&client).await;
    crowd.send(vec![acquire(ask("held", WAIT), false); WAITERS as usize]);
    until_waiting(&client, WAITERS).await;
    let narrow = Endpoint::from_shared(format!("http://{}", server.address)).expect("an address");
    let narrow = narrow.initial_stream_window_size(65_535);
    let session = open(&Client::new(narrow.connect().await.expect("a connection"))).await;
    (session, crowd)
}

/// Asks for more of these answers than may be unread.
fn look_too_often(session: &mut SessionClient) -> Vec<u64> {
    const LOOKS: usize = 4_000;
    let look = Command::GetLock(GetLockRequest {
        namespace: NAMESPACE.into(),
        name: "held".into(),
    });
    let batches = (0..LOOKS / BATCH).map(|_| session.send(vec![look.clone(); BATCH]));
    batches.flatten().collect()
}

// G45
#[test]
fn a_session_with_a_watch_ends_once_what_it_was_told_is_read() {
    let (_home, server) = start();
    runtime().block_on(async {
        let (mut session, _crowd) = of_large_answers(&server).await;
        session.one(Command::WatchLock(WatchLockRequest {
            namespace: NAMESPACE.into(),
            name: "held".into(),
        }));
        look_too_often(&mut session);
        // The client reads nothing for a while, so that the commands end when it has too much to read.
        tokio::time::sleep(Duration::from_secs(2)).await;
        session.end_commands();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let rest = timeout(WAIT / 4, session.rest()).await.expect("it ends");
        assert!(rest.1.is_none(), "{:?}", rest.1);
    });
}

// G45
#[test]
fn events_that_are_not_read_are_bounded_and_the_session_lives_on() {
    let (_home, server) = start();
    runtime().block_on(async {
        let (mut session, _crowd) = of_large_answers(&server).await;
        let before = resident(server.id());
        let ids = look_too_often(&mut session);
        // The client reads nothing for a while.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let grown = resident(server.id()).saturating_sub(before);
        println!("the server grew by {grown} bytes");
        assert!(grown < 64 << 20, "{grown}");
        let (mut shown, mut refused) = (0, 0);
        for id in ids {
            match session.result(id).await {
                Ok(_) => shown += 1,
                Err(status) => {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                    refused += usize::from(status.message().contains("has not read"));
                }
            }
        }
        println!("{shown} looks were answered and {refused} refused");
        assert!(shown > 0 && refused > 0, "{shown}, {refused}");
        session.keep_alive().await;
    });
}

#[test]
fn sessions_that_are_opened_and_dropped_leave_nothing() {
    let (_home, server) = start();
    runtime().block_on(async {
        let client = connect(&server.address).await;
        take(&client, ask("held", Duration::ZERO)).await.expect("it is free");
        let once = |number: usize| {
            let client = client.clone();
            async move {
                let mut session = open(&client).await;
                session.send(vec![
                    acquire(ask("held", WAIT), true),
                    acquire(ask(&format!("free-{number}"), Duration::ZERO), true),
                ]);
            }
        };
        // The first ones fill caches and pools.
        let all = |numbers: std::ops::Range<usize>| futures::stream::iter(numbers).map(once).buffer_unordered(20);
        all(0..200).collect::<Vec<()>>().await;
        until_waiting(&client, 0).await;
        let before = resident(server.id());
        all(200..200 + SESSIONS).collect::<Vec<()>>().await;
        until_waiting(&client, 0).await;
        let grown = resident(server.id()).saturating_sub(before);
        println!("{SESSIONS} sessions left {grown} bytes");
        assert!(grown < MAY_STAY, "{grown}");
    });
}

/// Ids of leases of this lock. Their secrets are made up, so nobody holds them.
fn made_up(lease: &Lease, count: usize) -> Vec<String> {
    let (rest, _) = lease.lease_id.split_at(lease.lease_id.len() - 4);
    let ids = (0..).map(|number| format!("{rest}{number:04x}"));
    // The secret ends at random, so one of them may be that of the lease.
    ids.filter(|id| *id != lease.lease_id).take(count).collect()
}

/// Attaches as many of these leases as the session takes, and says how many.
async fn attach_all(session: &mut SessionClient, ids: &[&str]) -> usize {
    /// The ids of so many leases with long names fit into a request.
    const TOGETHER: usize = 50;
    let (mut attached, mut together) = (0, TOGETHER);
    while attached < ids.len() && together > 0 {
        let some = &ids[attached..ids.len().min(attached + together)];
        let id = session.one(attach(some));
        match session.result(id).await {
            Ok(_) => attached += some.len(),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                together /= 2;
            }
        }
    }
    attached
}

#[test]
fn as_many_leases_with_long_names_are_attached_as_one_event_can_name() {
    for (lines, message_bytes) in [("", 4 << 20), ("[server]\nresponse_bytes_limit = 65536\n", 64 << 10)] {
        let (_home, server) = start_with(lines);
        runtime().block_on(async {
            let client = connect(&server.address).await;
            let long = |letter: &str| ask(&letter.repeat(512), Duration::ZERO);
            let lease = take(&client, long("n")).await.expect("it is free");
            let mut session = open(&client).await;
            let made_up = made_up(&lease, session.opened.lease_limit as usize);
            let ids: Vec<&str> = made_up.iter().map(String::as_str).collect();
            let attached = attach_all(&mut session, &ids).await;
            let beats = session.send(vec![Command::KeepAlive(KeepAlive {}); 2]);
            let kept = session.kept(beats[0]).await;
            assert_eq!(kept.not_renewed.len(), attached, "nobody holds them");
            // The second answer would name all of them, too.
            if kept.encoded_len() > session.opened.unread_bytes_limit as usize {
                refused(&mut session, beats[1]).await;
            } else {
                assert_eq!(session.kept(beats[1]).await.not_renewed, kept.not_renewed);
            }
            // A reason and a cause, or a TTL, are at most 32 bytes.
            assert_eq!(attached, message_bytes / 4 * 3 / (lease.lease_id.len() + 32));
            assert_eq!(
                attach_all(&mut session, &ids).await,
                attached,
                "those that are lost are detached"
            );
            let one_more = session.one(acquire(long("m"), true));
            refused(&mut session, one_more).await;
            let id = session.one(detach(&lease_of(ids[0])));
            session.result(id).await.expect("detached");
            let one_more = session.one(acquire(ask("m", Duration::ZERO), true));
            session.lease(one_more).await.expect("its name is short");
            let id = session.one(close(true));
            let Ok(Outcome::Close(closed)) = session.result(id).await else {
                panic!("not closed")
            };
            assert_eq!(closed.not_released.len(), attached - 1, "nobody held them");
        });
    }
}

/// Its outcomes name no leases, so that they are small however long the names are.
#[test]
fn a_beat_of_a_thousand_leases_of_the_longest_names_is_answered_by_the_smallest_message() {
    let (_home, server) = start_with("[server]\nresponse_bytes_limit = 65536\n");
    runtime().block_on(async {
        let client = connect(&server.address).await;
        // Each of its bytes has three characters in the id.
        let lease = take(&client, ask(&"\u{e9}".repeat(256), Duration::ZERO)).await;
        let lease_ids = made_up(&lease.expect("it is free"), 1_000);
        let (beats, sent) = unbounded();
        let mut events = client.clone().keep_alive(sent).await.expect("a stream").into_inner();
        for beat in 1..3 {
            let lease_ids = lease_ids.clone();
            let request = KeepAliveRequest { beat, lease_ids };
            beats.unbounded_send(request).expect("it is open");
            let kept = loop {
                let message = events.message().await.expect("no error").expect("not the end");
                if let Some(keep_alive_response::Event::Kept(kept)) = message.event {
                    break kept;
                }
            };
            assert_eq!((kept.beat, kept.ttls.len()), (beat, 1_000));
        }
    });
}

fn lease_of(lease_id: &str) -> Lease {
    Lease {
        lease_id: lease_id.into(),
        ..Lease::default()
    }
}

// G45
#[test]
fn leases_beyond_those_that_may_be_attached_are_refused_and_the_session_lives_on() {
    let (_home, server) = start();
    runtime().block_on(async {
        let client = connect(&server.address).await;
        let lease = take(&client, ask("held", Duration::ZERO)).await.expect("it is free");
        let mut session = open(&client).await;
        let limit = session.opened.lease_limit as usize;
        let made_up = made_up(&lease, limit + 1);
        let ids: Vec<&str> = made_up.iter().map(String::as_str).collect();
        for some in ids[..limit].chunks(BATCH) {
            let id = session.one(attach(some));
            session.result(id).await.expect("there is room");
        }
        let one_more = session.one(attach(&ids[limit..]));
        let status = session.result(one_more).await.expect_err("one too many");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let kept = session.keep_alive().await;
        assert_eq!(kept.not_renewed.len(), limit, "nobody holds them");
        let one_more = session.one(attach(&ids[limit..]));
        session
            .result(one_more)
            .await
            .expect("those that are lost are detached");
    });
}

#[test]
fn results_that_are_ready_together_leave_together() {
    let (_home, server) = start();
    runtime().block_on(async {
        let client = connect(&server.address).await;
        let mut session = open(&client).await;
        let takes = (0..BATCH).map(|number| acquire(ask(&format!("lock-{number}"), Duration::ZERO), false));
        let ids = session.send(takes.collect());
        for id in ids {
            session.lease(id).await.expect("it is free");
        }
        println!("{BATCH} results came in {} messages", session.messages);
        assert!(session.messages < BATCH / 4, "{}", session.messages);
    });
}

#[test]
fn a_message_with_too_many_commands_ends_the_session() {
    let (_home, server) = start();
    runtime().block_on(async {
        let client = connect(&server.address).await;
        for (number, ends) in [(2_000, false), (2_001, true)] {
            let mut session = open(&client).await;
            session.send_raw(vec![(0, None); number]);
            session.end_commands();
            let (events, end) = session.rest().await;
            assert_eq!(events.len(), if ends { 0 } else { number });
            assert_eq!(end.map(|status| status.code()), ends.then_some(Code::InvalidArgument));
        }
    });
}
