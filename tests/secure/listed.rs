//! Who is shown which open streams by ListSessions.

use std::time::Duration;

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::{KeepAliveRequest, ListSessionsRequest, ListSessionsResponse, SessionInfo, SessionKind};
use fencepost::auth::{PolicySettings, Rules, Verb};
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
