//! How much each identity and each namespace may do, also under load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::{
    AcquireRequest, ForceReleaseRequest, Lease, ListNamespacesRequest, WatchLockRequest, WatchLockResponse,
};
use fencepost::auth::{Pattern, PolicySettings};
use fencepost::quota::{Quota, QuotaSettings, Rate};
use tokio::task::JoinSet;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

use super::asks::{living, named, reason, waiting};
use super::fixture::{Caller, Fixture, ask, bearer, detail, everything, limited, until};

const LONG: Duration = Duration::from_secs(60);

async fn limited_to(of_identities: Quota, of_namespace: Quota) -> (Fixture, Caller, Caller) {
    let settings = PolicySettings {
        bearers: vec![bearer("ci"), bearer("ops")],
        rules: everything(),
        ..PolicySettings::default()
    };
    let quotas = QuotaSettings {
        namespaces: BTreeMap::from([("jobs".to_owned(), of_namespace)]),
        identities: vec![(vec![Pattern::new("token:*").expect("a pattern")], of_identities)],
    };
    let fixture = Fixture::open(limited(&settings, quotas)).await;
    let ci = fixture.caller(Some("secret-ci")).await;
    let ops = ci.showing("secret-ops");
    (fixture, ci, ops)
}

#[track_caller]
fn over(status: &Status, limit: &str, scope: &str) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(reason(status), "OVERLOADED");
    assert_eq!(
        (detail(status, "limit").as_str(), detail(status, "scope").as_str()),
        (limit, scope)
    );
    let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
    assert!(retry.is_some_and(|delay| !delay.is_zero()), "{status:?}");
}

fn held(name: &str) -> AcquireRequest {
    living(LONG, ask("jobs", name))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_holds_so_many_leases_and_another_as_many_again() {
    let quota = Quota {
        leases: Some(2),
        ..Quota::default()
    };
    let (_bed, ci, ops) = limited_to(quota, Quota::default()).await;
    let first = ci.acquire(held("a")).await.expect("one");
    ci.acquire(named("request", held("b"))).await.expect("two");
    over(&ci.acquire(held("c")).await.expect_err("three"), "leases", "identity");
    ops.acquire(held("d")).await.expect("another's");
    ci.acquire(named("request", held("b"))).await.expect("its own again");
    // Who ends it does not matter.
    ops.release(&first).await.expect("it is held");
    ci.acquire(held("c")).await.expect("two again");
    over(&ci.acquire(held("e")).await.expect_err("three"), "leases", "identity");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_ended_by_themselves_count_no_more() {
    let quota = Quota {
        leases: Some(1),
        ..Quota::default()
    };
    let (_bed, ci, ops) = limited_to(quota, Quota::default()).await;
    ci.acquire(living(Duration::from_millis(500), ask("jobs", "a")))
        .await
        .expect("one");
    until("its time is over", async || ci.acquire(held("b")).await.is_ok()).await;
    // What was not granted does not count either.
    for _ in 0..3 {
        let refused = ops.acquire(held("b")).await.expect_err("it is held");
        assert_eq!(reason(&refused), "LOCK_HELD");
    }
    ops.acquire(held("c")).await.expect("one");
}

/// Begins to wait, and returns when the queue shows it.
async fn begin_to_wait(
    caller: &Caller,
    watcher: &Caller,
    name: &'static str,
    there: u32,
) -> JoinSet<Result<Lease, Status>> {
    let mut waits = JoinSet::new();
    let waiter = caller.clone();
    waits.spawn(async move { waiter.acquire(waiting(LONG, ask("jobs", name))).await });
    until("it waits", async || {
        watcher
            .inspect("jobs", name)
            .await
            .is_ok_and(|state| state.waiter_count == there)
    })
    .await;
    waits
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_has_so_many_waiters_and_streams() {
    let quota = Quota {
        waiters: Some(1),
        streams: Some(1),
        ..Quota::default()
    };
    let (_bed, ci, ops) = limited_to(Quota::default(), quota).await;
    let lease = ops.acquire(held("a")).await.expect("it is free");
    let mut waits = begin_to_wait(&ci, &ops, "a", 1).await;
    let refused = ops.acquire(waiting(LONG, ask("jobs", "b"))).await;
    over(&refused.expect_err("a second waiter"), "waiters", "namespace");
    ops.acquire(held("b")).await.expect("a try does not wait");
    ops.acquire(waiting(LONG, ask("other", "a"))).await.expect("elsewhere");
    ops.release(&lease).await.expect("a release is never refused");
    waits
        .join_next()
        .await
        .expect("one")
        .expect("it ran")
        .expect("its turn");
    ops.acquire(waiting(LONG, ask("jobs", "c"))).await.expect("room again");

    let watching = watch(&ci).await.expect("one");
    over(&watch(&ops).await.expect_err("two"), "streams", "namespace");
    drop(watching);
    until("there is room again", async || watch(&ops).await.is_ok()).await;
}

async fn watch(caller: &Caller) -> Result<Streaming<WatchLockResponse>, Status> {
    let ask = WatchLockRequest {
        namespace: "jobs".into(),
        name: "a".into(),
    };
    let mut seen = caller.locks().watch_lock(caller.request(ask)).await?.into_inner();
    seen.message().await?;
    Ok(seen)
}

/// Calls as fast as it can until it is told to end, and says how many calls passed and how many were over
/// the rate.
async fn flood(caller: Caller, over_now: Arc<AtomicBool>) -> (u32, u32) {
    let (mut passed, mut refused) = (0, 0);
    while !over_now.load(Ordering::Relaxed) {
        match caller.inspect("jobs", "a").await {
            Ok(_) => passed += 1,
            Err(status) => {
                over(&status, "rate", "identity");
                refused += 1;
            }
        }
    }
    (passed, refused)
}

// G72b
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_holds_under_load_and_neither_renewals_nor_others_are_refused() {
    let quota = Quota {
        rate: Some(Rate {
            per_second: 50,
            burst: 20,
        }),
        ..Quota::default()
    };
    let (_bed, ci, ops) = limited_to(quota, Quota::default()).await;
    let lease = ci.acquire(held("a")).await.expect("it is free");
    let begin = Instant::now();
    let over_now = Arc::new(AtomicBool::new(false));
    let mut floods: JoinSet<(u32, u32)> = (0..32).map(|_| flood(ci.clone(), over_now.clone())).collect();
    let mut renewals = 0;
    while renewals < 20 || begin.elapsed() < Duration::from_secs(2) {
        ci.renew(&lease).await.expect("a renewal is never refused");
        renewals += 1;
    }
    over_now.store(true, Ordering::Relaxed);
    let (mut passed, mut refused) = (0, 0);
    while let Some(flood) = floods.join_next().await {
        let (more_passed, more_refused) = flood.expect("only the rate refused");
        passed += more_passed;
        refused += more_refused;
    }
    // The Acquire was one of the burst.
    let most = 19 + (50.0 * begin.elapsed().as_secs_f64()).ceil() as u32;
    assert!(refused > 0, "there was a flood: {passed} passed");
    // Whatever the machine, nobody is refused before the burst is spent.
    assert!((19..=most + 1).contains(&passed), "{passed} of at most {most} passed");
    ops.inspect("jobs", "a").await.expect("another identity");
    ci.release(&lease).await.expect("a release is never refused");
}

// G72a
#[tokio::test(flavor = "multi_thread")]
async fn the_rate_of_a_namespace_counts_for_all_together_and_nowhere_else() {
    let quota = Quota {
        rate: Some(Rate {
            per_second: 1,
            burst: 4,
        }),
        ..Quota::default()
    };
    let (_bed, ci, ops) = limited_to(Quota::default(), quota).await;
    let lease = ci.acquire(held("a")).await.expect("it is free");
    for caller in [&ci, &ops] {
        let mut refused = None;
        until("it is refused", async || {
            refused = caller.inspect("jobs", "a").await.err();
            refused.is_some()
        })
        .await;
        over(&refused.expect("an error"), "rate", "namespace");
    }
    ci.renew(&lease).await.expect("a renewal is never refused");
    // An operator may be called because of the rate.
    let mut admin = AdminServiceClient::new(ops.channel.clone());
    let force = ForceReleaseRequest {
        namespace: "jobs".into(),
        name: "b".into(),
        fencing_token: 1,
        reason: String::new(),
    };
    for _ in 0..8 {
        let nobody = admin
            .force_release(ops.request(force.clone()))
            .await
            .expect_err("nobody holds it");
        assert_eq!(reason(&nobody), "LEASE_LOST");
    }
    for _ in 0..8 {
        ci.inspect("other", "a").await.expect("another namespace");
    }
    until("time makes room", async || ops.inspect("jobs", "a").await.is_ok()).await;
    ci.release(&lease).await.expect("a release is never refused");
}

/// Uses all limits up, each of which is one, and renews and releases.
async fn renews_at_every_limit(of_identities: Quota, of_namespace: Quota, scope: &str) {
    let (_bed, ci, _) = limited_to(of_identities, of_namespace).await;
    let watching = watch(&ci).await.expect("one");
    let lease = ci.acquire(held("a")).await.expect("one");
    let mut waits = JoinSet::new();
    let waiter = ci.clone();
    // Its lease would be the second one.
    waits.spawn(async move { waiter.acquire(waiting(LONG, held("a"))).await });
    over(
        &waits.join_next().await.expect("one").expect("it ran").expect_err("two"),
        "leases",
        scope,
    );
    over(&watch(&ci).await.expect_err("two"), "streams", scope);
    until("the rate is used up", async || ci.inspect("jobs", "a").await.is_err()).await;
    over(
        &ci.inspect("jobs", "a").await.expect_err("it is used up"),
        "rate",
        scope,
    );
    for _ in 0..8 {
        ci.renew(&lease).await.expect("a renewal is never refused");
    }
    ci.release(&lease).await.expect("a release is never refused");
    drop(watching);
}

fn one_of_each() -> Quota {
    Quota {
        rate: Some(Rate {
            per_second: 1,
            burst: 6,
        }),
        leases: Some(1),
        waiters: Some(1),
        streams: Some(1),
    }
}

// G72a
#[tokio::test(flavor = "multi_thread")]
async fn no_limit_of_a_namespace_refuses_a_renewal_or_release() {
    renews_at_every_limit(Quota::default(), one_of_each(), "namespace").await;
}

// G72b
#[tokio::test(flavor = "multi_thread")]
async fn no_limit_of_an_identity_refuses_a_renewal_or_release() {
    renews_at_every_limit(one_of_each(), Quota::default(), "identity").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_limit_holds_when_all_come_at_once() {
    let quota = Quota {
        leases: Some(7),
        ..Quota::default()
    };
    let (_bed, ci, _ops) = limited_to(quota, Quota::default()).await;
    let mut all: JoinSet<Result<Lease, Status>> = (0..64)
        .map(|number| {
            let ci = ci.clone();
            async move { ci.acquire(held(&format!("a{number}"))).await }
        })
        .collect();
    let mut granted = 0;
    while let Some(answer) = all.join_next().await {
        match answer.expect("it ran") {
            Ok(_) => granted += 1,
            Err(status) => over(&status, "leases", "identity"),
        }
    }
    assert_eq!(granted, 7);
}

/// Ids with the secret of a lease that name no lease: another lock, kind, claim or token.
fn altered(lease: &Lease) -> Vec<Lease> {
    let parts: Vec<&str> = lease.lease_id.split(':').collect();
    let with = |at: usize, part: &str| {
        let mut parts = parts.clone();
        parts[at] = part;
        Lease {
            lease_id: parts.join(":"),
            ..lease.clone()
        }
    };
    let other_claim = "0".repeat(parts[4].len());
    vec![with(2, "another"), with(3, "s"), with(4, &other_claim), with(5, "1")]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_altered_lease_id_makes_no_room_for_another_lease() {
    let quota = Quota {
        leases: Some(1),
        ..Quota::default()
    };
    let (_bed, ci, _ops) = limited_to(quota, Quota::default()).await;
    let lease = ci.acquire(held("a")).await.expect("one");
    for altered in altered(&lease) {
        let id = &altered.lease_id;
        assert_eq!(reason(&ci.renew(&altered).await.expect_err(id)), "LEASE_LOST", "{id}");
        assert_eq!(reason(&ci.release(&altered).await.expect_err(id)), "LEASE_LOST", "{id}");
        over(&ci.acquire(held("b")).await.expect_err(id), "leases", "identity");
    }
    ci.release(&lease).await.expect("it was held all the while");
    ci.acquire(held("b")).await.expect("one again");
}

#[tokio::test(flavor = "multi_thread")]
async fn to_be_denied_is_no_way_around_a_rate() {
    let settings = PolicySettings {
        bearers: vec![bearer("ci"), bearer("ops")],
        ..PolicySettings::default()
    };
    let of_identities = Quota {
        rate: Some(Rate {
            per_second: 1,
            burst: 3,
        }),
        ..Quota::default()
    };
    let quotas = QuotaSettings {
        identities: vec![(vec![Pattern::new("token:*").expect("a pattern")], of_identities)],
        ..QuotaSettings::default()
    };
    let fixture = Fixture::open(limited(&settings, quotas)).await;
    let ci = fixture.caller(Some("secret-ci")).await;
    let mut denied = 0;
    loop {
        let status = ci.inspect("jobs", "a").await.expect_err("there is no rule");
        if status.code() != Code::PermissionDenied {
            over(&status, "rate", "identity");
            break;
        }
        denied += 1;
        assert!(denied < 10_000, "it is denied as often as it likes");
    }
    assert!(denied >= 3, "{denied}");
    let mut admin = AdminServiceClient::new(ci.channel.clone());
    let listed = admin.list_namespaces(ci.request(ListNamespacesRequest {})).await;
    over(&listed.expect_err("it is over its rate"), "rate", "identity");
    let other = ci
        .showing("secret-ops")
        .inspect("jobs", "a")
        .await
        .expect_err("there is no rule");
    assert_eq!(other.code(), Code::PermissionDenied);
}
