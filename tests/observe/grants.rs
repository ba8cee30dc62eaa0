//! The log of grants and of their ends, and what the lines of calls and of the audit name.

use std::time::Duration;

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::session_command::{self, Command};
use fencepost::api::proto::{AcquireRequest, ForceReleaseRequest};
use serde_json::Value;
use tonic::Request;

use super::asks::{living, waiting};
use super::calls::Calls;
use super::fixture::{Fixture, ask, eventually};
use super::session_client::SessionClient;

/// The lines of JSON with this target.
fn lines(fixture: &Fixture, target: &str) -> Vec<Value> {
    let log = fixture.server.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == target).collect()
}

/// The lines of one event of the log of grants.
fn events(fixture: &Fixture, event: &str) -> Vec<Value> {
    let all = lines(fixture, "fencepost::grants").into_iter();
    all.filter(|line| line["event"] == event).collect()
}

/// Waits for the lines of an event, and returns them.
async fn logged(fixture: &Fixture, event: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} lines {event}"), || {
        events(fixture, event).len() >= count
    })
    .await;
    let all = events(fixture, event);
    assert_eq!(all.len(), count, "{all:#?}");
    all
}

fn with(log: &str) -> String {
    format!(
        "[log]\nlevel = 'info'\nformat = 'json'\n{log}\n[namespaces.jobs]\nembedded.path = ':memory:'\nttl_min = '100ms'\n"
    )
}

fn named(ask: AcquireRequest, id: &str) -> Request<AcquireRequest> {
    let mut request = Request::new(ask);
    request
        .metadata_mut()
        .insert("x-request-id", id.parse().expect("a header"));
    request
}

// G230
#[tokio::test(flavor = "multi_thread")]
async fn each_grant_and_each_end_is_one_line_with_who_and_how_long() {
    let fixture = Fixture::start(&with("grants = true")).await;
    let Calls(channel) = &fixture.calls;
    let mut locks = fixture.calls.locks();
    let lease = locks
        .acquire(named(ask("jobs", "a", "me"), "call-1"))
        .await
        .expect("free");
    let lease = lease.into_inner().lease.expect("a lease");
    let granted = logged(&fixture, "granted", 1).await.remove(0);
    for (field, value) in [
        ("namespace", "jobs"),
        ("lock", "a"),
        ("owner", "me"),
        ("request_id", "call-1"),
    ] {
        assert_eq!(granted[field], value, "{granted}");
    }
    assert_eq!(granted["token"], lease.fencing_token);
    assert!(
        granted["peer"]
            .as_str()
            .is_some_and(|peer| peer.starts_with("127.0.0.1:")),
        "{granted}"
    );
    assert!(
        granted["identity"].is_string() && granted["waited_ms"].is_u64() && granted["ttl_ms"].is_u64(),
        "{granted}"
    );
    // Another one waits in vain.
    let waits = waiting(Duration::from_millis(200), ask("jobs", "a", "other"));
    fixture.calls.try_acquire(waits).await.expect_err("it is held");
    let timeout = logged(&fixture, "wait_timeout", 1).await.remove(0);
    assert_eq!((&timeout["owner"], &timeout["lock"]), (&"other".into(), &"a".into()));
    assert!(
        timeout["waited_ms"].as_u64().is_some_and(|waited| waited >= 200),
        "{timeout}"
    );
    fixture.calls.release(&lease).await;
    fixture.calls.try_release(&lease).await.expect("a repeat");
    let released = logged(&fixture, "released", 1).await.remove(0);
    assert_eq!(
        (&released["token"], &released["owner"]),
        (&lease.fencing_token.into(), &"me".into())
    );
    assert!(
        released["held_ms"].as_u64().is_some_and(|held| held >= 200),
        "{released}"
    );
    // By a session, forced.
    let (commands, sent) = SessionClient::commands();
    let opened = locks.session(sent).await.expect("a session");
    let mut session = SessionClient::opened(commands, opened.into_inner())
        .await
        .expect("it is open");
    let id = session.one(Command::Acquire(session_command::Acquire {
        request: Some(ask("jobs", "b", "session")),
        keep: false,
    }));
    session.result(id).await.expect("granted");
    let of_session = logged(&fixture, "granted", 2).await.remove(1);
    assert_eq!(of_session["owner"], "session");
    let force = ForceReleaseRequest {
        namespace: "jobs".into(),
        name: "b".into(),
        fencing_token: of_session["token"].as_u64().expect("a token"),
        reason: "its host is gone".into(),
    };
    let mut admin = AdminServiceClient::new(channel.clone());
    admin.force_release(force).await.expect("held");
    assert_eq!(logged(&fixture, "forced", 1).await[0]["owner"], "session");
    let audit = lines(&fixture, "fencepost::audit").remove(0);
    for (field, value) in [
        ("action", "force_release"),
        ("namespace", "jobs"),
        ("lock", "b"),
        ("owner", "session"),
        ("reason", "its host is gone"),
        ("outcome", "done"),
    ] {
        assert_eq!(audit[field], value, "{audit}");
    }
    assert_eq!(audit["token"], of_session["token"]);
    assert!(audit["request_id"].is_string() && audit["peer"].is_string(), "{audit}");
    // One that nobody renews.
    let short = living(Duration::from_millis(300), ask("jobs", "c", "short"));
    let lease = fixture.calls.acquire(short).await;
    let expired = logged(&fixture, "expired", 1).await.remove(0);
    assert_eq!(
        (&expired["token"], &expired["owner"]),
        (&lease.fencing_token.into(), &"short".into())
    );
}

// G230
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lease_has_no_line_of_expiry_and_nothing_is_logged_unasked() {
    let mut fixture = Fixture::start(&with("")).await;
    let quiet = fixture.calls.acquire(ask("jobs", "quiet", "me")).await;
    fixture.calls.release(&quiet).await;
    fixture.configure(&with("grants = true").replace("'info'", "'error'"));
    fixture.shows("fencepost_config_reloads_total", &[], 1.0).await;
    let ttl = Duration::from_millis(600);
    let lease = fixture.calls.acquire(living(ttl, ask("jobs", "a", "me"))).await;
    for _ in 0..10 {
        tokio::time::sleep(ttl / 3).await;
        fixture.calls.try_renew(&lease, None).await.expect("renewed");
    }
    fixture.calls.release(&lease).await;
    logged(&fixture, "released", 1).await;
    assert_eq!(events(&fixture, "granted").len(), 1);
    assert!(events(&fixture, "expired").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_of_a_call_names_what_it_is_about_who_made_it_and_why_it_failed() {
    let fixture = Fixture::start(&with("").replace("'info'", "'debug'")).await;
    let lease = fixture.calls.acquire(ask("jobs", "a", "me")).await;
    fixture
        .calls
        .try_acquire(ask("jobs", "a", "other"))
        .await
        .expect_err("held");
    fixture.calls.release(&lease).await;
    let of_call = |line: &Value| line["message"] == "call finished";
    let calls = || {
        let log = fixture.server.log();
        let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        all.filter(of_call).collect::<Vec<_>>()
    };
    eventually("three lines", || calls().len() == 3).await;
    let calls = calls();
    for line in &calls {
        assert_eq!(
            (&line["namespace"], &line["lock"]),
            (&"jobs".into(), &"a".into()),
            "{line}"
        );
        assert!(
            line["elapsed_ms"].is_f64() && line["peer"].is_string() && line["identity"].is_string(),
            "{line}"
        );
    }
    assert_eq!(calls[1]["reason"], "LOCK_HELD", "{}", calls[1]);
    assert!(calls[0]["reason"].is_null());
    let others = fixture.server.log();
    assert!(
        !others.lines().any(|line| line.contains("\"target\":\"h2")),
        "the level is that of Fencepost"
    );
}
