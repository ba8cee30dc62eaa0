//! Calls that a client makes at the same time share a session, and are calls of their own where that does not work.

use std::time::{Duration, Instant};

use fencepost::api::proto::SessionKind;
use fencepost_client::{Client, Credentials, Error};
use futures::future::{join_all, try_join_all};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::client::forwarder::Answers;
use crate::client::gateway::{Gateway, Streams};
use crate::client::server::PATIENCE;
use crate::client::{Fixture, NAMESPACE, WAIT, connect, counts, hold, until_counts};

/// Longer than any test waits for the end of a lease.
const LONG: Duration = Duration::from_secs(3600);
/// Callers at the same time.
const CALLERS: usize = 16;

/// Takes and releases a lock of each caller, all at the same time.
async fn pairs(client: &Client) {
    let pairs = (0..CALLERS).map(async |caller| {
        let guard = client
            .acquire(NAMESPACE, &format!("own-{caller}"), "me")
            .wait(WAIT)
            .await;
        guard.expect("granted").release().await.expect("released");
    });
    timeout(PATIENCE, join_all(pairs)).await.expect("all in time");
}

/// Makes calls until the client has a session, through a gateway that counts them.
async fn opens_session(client: &Client, gateway: &Gateway) {
    let opened = async {
        loop {
            let before = gateway.count("Acquire");
            pairs(client).await;
            if gateway.count("Acquire") == before {
                return;
            }
        }
    };
    timeout(PATIENCE, opened).await.expect("it opens a session");
}

/// The numbers of the Session streams of a server.
async fn sessions(client: &Client) -> Vec<u64> {
    let page = client.sessions("").await.expect("a page");
    let sessions = page
        .sessions
        .iter()
        .filter(|stream| stream.kind() == SessionKind::Session);
    sessions.map(|stream| stream.number).collect()
}

/// A client with a session through the forwarder.
async fn sharing(fixture: &Fixture) -> Client {
    let client = fixture.forwarded().await;
    shares(&client, &fixture.client().await).await;
    client
}

/// Makes calls until the server has a session of this client.
async fn shares(client: &Client, server: &Client) {
    let before = sessions(server).await;
    let opened = async {
        while sessions(server).await.iter().all(|number| before.contains(number)) {
            pairs(client).await;
        }
    };
    timeout(PATIENCE, opened).await.expect("it opens a session");
}

/// Acquires the lock in a task.
fn acquire(
    client: &Client,
    name: &str,
    wait: Option<Duration>,
    request_id: Option<&str>,
) -> JoinHandle<Result<u64, Error>> {
    let mut ask = client.acquire(NAMESPACE, name, "me").ttl(LONG);
    if let Some(wait) = wait {
        ask = ask.wait(wait);
    }
    if let Some(id) = request_id {
        ask = ask.request_id(id);
    }
    tokio::spawn(async move {
        let guard = ask.await?;
        let token = guard.fencing_token();
        guard.release().await.map(|()| token)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_at_the_same_time_share_a_session_and_a_lone_one_is_a_call() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Passes).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    for _ in 0..5 {
        hold(&client, "alone").await.release().await.expect("released");
    }
    assert_eq!(
        (
            gateway.count("Session"),
            gateway.count("Acquire"),
            gateway.count("Release")
        ),
        (0, 5, 5)
    );
    opens_session(&client, &gateway).await;
    let before = (gateway.count("Acquire"), gateway.count("Release"));
    pairs(&client).await;
    assert_eq!((gateway.count("Acquire"), gateway.count("Release")), before);
    assert_eq!(gateway.count("Session"), 1);
}

/// The error's fields, but for the time that its lease had left.
fn without_time(error: Error) -> String {
    match error {
        Error::LockHeld { owner, remaining } => format!("held by {owner:?}, {}", remaining.is_some()),
        error => format!("{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_the_same_over_a_session() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Passes).await;
    let (client, alone) = (
        connect(&[gateway.address()]).await.expect("a server"),
        fixture.client().await,
    );
    let _held = hold(&alone, "held").await;
    opens_session(&client, &gateway).await;
    let before = gateway.count("Acquire");
    let short = Some(Duration::from_millis(1));
    for (name, wait) in [("held", short), ("", short)] {
        let ask = |client: &Client| acquire(client, name, wait, None);
        let over_session = ask(&client).await.expect("no panic").expect_err("refused");
        let of_its_own = ask(&alone).await.expect("no panic").expect_err("refused");
        assert_eq!(without_time(over_session), without_time(of_its_own));
    }
    assert_eq!(gateway.count("Acquire"), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_where_no_session_is_opened() {
    let fixture = Fixture::start().await;
    let ways = [Streams::Unimplemented, Streams::Silent, Streams::Unanswered].map(async |way| {
        let gateway = Gateway::before(&fixture.server.address, way).await;
        let client = connect(&[gateway.address()]).await.expect("a server");
        for _ in 0..5 {
            pairs(&client).await;
        }
        assert_eq!(gateway.count("Acquire"), 5 * CALLERS, "{way:?}");
        assert_eq!(gateway.count("Session"), 1, "{way:?}: it is not asked again soon");
    });
    // One after the other, because they use the same locks.
    for way in ways {
        way.await;
    }
}

/// The end of a session is final for the session alone, whatever its status: a call may present newer credentials.
#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_when_the_server_does_not_accept_the_credentials_of_their_session_any_more() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Expiring).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    for _ in 0..5 {
        pairs(&client).await;
    }
    assert_eq!(
        gateway.count("Acquire"),
        5 * CALLERS,
        "each is granted by a call of its own"
    );
    assert_eq!(gateway.count("Session"), 1, "it is not opened again soon");
}

/// A session keeps the token that it was opened with. The file with the token is read every 10 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_is_presented_with_a_new_session_and_the_same_one_with_the_old_one() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Passes).await;
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("token");
    std::fs::write(&file, "one").expect("written");
    let address = gateway.address().parse().expect("an address");
    let client = Client::connect_as(&[address], Credentials::default().bearer(&file))
        .await
        .expect("a server");
    opens_session(&client, &gateway).await;
    let read_again = Instant::now() + Duration::from_secs(11);
    while Instant::now() < read_again {
        pairs(&client).await;
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(gateway.count("Session"), 1, "for the same token");
    std::fs::write(&file, "two").expect("written");
    let replaced = async {
        while gateway.count("Session") == 1 {
            pairs(&client).await;
            sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(PATIENCE, replaced).await.expect("a session for the new token");
    opens_session(&client, &gateway).await;
    assert_eq!(gateway.count("Session"), 2, "for the new token");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_go_on_when_their_session_is_cut() {
    let fixture = Fixture::start().await;
    let direct = fixture.client().await;
    let held = hold(&direct, "a").await;
    let client = sharing(&fixture).await;
    let waits: Vec<_> = (0..CALLERS).map(|_| acquire(&client, "a", Some(WAIT), None)).collect();
    let waiting = (1, u32::try_from(CALLERS).expect("a few"));
    for _ in 0..3 {
        until_counts(&direct, "a", waiting).await;
        fixture.forwarder.cut();
    }
    until_counts(&direct, "a", waiting).await;
    held.release().await.expect("released");
    let mut tokens: Vec<u64> = try_join_all(waits)
        .await
        .expect("no panic")
        .into_iter()
        .map(|token| token.expect("granted"))
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), CALLERS, "each has a token of its own");
    until_counts(&direct, "a", (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_were_lost_with_a_session_are_asked_for_again() {
    let fixture = Fixture::start().await;
    let direct = fixture.client().await;
    let client = sharing(&fixture).await;
    fixture.forwarder.answers(Answers::Lost);
    let asked: Vec<_> = (0..CALLERS)
        .map(|caller| acquire(&client, &format!("lost-{caller}"), Some(WAIT), None))
        .collect();
    let mut tokens = Vec::new();
    for caller in 0..CALLERS {
        let name = format!("lost-{caller}");
        until_counts(&direct, &name, (1, 0)).await;
        tokens.push(direct.get(NAMESPACE, &name).await.expect("a state").holders[0].fencing_token);
    }
    fixture.forwarder.answers(Answers::Pass);
    fixture.forwarder.cut();
    let found = try_join_all(asked).await.expect("no panic");
    let found: Vec<u64> = found.into_iter().map(|token| token.expect("granted")).collect();
    assert_eq!(found, tokens, "each found its own lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_wait_leaves_the_queue() {
    let fixture = Fixture::start().await;
    let direct = fixture.client().await;
    let _held = hold(&direct, "a").await;
    let client = sharing(&fixture).await;
    let waits: Vec<_> = (0..CALLERS).map(|_| acquire(&client, "a", Some(WAIT), None)).collect();
    until_counts(&direct, "a", (1, u32::try_from(CALLERS).expect("a few"))).await;
    for wait in &waits {
        wait.abort();
    }
    until_counts(&direct, "a", (1, 0)).await;
}

/// A lease whose caller has gone is released, unless another call may know its request id.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_arrives_late_is_released_unless_the_caller_named_its_request() {
    let fixture = Fixture::start().await;
    let direct = fixture.client().await;
    let client = sharing(&fixture).await;
    fixture.forwarder.answers(Answers::Held);
    let asked = [
        acquire(&client, "unnamed", Some(WAIT), None),
        acquire(&client, "named", Some(WAIT), Some("mine")),
    ];
    for name in ["unnamed", "named"] {
        until_counts(&direct, name, (1, 0)).await;
    }
    for ask in &asked {
        ask.abort();
    }
    // The server has both cancellations, which come too late.
    sleep(Duration::from_millis(100)).await;
    fixture.forwarder.answers(Answers::Pass);
    fixture.forwarder.go_on();
    until_counts(&direct, "unnamed", (0, 0)).await;
    assert_eq!(counts(&direct, "named").await, (1, 0));
    let token = direct.get(NAMESPACE, "named").await.expect("a state").holders[0].fencing_token;
    let again = acquire(&client, "named", None, Some("mine")).await.expect("no panic");
    assert_eq!(again.expect("it finds its lease"), token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_too_large_does_not_end_the_session() {
    let fixture = Fixture::start().await;
    let direct = fixture.client().await;
    let _held = hold(&direct, "held").await;
    let client = sharing(&fixture).await;
    let waiting = acquire(&client, "held", Some(WAIT), None);
    until_counts(&direct, "held", (1, 1)).await;
    let before = sessions(&direct).await;
    let large = "x".repeat(100_000);
    let refused = client
        .acquire(NAMESPACE, "large", "me")
        .metadata("note", &large)
        .wait(WAIT)
        .await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    assert_eq!(sessions(&direct).await, before);
    assert_eq!(counts(&direct, "held").await, (1, 1));
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn tries_are_calls_of_their_own() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Passes).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    let _held = hold(&client, "a").await;
    opens_session(&client, &gateway).await;
    let before = gateway.count("Acquire");
    let tries = join_all((0..CALLERS).map(|_| acquire(&client, "a", None, None))).await;
    for refused in tries {
        let error = refused.expect("no panic").expect_err("it is held");
        assert!(matches!(error, Error::LockHeld { .. }), "{error:?}");
    }
    assert_eq!(gateway.count("Acquire"), before + CALLERS);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_a_session_takes_are_calls_of_their_own() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Passes).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    let held = hold(&client, "a").await;
    opens_session(&client, &gateway).await;
    let before = gateway.count("Acquire");
    let waiters = 1_100;
    let waits: Vec<_> = (0..waiters).map(|_| acquire(&client, "a", Some(WAIT), None)).collect();
    let counted = u32::try_from(waiters).expect("a few");
    until_counts(&fixture.client().await, "a", (1, counted)).await;
    // Answers that are on their way may keep some places for a moment.
    let calls = gateway.count("Acquire") - before;
    assert!((waiters - 1_000..waiters - 900).contains(&calls), "{calls}");
    held.release().await.expect("it is not behind the waits");
    for granted in try_join_all(waits).await.expect("no panic") {
        granted.expect("granted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_share_a_session_move_to_another_server() {
    let (fixture, other) = (Fixture::start().await, Fixture::start().await);
    let client = connect(&[&fixture.forwarder.address(), &other.server.address])
        .await
        .expect("a server");
    shares(&client, &fixture.client().await).await;
    fixture.server.signal("KILL");
    shares(&client, &connect(&[&other.server.address]).await.expect("a server")).await;
}

/// The server ends the session, and answers what it has read.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_when_the_server_of_its_session_stops() {
    let (fixture, other) = (Fixture::start().await, Fixture::start().await);
    let client = connect(&[&fixture.forwarder.address(), &other.server.address])
        .await
        .expect("a server");
    shares(&client, &fixture.client().await).await;
    let calls = (0..CALLERS).map(async |caller| {
        for _ in 0..200 {
            let guard = client
                .acquire(NAMESPACE, &format!("own-{caller}"), "me")
                .wait(WAIT)
                .await;
            // The server that granted it may be gone; its lease is then lost with its store in memory.
            let _ = guard.expect("granted").release().await;
        }
    });
    let stop = async {
        sleep(Duration::from_millis(30)).await;
        fixture.server.stop();
    };
    timeout(PATIENCE, async { tokio::join!(join_all(calls), stop) })
        .await
        .expect("all in time");
}
