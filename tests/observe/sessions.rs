//! The commands of sessions, as they show in the metrics and in the log.

use std::time::Duration;

use crate::observe::asks::waiting;
use crate::observe::fixture::{Fixture, ask};
use crate::observe::session_client::{SessionClient, acquire, cancel, release};

const CONFIG: &str = "[log]\nlevel = 'debug'\n[namespaces.a]\nembedded.path = ':memory:'\n";

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_counted_and_logged_as_their_calls() {
    let fixture = Fixture::start(CONFIG).await;
    let (commands, sent) = SessionClient::commands();
    let events = fixture.calls.locks().session(sent).await.expect("a session");
    let mut session = SessionClient::opened(commands, events.into_inner())
        .await
        .expect("it is open");
    let lease = session
        .try_acquire(ask("a", "x", "o"), false)
        .await
        .expect("it is free");
    session
        .try_acquire(ask("a", "x", "o"), false)
        .await
        .expect_err("it is held");
    let wait = session.one(acquire(waiting(Duration::from_secs(60), ask("a", "x", "o")), false));
    fixture
        .shows("fencepost_acquires_waiting", &[("namespace", "a")], 1.0)
        .await;
    session.one(cancel(wait));
    session.result(wait).await.expect_err("it was cancelled");
    let id = session.one(release(&lease));
    session.result(id).await.expect("it was held");
    for (method, reason, calls) in [
        ("Acquire", "OK", 1.0),
        ("Acquire", "LOCK_HELD", 1.0),
        ("Acquire", "CANCELLED", 1.0),
        ("Release", "OK", 1.0),
    ] {
        let labels = [("namespace", "a"), ("method", method), ("reason", reason)];
        fixture.shows("fencepost_requests_total", &labels, calls).await;
    }
}
