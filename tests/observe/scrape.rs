//! What calls did, as it shows in the metrics.

use std::process::{Command, Stdio};
use std::time::Duration;

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::{ForceReleaseRequest, Lease};

use crate::observe::asks::{living, reason, waiting};
use crate::observe::fixture::{Fixture, ask};

const CONFIG: &str = "[namespaces.a]\nembedded.path = ':memory:'\n[namespaces.b]\nembedded.path = ':memory:'\n";
const WAIT: Duration = Duration::from_secs(20);

async fn force(fixture: &Fixture, lease: &Lease) {
    let ask = ForceReleaseRequest {
        namespace: lease.namespace.clone(),
        name: lease.name.clone(),
        fencing_token: lease.fencing_token,
        reason: String::new(),
    };
    let mut admin = AdminServiceClient::new(fixture.calls.0.clone());
    admin.force_release(ask).await.expect("forced");
}

/// Makes a call of every kind that a metric tells apart.
async fn busy(fixture: &Fixture) {
    let calls = &fixture.calls;
    let held = calls.acquire(ask("a", "secret-lock", "secret-owner")).await;
    let refused = calls.try_acquire(ask("a", "secret-lock", "other")).await;
    assert_eq!(reason(&refused.expect_err("held")), "LOCK_HELD");
    calls.try_renew(&held, None).await.expect("renewed");

    let waiter = waiting(WAIT, ask("a", "secret-lock", "waiter"));
    let waits = tokio::spawn({
        let calls = calls.clone();
        async move { calls.acquire(waiter).await }
    });
    fixture
        .shows("fencepost_acquires_waiting", &[("namespace", "a")], 1.0)
        .await;
    calls.release(&held).await;
    let next = waits.await.expect("granted");
    force(fixture, &next).await;
    let lost = calls.try_renew(&next, None).await;
    assert_eq!(reason(&lost.expect_err("forced")), "LEASE_LOST");

    let unknown = calls.try_acquire(ask("elsewhere", "x", "o")).await;
    assert_eq!(reason(&unknown.expect_err("unknown")), "NAMESPACE_NOT_FOUND");
    let short = Duration::from_millis(500);
    calls.acquire(living(short, ask("b", "left-alone", "o"))).await;
    calls.acquire(ask("b", "kept", "o")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_calls_did_shows_in_the_metrics() {
    let fixture = Fixture::start(CONFIG).await;
    busy(&fixture).await;
    let (a, b) = (("namespace", "a"), ("namespace", "b"));
    let requests = "fencepost_requests_total";
    for (method, reason, count) in [
        ("Acquire", "OK", 2.0),
        ("Acquire", "LOCK_HELD", 1.0),
        ("Renew", "OK", 1.0),
        ("Renew", "LEASE_LOST", 1.0),
        ("Release", "OK", 1.0),
        ("ForceRelease", "OK", 1.0),
        // A bug would show as a rise.
        ("Renew", "INTERNAL", 0.0),
    ] {
        fixture
            .shows(requests, &[a, ("method", method), ("reason", reason)], count)
            .await;
    }
    let unknown = ("namespace", "unknown");
    fixture
        .shows(requests, &[unknown, ("reason", "NAMESPACE_NOT_FOUND")], 1.0)
        .await;
    fixture
        .shows(
            "fencepost_request_duration_seconds_count",
            &[a, ("method", "Acquire")],
            3.0,
        )
        .await;
    fixture.shows("fencepost_leases_granted_total", &[a], 2.0).await;
    fixture.shows("fencepost_acquire_wait_seconds_count", &[a], 2.0).await;
    fixture.shows("fencepost_hand_off_seconds_count", &[a], 1.0).await;
    fixture.shows("fencepost_acquires_waiting", &[a], 0.0).await;
    fixture.shows("fencepost_leases_held", &[a], 0.0).await;
    fixture
        .shows("fencepost_leases_ended_total", &[a, ("cause", "released")], 1.0)
        .await;
    fixture
        .shows("fencepost_leases_ended_total", &[a, ("cause", "forced")], 1.0)
        .await;
    fixture
        .shows("fencepost_leases_lost_total", &[a, ("cause", "forced")], 1.0)
        .await;
    fixture.shows("fencepost_leases_expired_total", &[b], 1.0).await;
    fixture.shows("fencepost_leases_held", &[b], 1.0).await;
    fixture.shows("fencepost_token_regressions_total", &[a], 0.0).await;
    fixture
        .shows(
            "fencepost_backend_healthy",
            &[a, ("backend", "embedded"), ("guarantee", "AP")],
            1.0,
        )
        .await;
    fixture.shows("fencepost_quarantine_left_seconds", &[a], 0.0).await;
    fixture.shows("fencepost_connections", &[], 1.0).await;
    fixture
        .shows("fencepost_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0)
        .await;
    let steps = fixture.metric(
        "fencepost_backend_request_duration_seconds_count",
        &[a, ("operation", "acquire")],
    );
    assert_eq!(steps, Some(3.0), "one acquire for each Acquire");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_caller_left_is_counted_as_cancelled() {
    let fixture = Fixture::start(CONFIG).await;
    let held = fixture.calls.acquire(ask("a", "x", "o")).await;
    let waiter = waiting(WAIT, ask("a", "x", "other"));
    let waits = tokio::spawn({
        let calls = fixture.calls.clone();
        async move { calls.try_acquire(waiter).await }
    });
    fixture
        .shows("fencepost_acquires_waiting", &[("namespace", "a")], 1.0)
        .await;
    waits.abort();
    fixture
        .shows(
            "fencepost_requests_total",
            &[("namespace", "a"), ("reason", "CANCELLED")],
            1.0,
        )
        .await;
    fixture
        .shows("fencepost_acquires_waiting", &[("namespace", "a")], 0.0)
        .await;
    fixture.calls.release(&held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_label_names_a_lock_or_its_owner() {
    let fixture = Fixture::start(CONFIG).await;
    busy(&fixture).await;
    for number in 0..50 {
        let unknown = fixture
            .calls
            .try_acquire(ask(&format!("made-up-{number}"), "x", "o"))
            .await;
        assert_eq!(reason(&unknown.expect_err("unknown")), "NAMESPACE_NOT_FOUND");
    }
    let text = fixture.metrics();
    for hidden in ["secret-lock", "secret-owner", "made-up", "elsewhere", "left-alone"] {
        assert!(!text.contains(hidden), "{hidden}");
    }
    fixture
        .shows(
            "fencepost_requests_total",
            &[("namespace", "unknown"), ("method", "Acquire")],
            51.0,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_reads_the_metrics_without_a_complaint() {
    let fixture = Fixture::start(CONFIG).await;
    busy(&fixture).await;
    let Some((read, said)) = promtool(&["check", "metrics"], &fixture.metrics()) else {
        return;
    };
    assert!(read && said.is_empty(), "{said}");
}

/// Whether promtool is content with a text, and what it says; nothing where it is missing at home.
pub fn promtool(arguments: &[&str], text: &str) -> Option<(bool, String)> {
    use std::io::Write;
    let program = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut program = match program {
        Ok(program) => program,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "promtool is missing: {error}");
            eprintln!("promtool is missing ({error}): scripts/test installs it");
            return None;
        }
    };
    let mut input = program.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("the text");
    drop(input);
    let ran = program.wait_with_output().expect("its end");
    let said = [ran.stdout, ran.stderr].concat();
    Some((ran.status.success(), String::from_utf8_lossy(&said).into_owned()))
}
