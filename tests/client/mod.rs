//! The client of the library, against a real server.

#![cfg(feature = "embedded")]

use std::time::{Duration, Instant};

use common::{forwarder, server};
use fencepost::clock;
use fencepost_client::testing::TestServer;
use fencepost_client::{Address, Client, Error, LockGuard, Loss, time};
use futures::{StreamExt, poll};
use tempfile::TempDir;

use self::forwarder::{Answers, Forwarder};
use self::server::{PATIENCE, Server, until};
use self::silence::silent_server;

#[cfg(all(feature = "mysql", feature = "postgres", feature = "redis"))]
mod fence;
mod gateway;
mod keeping;
mod observing;
mod several;
mod sharing;
mod silence;

const NAMESPACE: &str = "default";
const TTL: Duration = Duration::from_millis(1500);
const WAIT: Duration = Duration::from_secs(30);

/// A server, a forwarder before it, and a client that knows both ways or one.
struct Fixture {
    server: Server,
    forwarder: Forwarder,
    _home: TempDir,
}

impl Fixture {
    async fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let server = Server::start(&home);
        let forwarder = Forwarder::before(server.port()).await;
        Self {
            server,
            forwarder,
            _home: home,
        }
    }

    /// Asks the server itself.
    async fn client(&self) -> Client {
        connect(&[&self.server.address]).await.expect("a server")
    }

    /// Asks through the forwarder.
    async fn forwarded(&self) -> Client {
        connect(&[&self.forwarder.address()]).await.expect("a server")
    }
}

async fn connect(addresses: &[&str]) -> Result<Client, Error> {
    let addresses: Vec<Address> = addresses.iter().map(|text| text.parse().expect("an address")).collect();
    Client::connect(&addresses).await
}

async fn hold(client: &Client, name: &str) -> LockGuard {
    client
        .acquire(NAMESPACE, name, "me")
        .ttl(TTL)
        .wait(WAIT)
        .await
        .expect("granted")
}

async fn counts(client: &Client, name: &str) -> (u32, u32) {
    let state = client.get(NAMESPACE, name).await.expect("a state");
    (state.holder_count, state.waiter_count)
}

async fn until_counts(client: &Client, name: &str, expected: (u32, u32)) {
    let reached = async {
        while counts(client, name).await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("{name} never has {expected:?} holders and waiters"));
}

// G162a
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_tells_at_once_that_its_lease_was_taken() {
    let fixture = Fixture::start().await;
    let (client, other) = (fixture.forwarded().await, fixture.client().await);
    let ttl = Duration::from_secs(3600);
    // Also when the watch was cut meanwhile, and when it was while the lease was taken.
    for cut in [0, 1, 2] {
        let guard = client.acquire(NAMESPACE, "a", "me").ttl(ttl).await.expect("granted");
        // By then it watches.
        tokio::time::sleep(Duration::from_secs(2)).await;
        if cut > 0 {
            fixture.forwarder.cut();
        }
        if cut == 1 {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let token = guard.fencing_token();
        other.force_release(NAMESPACE, "a", token).await.expect("it holds");
        let lost = tokio::time::timeout(PATIENCE, guard.lost()).await;
        assert_eq!(lost, Ok(Loss::Gone { cause: "forced".into() }), "{cut}");
    }
}

// G160
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_tells_in_time_that_its_lease_may_be_lost() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    let ttl = TTL * 4;
    let guard = client.acquire(NAMESPACE, "a", "me").ttl(ttl).await.expect("granted");
    fixture.server.signal("STOP");
    let stopped = Instant::now();
    let soon = guard.ending(ttl / 3);
    assert_eq!(soon.await, Loss::Unrenewed);
    assert!(guard.is_held(), "there is time left to stop in");
    assert_eq!(guard.lost().await, Loss::Unrenewed);
    let told = stopped.elapsed();
    assert!(!guard.is_held());
    // A renewal sent before the stop counts from its sending.
    assert!(told <= ttl + Duration::from_secs(1), "{told:?}");
    fixture.server.signal("CONT");
    let other = fixture
        .client()
        .await
        .acquire(NAMESPACE, "a", "you")
        .wait(WAIT)
        .await
        .expect("granted");
    assert!(other.fencing_token() > guard.fencing_token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_not_answered_before_the_end_of_its_lease_is_a_loss() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    let guard = client.acquire(NAMESPACE, "a", "me").ttl(TTL).await.expect("granted");
    fixture.server.signal("STOP");
    let released = guard.release().await;
    fixture.server.signal("CONT");
    assert!(matches!(released, Err(Error::LeaseLost { .. })), "{released:?}");
}

// G28, G160
#[tokio::test(flavor = "multi_thread")]
async fn time_counts_from_the_sending_of_the_call() {
    let fixture = Fixture::start().await;
    let client = fixture.forwarded().await;
    let late = Duration::from_millis(700);
    fixture.forwarder.answers(Answers::Late(late));
    let guard = client
        .acquire(NAMESPACE, "a", "me")
        .ttl(Duration::from_secs(5))
        .await
        .expect("granted");
    let left = guard.remaining();
    assert!(left <= Duration::from_secs(5) - late, "{left:?}");
}

// G28, G160
#[tokio::test(flavor = "multi_thread")]
async fn time_that_was_waited_counts_for_the_holder() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    let first = hold(&client, "a").await;
    let second = {
        let client = client.clone();
        let ttl = Duration::from_secs(20);
        tokio::spawn(async move { client.acquire(NAMESPACE, "a", "you").ttl(ttl).wait(WAIT).await })
    };
    until_counts(&client, "a", (1, 1)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    first.release().await.expect("released");
    let second = second.await.expect("no panic").expect("granted");
    // Without what it waited, two of its twenty seconds would be gone.
    assert!(time(second.lease().waited) >= Duration::from_secs(2));
    let left = second.remaining();
    assert!(left > Duration::from_secs(18), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_while_no_server_answers_says_so() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    let _held = hold(&client, "a").await;
    let asked = Instant::now();
    let wait = Duration::from_secs(2);
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.acquire(NAMESPACE, "a", "you").wait(wait).await })
    };
    until_counts(&client, "a", (1, 1)).await;
    fixture.server.signal("KILL");
    let error = waiting.await.expect("no panic").expect_err("nobody grants it");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let took = asked.elapsed();
    assert!(took > wait / 2 && took < wait + Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_goes_on_over_another_address_of_the_same_service() {
    let fixture = Fixture::start().await;
    let socket = format!("unix:{}", fixture.server.socket().display());
    let client = connect(&[&fixture.forwarder.address(), &socket])
        .await
        .expect("a server");
    let ttl = TTL * 4;
    let mut guard = client.acquire(NAMESPACE, "a", "me").ttl(ttl).await.expect("granted");
    fixture.forwarder.answers(Answers::Lost);
    let all_lost = clock::since_boot() + ttl;
    while guard.end() <= all_lost {
        guard.renewed().await.expect("it is held");
    }
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_is_an_error_that_names_all_addresses() {
    let error = connect(&["127.0.0.1:1", "unix:/nowhere/f.sock"])
        .await
        .expect_err("nobody is there");
    let Error::Unreachable { addresses, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(addresses, "127.0.0.1:1, unix:/nowhere/f.sock");
    assert!(connect(&[]).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_to_a_server_that_hangs_ends() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    fixture.server.signal("STOP");
    let asked = Instant::now();
    let error = client.get(NAMESPACE, "a").await.expect_err("it hangs");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    fixture.server.signal("CONT");
    until("it answers again", || {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(client.get(NAMESPACE, "a"))).ok()
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_whose_state_does_not_arrive_ends() {
    let client = connect(&[&silent_server().await]).await.expect("a server");
    let asked = Instant::now();
    let opened = tokio::time::timeout(Duration::from_secs(15), async {
        client.watch(NAMESPACE, "a").await.map(drop)
    });
    let error = opened.await.expect("a deadline").expect_err("no state arrives");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(asked.elapsed() >= Duration::from_secs(4), "{:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_when_the_client_is_closed() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    let mut watch = client.watch(NAMESPACE, "a").await.expect("it answers");
    let mut observer = client.observe(NAMESPACE, "a").await.expect("it answers");
    watch.next().await.expect("the state").expect("the state");
    observer.next().await.expect("the leader").expect("the leader");
    // One is asked before, and the other after.
    let mut asked = Box::pin(watch.next());
    assert!(poll!(&mut asked).is_pending());
    client.close().await;
    let ended = tokio::time::timeout(Duration::from_secs(5), async { (asked.await, observer.next().await) });
    let (watched, observed) = ended.await.expect("they end");
    assert_eq!(watched.expect("an error").expect_err("it is closed"), Error::Closed);
    assert_eq!(observed.expect("an error").expect_err("it is closed"), Error::Closed);
    assert!(watch.next().await.is_none() && observer.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_a_silent_server_takes_up_goes_on_at_another_one() {
    let fixture = Fixture::start().await;
    let client = connect(&[&silent_server().await, &fixture.server.address]).await;
    let client = client.expect("a server");
    let asked = Instant::now();
    let free = client.acquire(NAMESPACE, "a", "me").wait(Duration::from_secs(1));
    let lease = free.lease().await.expect("it is free");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    // The error is that of a wait.
    let client = connect(&[&silent_server().await, &fixture.server.address]).await;
    let client = client.expect("a server");
    let held = client.acquire(NAMESPACE, "a", "me").wait(Duration::from_secs(1));
    let error = held.lease().await.expect_err("it is held").to_string();
    assert!(error.contains("was not granted within"), "{error}");
    client.release(&lease.lease_id).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn reentry_and_a_request_id_find_what_is_held() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    let ask = || client.acquire(NAMESPACE, "a", "me").request_id("once").reentrant();
    let first = ask().lease().await.expect("granted");
    let again = ask().lease().await.expect("granted");
    assert_eq!(first.lease_id, again.lease_id);
    let inner = client
        .acquire(NAMESPACE, "a", "me")
        .reentrant()
        .lease()
        .await
        .expect("granted");
    assert_eq!((inner.fencing_token, inner.holds), (first.fencing_token, 2));
}

/// The helper that users' tests start a server with. It reads the environment, so this runs in a process of its own.
#[tokio::test]
async fn a_test_server_serves_until_it_is_dropped() {
    const PROGRAM: &str = "FENCEPOST_BIN";
    if std::env::var_os(PROGRAM).is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().expect("this test"));
        again.args(["--exact", "client::a_test_server_serves_until_it_is_dropped"]);
        let ended = again.env(PROGRAM, env!("CARGO_BIN_EXE_fencepost")).output();
        let ended = ended.expect("it runs");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        return;
    }
    let server = TestServer::start().expect("a server");
    let address = server.address().to_owned();
    let client = server.client().await.expect("a client");
    hold(&client, "a").await.release().await.expect("it is held");
    drop(server);
    assert!(matches!(connect(&[&address]).await, Err(Error::Unreachable { .. })));
}
