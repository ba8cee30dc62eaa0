//! Every row of the table of answers that is reachable without a fault of the store.

use std::time::Duration;

use fencepost::api::Settings;
use fencepost::api::proto::{AcquireRequest, AdmitRequest, RenewRequest};
use fencepost::name::LeaseKey;
use tonic::Code::{Aborted, FailedPrecondition, NotFound, ResourceExhausted, Unavailable};

use super::refused::{invalid, lost, refused};
use super::service::{
    DEFAULT_TTL, Service, acquire, acquire_elsewhere, check_token, get_lock, list_locks, living, named, reentrant,
    semaphore, shared, waiting,
};
use crate::fixture::{ELSEWHERE, Fixture, NAMESPACE};

pub async fn lock_held_names_the_holder(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let refused = refused(service.try_acquire(acquire("b")).await, Aborted, "LOCK_HELD");
    assert_eq!(refused.says("owner"), "a");
    let remaining: u128 = refused.says("remaining_ttl_ms").parse().expect("a number");
    assert!((1..=DEFAULT_TTL.as_millis()).contains(&remaining), "{remaining}");
    assert_eq!(service.inspect().await.waiter_count, 0);
}

pub async fn lock_held_is_the_answer_behind_a_waiter_too(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(shared(acquire("a"))).await;
    let writer = service.wait_for(waiting(60, acquire("w")), 1).await;
    let refused = refused(service.try_acquire(shared(acquire("b"))).await, Aborted, "LOCK_HELD");
    assert_eq!(refused.says("owner"), "a");
    writer.abort();
}

// G22
pub async fn superseded_ends_the_wait_that_a_retry_took_over(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let ask = named("request", waiting(60, acquire("b")));
    let older = service.wait_for(ask.clone(), 1).await;
    let newer = service.wait_for(ask, 1).await;
    let older = older.await.expect("no panic");
    refused(older, Aborted, "SUPERSEDED");
    service.release(&a).await;
    let b = newer.await.expect("no panic").expect("granted");
    assert_eq!(service.inspect().await.holders[0].fencing_token, b.fencing_token);
}

// G29
pub async fn lease_lost_names_its_cause(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    service.release(&a).await;
    lost(service.try_renew(&a, None).await, "released");
    let b = service.acquire(acquire("b")).await;
    service.try_force(b.fencing_token).await.expect("forced");
    lost(service.try_renew(&b, None).await, "forced");
    lost(service.try_release(&b).await, "forced");
    let c = service.acquire(living(fixture.short(), acquire("c"))).await;
    fixture.outlive(fixture.short()).await;
    lost(service.try_renew(&c, None).await, "expired");
    lost(service.try_release(&c).await, "expired");
}

pub async fn lease_lost_is_unknown_for_a_lease_that_nobody_was_given(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut a = service.acquire(acquire("a")).await;
    let real = a.lease_id.clone();
    let forged = LeaseKey {
        secret: fencepost::name::Secret::from_bytes(crate::claims::random()),
        ..LeaseKey::parse(&real).expect("a lease id")
    };
    a.lease_id = forged.to_lease_id();
    lost(service.try_renew(&a, None).await, "unknown");
    lost(service.try_release(&a).await, "unknown");
    a.lease_id = real;
    service.release(&a).await;
}

pub async fn lease_lost_answers_a_force_of_what_is_not_held(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    lost(service.try_force(a.fencing_token + 1_000).await, "unknown");
    service.release(&a).await;
    lost(service.try_force(a.fencing_token).await, "released");
}

// G73
pub async fn unsupported_answers_what_the_store_does_not_offer(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let node = "none".to_owned();
    let answer = service
        .admin()
        .admit(AdmitRequest {
            namespace: NAMESPACE.into(),
            node,
        })
        .await;
    let refused = refused(answer, FailedPrecondition, "UNSUPPORTED");
    assert!(!refused.says("what").is_empty());
}

// G24
pub async fn already_released_answers_a_late_retry(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(named("request", acquire("a"))).await;
    service.release(&a).await;
    for ask in [acquire("a"), waiting(5, acquire("a"))] {
        let answer = service.try_acquire(named("request", ask)).await;
        refused(answer, FailedPrecondition, "ALREADY_RELEASED");
    }
    assert_eq!(service.inspect().await.holder_count, 0);
}

// G24
pub async fn a_late_retry_learns_of_a_force_and_an_expiry(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(named("request", acquire("a"))).await;
    service.try_force(a.fencing_token).await.expect("forced");
    lost(service.try_acquire(named("request", acquire("a"))).await, "forced");
    service
        .acquire(named("request", living(fixture.short(), acquire("b"))))
        .await;
    fixture.outlive(fixture.short()).await;
    lost(service.try_acquire(named("request", acquire("b"))).await, "expired");
}

// G4
pub async fn limit_mismatch_says_what_is_there(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(semaphore(1, 5, acquire("a"))).await;
    for ask in [shared(acquire("b")), shared(waiting(5, acquire("b")))] {
        let refused = refused(service.try_acquire(ask).await, FailedPrecondition, "LIMIT_MISMATCH");
        assert_eq!((refused.says("mode"), refused.says("limit")), ("semaphore", "5"));
    }
    let other = |ask| AcquireRequest {
        name: "other".into(),
        ..ask
    };
    service.acquire(other(shared(acquire("a")))).await;
    let answer = service.try_acquire(other(semaphore(1, 5, acquire("b")))).await;
    assert_eq!(
        refused(answer, FailedPrecondition, "LIMIT_MISMATCH").says("mode"),
        "shared"
    );
}

// G23
pub async fn invalid_field_answers_a_retry_with_other_parameters(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(named("request", acquire("a"))).await;
    let asks = [
        ("mode", shared(acquire("a"))),
        ("mode", semaphore(1, 2, acquire("a"))),
        ("reentrant", reentrant(acquire("a"))),
    ];
    for (field, ask) in asks {
        invalid(service.try_acquire(named("request", ask)).await, field);
    }
}

pub async fn invalid_field_answers_a_reentry_in_another_mode(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(reentrant(acquire("a"))).await;
    invalid(service.try_acquire(reentrant(shared(acquire("a")))).await, "mode");
}

pub async fn namespace_not_found_answers_every_method(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lost = "nowhere";
    let lease = service.acquire(acquire("a")).await.lease_id.replace(NAMESPACE, lost);
    let in_it = || AcquireRequest {
        namespace: lost.into(),
        ..acquire("a")
    };
    let (mut locks, mut admin) = (service.locks(), service.admin());
    let mut list = list_locks("", 0, "");
    list.namespace = lost.into();
    let mut token = check_token(1);
    token.namespace = lost.into();
    let renew = RenewRequest {
        lease_id: lease,
        ttl: None,
    };
    let admit = AdmitRequest {
        namespace: lost.into(),
        ..AdmitRequest::default()
    };
    for answer in [
        service.try_acquire(in_it()).await.map(drop),
        locks.renew(renew).await.map(drop),
        locks.get_lock(get_lock(lost, "lock")).await.map(drop),
        locks.list_locks(list).await.map(drop),
        locks.check_token(token).await.map(drop),
        admin.admit(admit).await.map(drop),
    ] {
        refused(answer, NotFound, "NAMESPACE_NOT_FOUND");
    }
}

// G18b
pub async fn queue_full_says_when_to_come_again(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire_elsewhere("a")).await;
    let b = service.wait_for(waiting(60, acquire_elsewhere("b")), 1).await;
    // The refusal of a request is not remembered: the same one is asked again.
    let request = AcquireRequest {
        request_id: "c".into(),
        ..waiting(60, acquire_elsewhere("c"))
    };
    let answer = service.try_acquire(request.clone()).await;
    let refused = refused(answer, ResourceExhausted, "QUEUE_FULL");
    assert!(refused.retry.is_some_and(|delay| !delay.is_zero()));
    b.abort();
    service.until(ELSEWHERE, "lock", |lock| lock.waiter_count == 0).await;
    service.wait_for(request, 1).await.abort();
}

pub async fn queue_full_answers_too_many_holds(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    for holds in 1..=2 {
        assert_eq!(service.acquire(reentrant(acquire_elsewhere("a"))).await.holds, holds);
    }
    let answer = service.try_acquire(reentrant(acquire_elsewhere("a"))).await;
    refused(answer, ResourceExhausted, "QUEUE_FULL");
}

// G72a
pub async fn overloaded_leaves_renew_and_release_alone(fixture: &Fixture) {
    let settings = Settings {
        max_acquires: 1,
        ..Settings::default()
    };
    let service = Service::start_with(fixture, settings).await;
    let a = service.acquire(acquire("a")).await;
    let b = service.wait_for_when_let_in(waiting(60, acquire("b"))).await;
    let answer = service.try_acquire(acquire("c")).await;
    let refused = refused(answer, ResourceExhausted, "OVERLOADED");
    assert!(refused.retry.is_some_and(|delay| !delay.is_zero()));
    service.try_renew(&a, None).await.expect("renewed");
    service.release(&a).await;
    b.await.expect("no panic").expect("granted");
}

// G57
pub async fn an_unreachable_store_is_unavailable(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    fixture.first.close().await;
    for answer in [
        service.try_acquire(acquire("b")).await.map(drop),
        service.try_renew(&a, None).await.map(drop),
        service.try_release(&a).await,
        service.locks().get_lock(get_lock(NAMESPACE, "lock")).await.map(drop),
        service.locks().list_locks(list_locks("", 0, "")).await.map(drop),
        service
            .locks()
            .check_token(check_token(a.fencing_token))
            .await
            .map(drop),
    ] {
        let refused = refused(answer, Unavailable, "BACKEND_UNAVAILABLE");
        assert!(refused.retry.is_some_and(|delay| !delay.is_zero()));
    }
    service.acquire(acquire_elsewhere("a")).await;
}

// G57
pub async fn a_wait_that_ends_while_the_store_is_unreachable_says_so(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    fixture.first.close().await;
    let began = std::time::Instant::now();
    let answer = service.try_acquire(waiting(1, acquire("a"))).await;
    refused(answer, Unavailable, "BACKEND_UNAVAILABLE");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
