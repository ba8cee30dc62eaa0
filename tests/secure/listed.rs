//! Who is shown which open streams by ListSessions.

use std::time::Duration;

use fencepost::api::Settings;
use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::mode::{Kind, Shared};
use fencepost::api::proto::{
    AcquireRequest, KeepAliveRequest, KeptLock, ListSessionsRequest, ListSessionsResponse, Mode, SessionInfo,
    SessionKind,
};
use fencepost::auth::{PolicySettings, Rules, Verb};
use prost::Message;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::asks::{reason, waiting};
use super::fixture::{Caller, Fixture, access, ask, bearer, rule, until};
use super::session_client::{SessionClient, acquire};

/// `ops` operates everything, `team` all locks of one namespace; `ci` takes locks, `reader` reads everything, and
/// `nobody` may do nothing.
fn settings() -> PolicySettings {
    let all = [Verb::Acquire, Verb::Read, Verb::Admin];
    PolicySettings {
        bearers: ["ops", "team", "ci", "reader", "nobody"].map(bearer).into(),
        rules: Rules::new(vec![
            rule(&["token:ops"], &["*"], &[""], &all),
            rule(&["token:team"], &["jobs"], &[""], &all),
            rule(&["token:ci"], &["jobs"], &[""], &[Verb::Acquire]),
            rule(&["token:reader"], &["*"], &[""], &[Verb::Read]),
        ]),
        ..PolicySettings::default()
    }
}

async fn page(caller: &Caller, page_size: i32, page_token: &str) -> Result<ListSessionsResponse, Status> {
    let request = ListSessionsRequest {
        page_size,
        page_token: page_token.into(),
    };
    let mut admin = AdminServiceClient::new(caller.channel.clone());
    Ok(admin.list_sessions(caller.request(request)).await?.into_inner())
}

async fn all(caller: &Caller) -> Vec<SessionInfo> {
    page(caller, 0, "").await.expect("it may").sessions
}

async fn session(caller: &Caller) -> SessionClient {
    let (commands, sent) = SessionClient::commands();
    let events = caller.locks().session(caller.request(sent)).await;
    let events = events.expect("it may open one").into_inner();
    SessionClient::opened(commands, events).await.expect("it is open")
}

/// The locks that a stream is said to keep.
fn names(info: &SessionInfo) -> Vec<String> {
    let name = |lock: &KeptLock| format!("{}/{}", lock.namespace, lock.name);
    info.locks.iter().map(name).collect()
}

/// Takes locks of `jobs` and keeps them.
async fn take_all(session: &mut SessionClient, names: &[String]) {
    for name in names {
        session.try_acquire(ask("jobs", name), true).await.expect("it is free");
    }
}

fn identities(all: &[SessionInfo]) -> Vec<&str> {
    all.iter().map(|info| info.identity.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_are_shown_with_their_counts_to_operators_and_to_their_own_identity() {
    let fixture = Fixture::open(access(&settings())).await;
    let ci = fixture.caller(Some("secret-ci")).await;
    let [ops, team, reader, nobody] =
        ["ops", "team", "reader", "nobody"].map(|name| ci.showing(&format!("secret-{name}")));
    assert!(all(&ops).await.is_empty());

    let mut first = session(&ci).await;
    let lease = first.try_acquire(ask("jobs", "a"), true).await.expect("it is free");
    first.one(acquire(waiting(Duration::from_secs(60), ask("jobs", "a")), true));
    let second = session(&team).await;
    let beat = KeepAliveRequest {
        beat: 1,
        lease_ids: vec![lease.lease_id.clone()],
    };
    let (send, beats) = futures::channel::mpsc::unbounded();
    send.unbounded_send(beat).expect("it is open");
    let mut kept = ci
        .locks()
        .keep_alive(ci.request(beats))
        .await
        .expect("it may")
        .into_inner();
    while kept.message().await.expect("a message").is_some_and(|message| {
        !matches!(
            message.event,
            Some(fencepost::api::proto::keep_alive_response::Event::Kept(_))
        )
    }) {}

    until("the command waits", async || all(&ops).await[0].waits == 1).await;
    let shown = all(&ops).await;
    assert_eq!(identities(&shown), ["token:ci", "token:team", "token:ci"]);
    let [one, two, three] = &shown[..] else {
        panic!("{shown:?}")
    };
    assert_eq!(
        (one.kind(), three.kind()),
        (SessionKind::Session, SessionKind::KeepAlive)
    );
    assert_eq!((one.attached_leases, one.commands_in_flight, one.waits), (1, 1, 1));
    assert_eq!((two.attached_leases, two.commands_in_flight, two.waits), (0, 0, 0));
    assert_eq!(
        (three.attached_leases, three.commands_in_flight, three.waits),
        (1, 0, 0)
    );
    let locks = [one, two, three].map(names);
    assert_eq!(locks, [vec!["jobs/a"], vec![], vec!["jobs/a"]]);
    assert!(one.peer.starts_with("127.0.0.1:"), "{one:?}");
    assert!(one.since.is_some() && one.number < two.number && two.number < three.number);

    assert_eq!(identities(&all(&ci).await), ["token:ci", "token:ci"]);
    assert_eq!(
        identities(&all(&team).await),
        ["token:team"],
        "one namespace is not all"
    );
    assert!(all(&reader).await.is_empty(), "a reader operates nothing");
    let denied = page(&nobody, 0, "").await.expect_err("no rule allows it");
    assert_eq!(
        (denied.code(), reason(&denied).as_str()),
        (Code::PermissionDenied, "PERMISSION_DENIED")
    );

    let (mut token, mut paged) = (String::new(), Vec::new());
    loop {
        let answer = page(&ops, 2, &token).await.expect("it may");
        assert!(answer.sessions.len() <= 2);
        paged.extend(answer.sessions);
        token = answer.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(identities(&paged), ["token:ci", "token:team", "token:ci"]);
    for bad in ["x", "1x", "1-1"] {
        let refused = page(&ops, 2, bad).await.expect_err(bad);
        assert_eq!(reason(&refused), "INVALID_FIELD", "{bad}");
    }

    drop((first, second, send, kept));
    until("streams that ended are not shown", async || all(&ops).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_names_the_first_locks_of_each_stream_as_far_as_they_fit() {
    let bytes = 64 << 10;
    let server = Settings {
        response_bytes: bytes,
        ..Settings::default()
    };
    let fixture = Fixture::start(access(&settings()), None, server).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    let [mut short, mut long, mut shared] = [session(&ops).await, session(&ops).await, session(&ops).await];
    let names_of = |width: usize, count: usize| -> Vec<String> {
        let numbers = (0..count).rev();
        numbers.map(|number| format!("{number:0width$}")).collect()
    };
    take_all(&mut short, &names_of(3, 101)).await;
    take_all(&mut long, &names_of(512, 65)).await;
    let mode = Mode {
        kind: Some(Kind::Shared(Shared {})),
    };
    let request = AcquireRequest {
        mode: Some(mode),
        ..ask("jobs", "shared")
    };
    for _ in 0..2 {
        let taken = shared.try_acquire(request.clone(), true).await;
        taken.expect("it is shared");
    }
    let answer = page(&ops, 0, "").await.expect("it may");
    let counts: Vec<u32> = answer.sessions.iter().map(|info| info.attached_leases).collect();
    assert_eq!(counts, [101, 65, 2]);
    let first: Vec<String> = (0..100).map(|number| format!("jobs/{number:03}")).collect();
    assert_eq!(names(&answer.sessions[0]), first);
    let fitting = names(&answer.sessions[1]);
    assert!((50..65).contains(&fitting.len()) && fitting.is_sorted(), "{fitting:?}");
    assert_eq!(names(&answer.sessions[2]), ["jobs/shared"]);
    assert!(answer.encoded_len() < bytes / 4 * 3, "{}", answer.encoded_len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_ended_keeps_no_lease_although_its_client_reads_nothing() {
    const LEASES: u32 = 100;
    let fixture = Fixture::open(access(&settings())).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", fixture.address)).expect("an address");
    // Room for few events.
    let channel = endpoint.initial_stream_window_size(1_000).connect().await;
    let deaf = Caller {
        channel: channel.expect("the server accepts"),
        ..ops.clone()
    };
    let mut unread = session(&deaf).await;
    let names = (0..LEASES).map(|number| number.to_string());
    unread.send(names.map(|name| acquire(ask("jobs", &name), true)).collect());
    let shown = async || all(&ops).await.pop().expect("it is open");
    until("all are kept", async || shown().await.attached_leases == LEASES).await;
    unread.end_commands();
    until("none is kept", async || shown().await.attached_leases == 0).await;
    assert!(shown().await.unsent_bytes > 0, "its events are not read");
}
