//! A client keeps the leases of all its guards by one stream, and by calls where that does not work.

use std::time::Duration;

use fencepost::clock;
use fencepost_client::{Acquire, Client, Error, LockGuard, Loss};
use futures::future::join_all;

use crate::client::forwarder::Answers;
use crate::client::gateway::{CONNECTION, Gateway, Streams};
use crate::client::server::PATIENCE;
use crate::client::{Fixture, NAMESPACE, connect, hold, until_counts};

/// Longer than any test waits for the end of a lease.
const LONG: Duration = Duration::from_secs(3600);

/// Takes a lock in some mode.
async fn take(client: &Client, name: &str, ttl: Duration, mode: impl Fn(Acquire) -> Acquire) -> LockGuard {
    let acquire = mode(client.acquire(NAMESPACE, name, "me").ttl(ttl));
    acquire.await.expect("granted")
}

/// Waits for the next renewal; the end of the lease's time then.
async fn renewed(guard: &mut LockGuard) -> Duration {
    let end = tokio::time::timeout(PATIENCE, guard.renewed()).await;
    end.expect("a renewal in time").expect("it is held")
}

async fn lost(guard: &LockGuard) -> Loss {
    let lost = tokio::time::timeout(PATIENCE, guard.lost()).await;
    lost.expect("a loss in time")
}

// G162a
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_of_each_mode_tells_at_once_that_its_lease_was_taken() {
    let fixture = Fixture::start().await;
    let (client, other) = (fixture.client().await, fixture.client().await);
    let mut guards = [
        take(&client, "exclusive", LONG, Acquire::exclusive).await,
        take(&client, "shared", LONG, Acquire::shared).await,
        take(&client, "semaphore", LONG, |ask| ask.semaphore(1, 2)).await,
        take(&client, "reentrant", LONG, Acquire::reentrant).await,
    ];
    join_all(guards.iter_mut().map(renewed)).await;
    for guard in &guards {
        let lease = guard.lease();
        let forced = other.force_release(NAMESPACE, &lease.name, lease.fencing_token).await;
        forced.expect("it holds");
        assert_eq!(
            lost(guard).await,
            Loss::Gone { cause: "forced".into() },
            "{}",
            lease.name
        );
    }
}

// G163
#[tokio::test(flavor = "multi_thread")]
async fn the_leases_of_a_client_share_one_stream() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Passes).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(take(&client, &number.to_string(), LONG, |ask| ask).await);
    }
    // A retry finds the lease of its request: two guards hold it.
    for _ in 0..2 {
        guards.push(take(&client, "twice", LONG, |ask| ask.request_id("once")).await);
    }
    assert_eq!(guards[50].lease().lease_id, guards[51].lease().lease_id);
    let ends: Vec<Duration> = guards.iter().map(LockGuard::end).collect();
    let renewed = join_all(guards.iter_mut().map(renewed)).await;
    assert!(renewed.iter().zip(ends).all(|(renewed, end)| *renewed > end));
    assert_eq!((gateway.count("KeepAlive"), gateway.count("Renew")), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_whose_ids_do_not_fit_in_one_request_have_several_streams() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Passes).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    let mut guards = Vec::new();
    // Each id is longer than 1,500 bytes, and a server takes 64 KiB.
    for number in 0..50 {
        let name = format!("{number}{}", "\u{e9}".repeat(254));
        guards.push(take(&client, &name, LONG, |ask| ask).await);
    }
    join_all(guards.iter_mut().map(renewed)).await;
    assert_eq!((gateway.count("KeepAlive"), gateway.count("Renew")), (2, 0));
}

// G163
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_is_renewed_by_calls_where_the_server_offers_no_stream() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Unimplemented).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    let mut guard = take(&client, "a", Duration::from_secs(6), |ask| ask).await;
    let end = guard.end();
    for _ in 0..2 {
        assert!(renewed(&mut guard).await > end);
    }
    assert!(gateway.count("Renew") >= 2);
    assert_eq!(gateway.count("KeepAlive"), 1, "it is not asked again soon");
    guard.release().await.expect("released");
}

// G162b
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_tells_with_its_next_renewal_that_its_lease_was_taken_where_no_stream_does() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Unimplemented).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    let ttl = Duration::from_secs(9);
    let mut guard = take(&client, "a", ttl, |ask| ask).await;
    renewed(&mut guard).await;
    let (renewals, taken) = (gateway.count("Renew"), tokio::time::Instant::now());
    let other = fixture.client().await;
    let forced = other.force_release(NAMESPACE, "a", guard.fencing_token()).await;
    forced.expect("it holds");
    assert_eq!(lost(&guard).await, Loss::Gone { cause: "forced".into() });
    assert_eq!(gateway.count("Renew"), renewals + 1, "the next one");
    // Its time would end after the whole TTL.
    assert!(taken.elapsed() < ttl * 2 / 3, "{:?}", taken.elapsed());
}

// G163
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_is_renewed_by_calls_where_the_stream_brings_nothing() {
    let fixture = Fixture::start().await;
    let ways = [Streams::Silent, Streams::Unanswered].map(async |way| {
        let gateway = Gateway::before(&fixture.server.address, way).await;
        let client = connect(&[gateway.address()]).await.expect("a server");
        let mut guard = take(&client, &format!("{way:?}"), Duration::from_secs(6), |ask| ask).await;
        let end = guard.end();
        for _ in 0..2 {
            assert!(renewed(&mut guard).await > end, "{way:?}");
        }
        assert!(gateway.count("KeepAlive") >= 1, "{way:?}");
        guard.release().await.expect("released");
    });
    join_all(ways).await;
}

// G163
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_counts_from_the_sending_of_its_beat() {
    let fixture = Fixture::start().await;
    let client = fixture.forwarded().await;
    let (ttl, late) = (Duration::from_secs(20), Duration::from_secs(1));
    let mut guard = take(&client, "a", ttl, |ask| ask).await;
    fixture.forwarder.answers(Answers::Late(late));
    let end = renewed(&mut guard).await;
    let left = end.saturating_sub(clock::since_boot());
    assert!(left <= ttl - late, "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_lease_is_not_kept() {
    let fixture = Fixture::start().await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Passes).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    // Short holds cost no stream.
    for _ in 0..5 {
        let guard = take(&client, "a", LONG, |ask| ask).await;
        guard.release().await.expect("released");
    }
    assert_eq!(gateway.count("KeepAlive"), 0);
    // A stream ends with its last lease, and the next lease has another.
    for streams in 1..=2 {
        let mut guard = take(&client, "a", LONG, |ask| ask).await;
        renewed(&mut guard).await;
        let told = guard.lost();
        guard.release().await.expect("released");
        assert_eq!(told.await, Loss::GivenBack);
        assert_eq!(gateway.count("KeepAlive"), streams);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_guards_of_one_lease_the_last_one_releases_it() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    let once = |ask: Acquire| ask.request_id("once");
    let (first, mut second) = (
        take(&client, "a", LONG, once).await,
        take(&client, "a", LONG, once).await,
    );
    assert_eq!(first.lease().lease_id, second.lease().lease_id);
    first.release().await.expect("the other one keeps it");
    renewed(&mut second).await;
    let held = client.acquire(NAMESPACE, "a", "other").await;
    assert!(held.is_err(), "it is held");
    second.release().await.expect("it is held");
    take(&client, "a", LONG, |ask| ask).await;
}

// G163
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_is_kept_while_the_runtime_of_another_one_is_not_driven() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    let other = client.clone();
    // Its guard comes first. It is not driven after that.
    let idle = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let guard = runtime.block_on(take(&other, "idle", LONG, |ask| ask));
        (runtime, guard)
    });
    let (runtime, guard) = idle.await.expect("no panic");
    let mut kept = take(&client, "kept", LONG, |ask| ask).await;
    renewed(&mut kept).await;
    tokio::task::spawn_blocking(move || drop((guard, runtime)))
        .await
        .expect("no panic");
}

// G163
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_with_a_short_ttl_does_not_hasten_the_renewals_of_a_long_one() {
    let fixture = Fixture::start().await;
    let client = fixture.client().await;
    let mut long = take(&client, "long", LONG, |ask| ask).await;
    let mut short = take(&client, "short", Duration::from_secs(1), |ask| ask).await;
    renewed(&mut long).await;
    let (mut of_long, mut of_short) = (0, 0);
    while of_short < 8 {
        tokio::select! {
            _ = renewed(&mut long) => of_long += 1,
            _ = renewed(&mut short) => of_short += 1,
        }
    }
    assert!(of_long <= 1, "{of_long} renewals of the long one");
}

/// Proxies limit the streams of a connection, and renewals and releases must not queue behind waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_several_locks_has_a_connection_of_its_own() {
    let fixture = Fixture::start().await;
    let direct = fixture.client().await;
    let _held = hold(&direct, "b").await;
    let gateway = Gateway::before(&fixture.server.address, Streams::Passes).await;
    let client = connect(&[gateway.address()]).await.expect("a server");
    // A try needs none.
    let other = client.acquire(NAMESPACE, "other", "me").await.expect("it is free");
    assert_eq!(gateway.count(CONNECTION), 1);
    let all = client.acquire_all(NAMESPACE, &["a", "b"], "me");
    let waiting = tokio::spawn(all.clone().wait(LONG).guards());
    until_counts(&direct, "b", (1, 1)).await;
    assert_eq!((gateway.count("AcquireAll"), gateway.count(CONNECTION)), (1, 2));
    assert!(matches!(all.guards().await, Err(Error::LockHeld { .. })));
    other.release().await.expect("it is held");
    assert_eq!(gateway.count(CONNECTION), 2);
    waiting.abort();
    until_counts(&direct, "b", (1, 0)).await;
}

/// With the id of a lease anyone can release it.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_shows_no_lease_id() {
    let fixture = Fixture::start().await;
    let guard = hold(&fixture.client().await, "a").await;
    let shown = format!("{guard:?}");
    assert!(shown.contains(&guard.fencing_token().to_string()), "{shown}");
    assert!(!shown.contains(&guard.lease().lease_id), "{shown}");
}
