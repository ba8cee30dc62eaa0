//! Several locks at once over the API.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fencepost::api::proto::mode::{Kind, Shared};
use fencepost::api::proto::{AcquireAllRequest, AcquireRequest, Lease, LockToAcquire, Mode, ReleaseAllRequest};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use super::refused::{invalid, lost, refused};
use super::service::{Service, acquire, get_lock, living, time};
use crate::asks::wire;
use crate::calls::Calls;
use crate::fixture::{Fixture, NAMESPACE};

/// How much less than it is a store may show of the time that is left.
const ROUNDED: Duration = Duration::from_secs(1);

fn ask(owner: &str, names: &[&str]) -> AcquireAllRequest {
    let lock = |name: &&str| LockToAcquire {
        name: (*name).to_owned(),
        mode: None,
    };
    AcquireAllRequest {
        namespace: NAMESPACE.into(),
        locks: names.iter().map(lock).collect(),
        owner: owner.into(),
        ..AcquireAllRequest::default()
    }
}

fn waiting(wait: Duration, ask: AcquireAllRequest) -> AcquireAllRequest {
    AcquireAllRequest {
        wait: Some(wire(wait)),
        ..ask
    }
}

async fn try_all(calls: &Calls, ask: AcquireAllRequest) -> Result<Vec<Lease>, Status> {
    Ok(calls.locks().acquire_all(ask).await?.into_inner().leases)
}

async fn all(calls: &Calls, ask: AcquireAllRequest) -> Vec<Lease> {
    try_all(calls, ask).await.expect("all are granted")
}

/// Releases leases, and returns the reason and the cause of each result.
async fn release_all(calls: &Calls, lease_ids: Vec<String>) -> Result<Vec<(String, String)>, Status> {
    let answer = calls.locks().release_all(ReleaseAllRequest { lease_ids }).await?;
    let results = answer.into_inner().results.into_iter();
    Ok(results.map(|result| (result.reason, result.cause)).collect())
}

fn ids(leases: &[Lease]) -> Vec<String> {
    leases.iter().map(|lease| lease.lease_id.clone()).collect()
}

/// One lock, held by somebody.
async fn held(service: &Service, name: &str, owner: &str) -> Lease {
    let ask = AcquireRequest {
        name: name.into(),
        ..acquire(owner)
    };
    service.acquire(ask).await
}

async fn until_free(service: &Service, names: &[&str]) {
    for name in names {
        let free = |lock: &fencepost::api::proto::LockState| lock.holder_count + lock.waiter_count == 0;
        service.until(NAMESPACE, name, free).await;
    }
}

/// Begins to wait, and returns when the call waits for this lock.
async fn begun(service: &Service, ask: AcquireAllRequest, at: &str) -> JoinHandle<Result<Vec<Lease>, Status>> {
    let calls = Calls(service.channel());
    let call = tokio::spawn(async move { try_all(&calls, ask).await });
    service.until(NAMESPACE, at, |lock| lock.waiter_count == 1).await;
    call
}

pub async fn all_are_granted_in_the_order_of_the_request(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let leases = all(&service, ask("me", &["c", "a", "b"])).await;
    let names: Vec<&str> = leases.iter().map(|lease| lease.name.as_str()).collect();
    assert_eq!(names, ["c", "a", "b"]);
    for lease in &leases {
        assert_eq!((lease.owner.as_str(), lease.holds), ("me", 1));
        assert_eq!(time(lease.waited), time(leases[0].waited));
        let state = service.look_at(NAMESPACE, &lease.name).await;
        assert_eq!(state.holders[0].fencing_token, lease.fencing_token);
        service.try_renew(lease, None).await.expect("a lease like any other");
    }
    let released = release_all(&service, ids(&leases)).await.expect("an answer");
    assert!(released.iter().all(|(reason, _)| reason.is_empty()), "{released:?}");
    until_free(&service, &["a", "b", "c"]).await;
}

// G51
pub async fn one_that_is_held_leaves_none_held(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let b = held(&service, "b", "other").await;
    let refusal = refused(
        try_all(&service, ask("me", &["c", "b", "a"])).await,
        Code::Aborted,
        "LOCK_HELD",
    );
    assert_eq!((refusal.says("name"), refusal.says("owner")), ("b", "other"));
    until_free(&service, &["a", "c"]).await;
    service.release(&b).await;
    all(&service, ask("me", &["c", "b", "a"])).await;
}

// G53
pub async fn a_wait_that_ends_gives_all_back(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    held(&service, "b", "other").await;
    let (sent, wait) = (Instant::now(), Duration::from_secs(1));
    let outcome = try_all(&service, waiting(wait, ask("me", &["a", "b"]))).await;
    assert!(sent.elapsed() >= wait, "{:?}", sent.elapsed());
    let refusal = refused(outcome, Code::Aborted, "WAIT_TIMEOUT");
    assert_eq!(refusal.says("name"), "b");
    until_free(&service, &["a"]).await;
    assert_eq!(service.look_at(NAMESPACE, "b").await.waiter_count, 0);
}

// G52a
pub async fn those_that_are_held_live_while_it_waits_for_the_rest(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let b = held(&service, "b", "other").await;
    let ttl = fixture.ample();
    let call = AcquireAllRequest {
        ttl: Some(wire(ttl)),
        ..waiting(Duration::from_secs(60), ask("me", &["a", "b"]))
    };
    let call = begun(&service, call, "b").await;
    let token = service.look_at(NAMESPACE, "a").await.holders[0].fencing_token;
    fixture.sleep(ttl * 2).await;
    service.release(&b).await;
    let leases = call.await.expect("no panic").expect("granted");
    assert_eq!(leases[0].fencing_token, token, "it was never lost");
    for lease in &leases {
        assert!(time(lease.waited) >= ttl * 2 && time(lease.ttl) >= ttl, "{lease:?}");
        service.try_renew(lease, None).await.expect("it lives");
    }
}

// G52b
pub async fn all_are_renewed_before_the_answer(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let b = held(&service, "b", "other").await;
    let ttl = Duration::from_secs(60);
    let call = AcquireAllRequest {
        ttl: Some(wire(ttl)),
        ..waiting(ttl, ask("me", &["a", "b"]))
    };
    let call = begun(&service, call, "b").await;
    // Before the server renews what it keeps, which it does after a third of the TTL.
    fixture.sleep(ttl / 12).await;
    let released = Instant::now();
    service.release(&b).await;
    let leases = call.await.expect("no panic").expect("granted");
    for lease in &leases {
        assert!(time(lease.ttl) >= ttl, "{lease:?}");
        let holder = service.look_at(NAMESPACE, &lease.name).await.holders.remove(0);
        // A store may round it down.
        let least = ttl.saturating_sub(released.elapsed() + ROUNDED);
        assert!(time(holder.remaining_ttl) >= least, "{holder:?}: not {least:?}");
    }
}

// G53
pub async fn the_loss_of_one_ends_the_call_and_gives_the_rest_back(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let c = held(&service, "c", "other").await;
    let call = AcquireAllRequest {
        ttl: Some(wire(fixture.ample())),
        ..waiting(Duration::from_secs(60), ask("me", &["a", "b", "c"]))
    };
    let call = begun(&service, call, "c").await;
    let holder = service.look_at(NAMESPACE, "a").await.holders.remove(0);
    let force = fencepost::api::proto::ForceReleaseRequest {
        namespace: NAMESPACE.into(),
        name: "a".into(),
        fencing_token: holder.fencing_token,
        reason: String::new(),
    };
    service.admin().force_release(force).await.expect("forced");
    let refusal = refused(call.await.expect("no panic"), Code::FailedPrecondition, "LEASE_LOST");
    assert_eq!((refusal.says("name"), refusal.says("cause")), ("a", "forced"));
    until_free(&service, &["a", "b"]).await;
    service.release(&c).await;
    until_free(&service, &["c"]).await;
}

// G53
pub async fn a_call_that_is_dropped_gives_all_back(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    held(&service, "c", "other").await;
    let wait = Duration::from_secs(60);
    let call = begun(&service, waiting(wait, ask("me", &["a", "b", "c"])), "c").await;
    call.abort();
    until_free(&service, &["a", "b"]).await;
    service.until(NAMESPACE, "c", |lock| lock.waiter_count == 0).await;
}

// G53
pub async fn a_retry_finds_what_its_first_call_was_given(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let named = || AcquireAllRequest {
        request_id: "r".into(),
        ..ask("me", &["b", "a"])
    };
    let first = all(&service, named()).await;
    let again = all(&service, named()).await;
    assert_eq!(ids(&first), ids(&again));
    // What the first call holds already its retry takes over.
    let c = held(&service, "c", "other").await;
    let named = || AcquireAllRequest {
        request_id: "s".into(),
        ..waiting(Duration::from_secs(60), ask("you", &["c", "0"]))
    };
    let call = begun(&service, named(), "c").await;
    let token = service.look_at(NAMESPACE, "0").await.holders[0].fencing_token;
    let calls = Calls(service.channel());
    let retry = tokio::spawn(async move { try_all(&calls, named()).await });
    refused(call.await.expect("no panic"), Code::Aborted, "SUPERSEDED");
    service.release(&c).await;
    let leases = retry.await.expect("no panic").expect("granted");
    assert_eq!(
        leases[1].fencing_token, token,
        "the end of the first call took nothing away"
    );
    service.try_renew(&leases[1], None).await.expect("it lives");
}

// G51
pub async fn calls_that_cross_never_deadlock_and_exclude_each_other(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let (callers, rounds, locks) = if cfg!(feature = "soak") {
        (64, 32, 20)
    } else {
        (8, 5, 6)
    };
    let balances: Arc<Vec<AtomicU64>> = Arc::new((0..locks).map(|_| AtomicU64::new(1000)).collect());
    let mut tasks = Vec::new();
    for caller in 0..callers {
        let (calls, balances) = (Calls(service.channel()), Arc::clone(&balances));
        tasks.push(tokio::spawn(async move {
            for round in 0..rounds {
                // Every order of two accounts occurs.
                let from = (caller * 7 + round * 3) % locks;
                let to = (from + 1 + (caller + round) % (locks - 1)) % locks;
                let names = [format!("account/{from}"), format!("account/{to}")];
                let request = ask("bank", &[&names[0], &names[1]]);
                let leases = all(&calls, waiting(Duration::from_secs(120), request)).await;
                let before = (
                    balances[from].load(Ordering::SeqCst),
                    balances[to].load(Ordering::SeqCst),
                );
                tokio::task::yield_now().await;
                balances[from].store(before.0 - 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                balances[to].store(before.1 + 1, Ordering::SeqCst);
                release_all(&calls, ids(&leases)).await.expect("an answer");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let sum: u64 = balances.iter().map(|balance| balance.load(Ordering::SeqCst)).sum();
    assert_eq!(
        sum,
        1000 * u64::try_from(locks).expect("a small number"),
        "{balances:?}"
    );
    for name in 0..locks {
        until_free(&service, &[&format!("account/{name}")]).await;
    }
}

pub async fn each_lock_has_its_mode(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut request = ask("me", &["a", "b"]);
    request.locks[0].mode = Some(Mode {
        kind: Some(Kind::Shared(Shared {})),
    });
    all(&service, request.clone()).await;
    let refusal = refused(try_all(&service, request.clone()).await, Code::Aborted, "LOCK_HELD");
    assert_eq!(refusal.says("name"), "b", "a is shared");
    request.locks.swap(0, 1);
    assert_eq!(service.look_at(NAMESPACE, "a").await.holder_count, 1);
}

pub async fn release_all_answers_for_each_lease(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let leases = all(&service, ask("me", &["a", "b"])).await;
    let short = service
        .acquire(living(
            fixture.ample(),
            AcquireRequest {
                name: "c".into(),
                ..acquire("me")
            },
        ))
        .await;
    service.release(&leases[1]).await;
    let force = fencepost::api::proto::ForceReleaseRequest {
        namespace: NAMESPACE.into(),
        name: "c".into(),
        fencing_token: short.fencing_token,
        reason: String::new(),
    };
    service.admin().force_release(force).await.expect("forced");
    let mut named = ids(&leases);
    named.extend([short.lease_id.clone(), "no lease".into()]);
    let results = release_all(&service, named).await.expect("an answer");
    let expected = [("", ""), ("", ""), ("LEASE_LOST", "forced"), ("INVALID_FIELD", "")];
    let expected = expected.map(|(reason, cause)| (reason.to_owned(), cause.to_owned()));
    assert_eq!(results, expected);
    lost(service.try_renew(&leases[0], None).await, "released");
    let free = service.locks().get_lock(get_lock(NAMESPACE, "a")).await;
    assert_eq!(
        free.expect("a state").into_inner().lock.expect("a state").holder_count,
        0
    );
}

pub async fn a_set_beyond_its_bounds_is_refused(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let many: Vec<String> = (0..65).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for names in [&[] as &[&str], &["a"], &many, &["a", "b", "a"]] {
        invalid(try_all(&service, ask("me", names)).await, "locks");
    }
    invalid(try_all(&service, ask("me", &["a", ""])).await, "name");
    invalid(try_all(&service, ask("", &["a", "b"])).await, "owner");
    let negative = AcquireAllRequest {
        wait: Some(prost_types::Duration { seconds: -1, nanos: 0 }),
        ..ask("me", &["a", "b"])
    };
    invalid(try_all(&service, negative).await, "wait");
    for number in [0, 65] {
        invalid(release_all(&service, vec!["x".into(); number]).await, "lease_ids");
    }
    let most = all(&service, ask("me", &many[..64])).await;
    release_all(&service, ids(&most)).await.expect("an answer");
    until_free(&service, &["a", "0", "63"]).await;
}

pub async fn a_stop_ends_the_wait_and_gives_all_back(fixture: &Fixture) {
    let mut service = Service::start(fixture).await;
    held(&service, "b", "other").await;
    let wait = Duration::from_secs(60);
    let call = begun(&service, waiting(wait, ask("me", &["a", "b"])), "b").await;
    service.tell_to_stop();
    refused(call.await.expect("no panic"), Code::Unavailable, "DRAINING");
    service.stopped().await;
    let name = fencepost::name::LockName::new("a").expect("a name");
    let queue = fixture
        .second
        .inspect(&name, fencepost::backend::InspectLimit::of_each(1))
        .await;
    match queue {
        Ok(queue) => assert_eq!(queue.holder_count, 0, "{queue:?}"),
        // A store in the server's process ends with it.
        Err(error) => assert!(error.is_without_effect(), "{error}"),
    }
}
