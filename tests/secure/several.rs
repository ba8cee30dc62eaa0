//! Several locks at once: a rule for each of them, as long as the call waits.

use std::time::Duration;

use fencepost::api::Settings;
use fencepost::api::proto::{AcquireAllRequest, Lease, LockToAcquire, ReleaseAllRequest};
use fencepost::auth::{Pattern, Policy, PolicySettings, Rules, Verb};
use fencepost::quota::{Quota, QuotaSettings, Rate};
use tokio::time::timeout;
use tonic::Status;
use tonic_types::StatusExt;

use super::asks::{living, reason, wire};
use super::fixture::{Caller, Fixture, PATIENCE, access, ask, bearer, everything, limited, rule, until};

const LONG: Duration = Duration::from_secs(60);

fn settings(rules: Rules) -> PolicySettings {
    PolicySettings {
        bearers: vec![bearer("ci"), bearer("ops")],
        rules,
        ..PolicySettings::default()
    }
}

/// `token:ops` may do everything, and `token:ci` may take locks that begin so.
fn only(prefixes: &[&str]) -> PolicySettings {
    let verbs = [Verb::Acquire, Verb::Read, Verb::Admin];
    settings(Rules::new(vec![
        rule(&["token:ops"], &["*"], &[""], &verbs),
        rule(&["token:ci"], &["*"], prefixes, &[Verb::Acquire]),
    ]))
}

async fn all(caller: &Caller, names: &[&str], wait: Duration) -> Result<Vec<Lease>, Status> {
    let lock = |name: &&str| LockToAcquire {
        name: (*name).to_owned(),
        mode: None,
    };
    let ask = AcquireAllRequest {
        namespace: "jobs".into(),
        locks: names.iter().map(lock).collect(),
        owner: "me".into(),
        wait: Some(wire(wait)),
        ttl: Some(wire(LONG)),
        ..AcquireAllRequest::default()
    };
    let answer = caller.locks().acquire_all(caller.request(ask)).await?;
    Ok(answer.into_inner().leases)
}

/// The lock that an error is about.
fn name_in(status: &Status) -> String {
    let info = status.get_details_error_info().expect("details");
    info.metadata.get("name").cloned().unwrap_or_default()
}

async fn claims(caller: &Caller, name: &str) -> (u32, u32) {
    let state = caller.inspect("jobs", name).await.expect("a state");
    (state.holder_count, state.waiter_count)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lock_of_a_set_needs_a_rule() {
    let fixture = Fixture::open(access(&only(&["a"]))).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    let ci = ops.showing("secret-ci");
    // Whether a lock is held is told to nobody who may not have it.
    let other = ops.acquire(living(LONG, ask("jobs", "b"))).await.expect("it is free");
    for names in [["a", "b"], ["b", "a"]] {
        let refused = all(&ci, &names, Duration::ZERO)
            .await
            .expect_err("one of them is not allowed");
        assert_eq!(reason(&refused), "PERMISSION_DENIED");
        assert_eq!(name_in(&refused), "b");
    }
    assert_eq!(claims(&ops, "a").await, (0, 0));
    let leases = all(&ci, &["a/1", "a/2"], Duration::ZERO)
        .await
        .expect("both are allowed");
    let lease_ids = [&leases[0], &other].map(|lease| lease.lease_id.clone()).into();
    let answer = ci
        .locks()
        .release_all(ci.request(ReleaseAllRequest { lease_ids }))
        .await;
    let results = answer.expect("an answer").into_inner().results;
    let reasons: Vec<_> = results.iter().map(|result| result.reason.as_str()).collect();
    assert_eq!(reasons, ["", "PERMISSION_DENIED"]);
    assert_eq!(claims(&ops, "b").await, (1, 0));
}

// G53
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_is_gone_ends_the_wait_and_gives_the_held_locks_back() {
    let fixture = Fixture::open(access(&settings(everything()))).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    let ci = ops.showing("secret-ci");
    ops.acquire(living(LONG, ask("jobs", "b"))).await.expect("it is free");
    let waiter = ci.clone();
    let call = tokio::spawn(async move { all(&waiter, &["a", "b"], LONG).await });
    until("it waits", async || claims(&ops, "b").await == (1, 1)).await;
    assert_eq!(claims(&ops, "a").await, (1, 0));
    // It may still wait for the lock that it waits for.
    let policy = Policy::open(&only(&["b"])).expect("a policy");
    fixture.access.auth.replace(Some(policy));
    let ended = timeout(PATIENCE, call).await.expect("it ends").expect("no panic");
    let ended = ended.expect_err("it may not");
    assert_eq!(
        (reason(&ended).as_str(), name_in(&ended).as_str()),
        ("PERMISSION_DENIED", "a")
    );
    until("nothing is left", async || {
        claims(&ops, "a").await == (0, 0) && claims(&ops, "b").await == (1, 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lock_of_a_set_counts_as_a_lease() {
    let quota = Quota {
        leases: Some(3),
        ..Quota::default()
    };
    let quotas = QuotaSettings {
        namespaces: [("jobs".to_owned(), quota)].into(),
        ..QuotaSettings::default()
    };
    let fixture = Fixture::open(limited(&settings(everything()), quotas)).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    let leases = all(&ops, &["a", "b"], Duration::ZERO).await.expect("two of three");
    let refused = all(&ops, &["c", "d"], Duration::ZERO).await.expect_err("four of three");
    assert_eq!(reason(&refused), "OVERLOADED");
    until("nothing is left", async || claims(&ops, "c").await == (0, 0)).await;
    let lease_ids = leases.iter().map(|lease| lease.lease_id.clone()).collect();
    let released = ops
        .locks()
        .release_all(ops.request(ReleaseAllRequest { lease_ids }))
        .await;
    released.expect("released");
    all(&ops, &["c", "d"], Duration::ZERO).await.expect("two of three");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lock_of_a_set_counts_as_a_call() {
    let few = Quota {
        rate: Some(Rate {
            per_second: 1,
            burst: 4,
        }),
        ..Quota::default()
    };
    let of_identity = QuotaSettings {
        identities: vec![(vec![Pattern::new("token:ci").expect("a pattern")], few)],
        ..QuotaSettings::default()
    };
    let of_namespace = QuotaSettings {
        namespaces: [("jobs".to_owned(), few)].into(),
        ..QuotaSettings::default()
    };
    for quotas in [of_identity, of_namespace] {
        let fixture = Fixture::open(limited(&settings(everything()), quotas)).await;
        let ci = fixture.caller(Some("secret-ci")).await;
        // They count as so many calls, also beyond the burst: the next one is admitted 17 s later.
        let names: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        all(&ci, &names, Duration::ZERO)
            .await
            .expect("the first one is admitted");
        let refused = ci.acquire(ask("jobs", "a")).await.expect_err("the rate is used up");
        assert_eq!(reason(&refused), "OVERLOADED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_takes_a_permit_for_each_lock_that_it_keeps_or_waits_for() {
    let few = Settings {
        max_kept_leases: 2,
        identity_share: 100,
        peer_share: 100,
        ..Settings::default()
    };
    let fixture = Fixture::start(access(&settings(everything())), None, few).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    let held = ops.acquire(living(LONG, ask("jobs", "a"))).await.expect("it is free");
    let waiter = ops.showing("secret-ci");
    let call = tokio::spawn(async move { all(&waiter, &["a", "b", "c"], LONG).await });
    until("it waits", async || claims(&ops, "a").await == (1, 1)).await;
    ops.release(&held).await.expect("released");
    let ended = timeout(PATIENCE, call).await.expect("it ends").expect("no panic");
    assert_eq!(reason(&ended.expect_err("three are too many")), "OVERLOADED");
    until("nothing is left", async || claims(&ops, "a").await == (0, 0)).await;
    all(&ops, &["a", "b"], LONG).await.expect("two are not too many");
}
