//! Leases as their clients get, renew and give them back.

use std::time::Duration;

use fencepost::api::proto::{AcquireRequest, Guarantee, Lease, ReleaseRequest};
use tonic::Code;

use super::input::bad_times;
use super::refused::{invalid, lost, refused};
use super::service::{
    DEFAULT_TTL, LOCK, Service, acquire, acquire_elsewhere, check_token, living, named, reentrant, semaphore, shared,
    time, waiting,
};
use crate::fixture::{Fixture, NAMESPACE};

// G8
pub async fn a_lease_says_what_was_granted(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(acquire("a")).await;
    assert_eq!((lease.namespace.as_str(), lease.name.as_str()), (NAMESPACE, LOCK));
    assert_eq!((lease.owner.as_str(), lease.holds), ("a", 1));
    assert!((1_000_000_000_000_000..1 << 53).contains(&lease.fencing_token));
    assert!(time(lease.ttl) >= DEFAULT_TTL, "{:?}", lease.ttl);
    assert!(time(lease.waited) < Duration::from_secs(1));
    let guarantee = match fixture.capabilities().guarantee {
        fencepost::backend::Guarantee::Ap => Guarantee::Ap,
        fencepost::backend::Guarantee::Cp => Guarantee::Cp,
    };
    assert_eq!(lease.guarantee(), guarantee);
}

// G32
pub async fn a_lease_id_is_all_that_renew_and_release_need(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let ask = AcquireRequest {
        name: "../a/{b}:ü %".into(),
        ..acquire("a")
    };
    let lease = service.acquire(ask).await;
    let lease = Lease {
        lease_id: lease.lease_id,
        ..Lease::default()
    };
    let renewed = service.try_renew(&lease, Some(2 * DEFAULT_TTL)).await.expect("renewed");
    assert!(time(renewed.ttl) >= 2 * DEFAULT_TTL);
    assert_eq!(
        (renewed.lease_id.as_str(), time(renewed.waited)),
        (lease.lease_id.as_str(), Duration::ZERO)
    );
    assert_eq!(renewed.name, "../a/{b}:ü %");
    service.release(&lease).await;
    assert_eq!(service.look_at(NAMESPACE, "../a/{b}:ü %").await.holder_count, 0);
}

// G29
pub async fn a_repeated_release_succeeds_and_frees_nobody(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    service.release(&a).await;
    let b = service.acquire(acquire("b")).await;
    service.release(&a).await;
    assert_eq!(service.inspect().await.holders[0].fencing_token, b.fencing_token);
}

// G210
pub async fn a_release_keeps_the_lock_for_the_time_that_it_says(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(named("request", acquire("a"))).await;
    let kept = service.release_keeping(&a, 2 * DEFAULT_TTL).await;
    assert_eq!(kept.expect("released"), Some(2 * DEFAULT_TTL));
    lost(service.try_renew(&a, None).await, "released");
    let retried = service.try_acquire(named("request", acquire("a"))).await;
    refused(retried, Code::FailedPrecondition, "ALREADY_RELEASED");
    refused(service.try_acquire(acquire("b")).await, Code::Aborted, "LOCK_HELD");
    let again = service.release_keeping(&a, Duration::ZERO).await.expect("repeated");
    assert!(again.is_some_and(|left| left <= 2 * DEFAULT_TTL), "{again:?}");
    let state = service.inspect().await;
    assert_eq!((state.holder_count, state.holders[0].holds), (1, 0));
    assert!(is_held(&service, a.fencing_token).await);
    service.try_force(a.fencing_token).await.expect("forced");
    service.acquire(acquire("b")).await;
}

// G212
pub async fn a_time_to_keep_beyond_its_bounds_changes_nothing(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(acquire_elsewhere("a")).await;
    for time in [Duration::from_millis(30_001), Duration::from_secs(86_400)] {
        invalid(service.release_keeping(&lease, time).await, "keep_for");
    }
    for bad in bad_times() {
        let ask = ReleaseRequest {
            lease_id: lease.lease_id.clone(),
            keep_for: Some(bad),
        };
        invalid(service.locks().release(ask).await, "keep_for");
    }
    service.try_renew(&lease, None).await.expect("it is held");
    let kept = service.release_keeping(&lease, Duration::from_secs(30)).await;
    assert_eq!(kept.expect("the longest TTL"), Some(Duration::from_secs(30)));
}

async fn is_held(service: &Service, token: u64) -> bool {
    let checked = service.locks().check_token(check_token(token)).await;
    checked.expect("an answer").into_inner().held
}

pub async fn tokens_rise_from_lease_to_lease(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut last = 0;
    for _ in 0..5 {
        let lease = service.acquire(acquire("a")).await;
        assert!(lease.fencing_token > last);
        last = lease.fencing_token;
        service.release(&lease).await;
    }
}

// G21
pub async fn a_retry_gets_the_same_lease(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let first = service.acquire(named("request", acquire("a"))).await;
    let again = service
        .acquire(named("request", waiting(5, living(DEFAULT_TTL * 2, acquire("a")))))
        .await;
    assert_eq!(
        (&again.lease_id, again.fencing_token),
        (&first.lease_id, first.fencing_token)
    );
    assert_eq!((again.holds, time(again.waited)), (1, Duration::ZERO));
    assert!(time(again.ttl) <= time(first.ttl));
    assert_eq!(service.inspect().await.holder_count, 1);
}

// G27
pub async fn a_request_id_belongs_to_its_lock_and_owner(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let first = service.acquire(named("request", semaphore(1, 5, acquire("a")))).await;
    let other_owner = service.acquire(named("request", semaphore(1, 5, acquire("b")))).await;
    let other = AcquireRequest {
        name: "other".into(),
        ..named("request", acquire("a"))
    };
    let other_lock = service.acquire(other).await;
    assert_ne!(first.lease_id, other_owner.lease_id);
    assert_ne!(first.lease_id, other_lock.lease_id);
    assert_eq!(service.inspect().await.holder_count, 2);
}

pub async fn a_reentry_is_a_lease_of_its_own_on_the_same_claim(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let first = service.acquire(reentrant(acquire("a"))).await;
    let second = service.acquire(reentrant(acquire("a"))).await;
    assert_eq!((second.fencing_token, second.holds), (first.fencing_token, 2));
    assert_ne!(second.lease_id, first.lease_id);
    service.release(&first).await;
    assert_eq!(service.inspect().await.holders[0].holds, 1);
    lost(service.try_renew(&first, None).await, "released");
    assert_eq!(service.try_renew(&second, None).await.expect("renewed").holds, 1);
    service.release(&second).await;
    assert_eq!(service.inspect().await.holder_count, 0);
}

pub async fn a_retried_reentry_gets_the_same_lease(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(reentrant(acquire("a"))).await;
    let second = service.acquire(named("request", reentrant(acquire("a")))).await;
    let again = service.acquire(named("request", reentrant(acquire("a")))).await;
    assert_eq!((again.lease_id, again.holds), (second.lease_id, 2));
}

// G7
pub async fn check_token_is_true_only_while_it_is_held(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let held = service
        .locks()
        .check_token(check_token(a.fencing_token))
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!((held.held, held.owner.as_str()), (true, "a"));
    assert!(time(held.remaining_ttl) <= time(a.ttl));
    service.release(&a).await;
    let b = service.acquire(living(fixture.short(), acquire("b"))).await;
    fixture.outlive(fixture.short()).await;
    for token in [a.fencing_token, b.fencing_token, b.fencing_token + 1_000] {
        let gone = service
            .locks()
            .check_token(check_token(token))
            .await
            .expect("an answer")
            .into_inner();
        assert_eq!((gone.held, gone.owner.as_str(), gone.remaining_ttl), (false, "", None));
    }
}

pub async fn readers_and_permits_share(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    for owner in ["a", "b", "c"] {
        service.acquire(shared(acquire(owner))).await;
    }
    assert_eq!(service.inspect().await.holder_count, 3);
    let in_other = |ask| AcquireRequest {
        name: "other".into(),
        ..ask
    };
    service.acquire(in_other(semaphore(2, 3, acquire("a")))).await;
    service.acquire(in_other(semaphore(1, 3, acquire("b")))).await;
    assert!(
        service
            .try_acquire(in_other(semaphore(1, 3, acquire("c"))))
            .await
            .is_err()
    );
}
