//! Bad input of every field: the documented error each time, and the server serves on.

use std::time::Duration;

use fencepost::api::proto::election_service_client::ElectionServiceClient;
use fencepost::api::proto::{
    AcquireAllRequest, AcquireRequest, AdmitRequest, CampaignRequest, CheckTokenRequest, ForceReleaseRequest,
    GetLockRequest, ListLocksRequest, ListNamespacesRequest, LockToAcquire, ReleaseRequest, RenewRequest,
    WatchLockRequest,
};
use prost_types::Duration as Wire;

use super::refused::invalid;
use super::service::{
    DEFAULT_TTL, Service, acquire, acquire_elsewhere, check_token, get_lock, in_mode, list_locks, living, named,
    semaphore, time, waiting, watch_lock,
};
use crate::asks::wire;
use crate::fixture::{ELSEWHERE, Fixture, NAMESPACE};

const BAD_NAMESPACES: [&str; 6] = ["", "Beds", "-beds", "a/b", "ü", "beds\n"];
const BAD_TEXTS: [&str; 4] = ["", "a\n", "\u{0}", "\u{85}"];
/// Durations that no field takes: negative, huge or not normalised.
const BAD_TIMES: [(i64, i32); 8] = [
    (-1, 0),
    (0, -1),
    (1, 1_000_000_000),
    (1, -1),
    (-1, 1),
    (i64::MAX, 0),
    (i64::MIN, i32::MIN),
    (315_576_000_001, 0),
];

fn bad_texts(longest: usize) -> impl Iterator<Item = String> {
    BAD_TEXTS.into_iter().map(String::from).chain(["x".repeat(longest + 1)])
}

fn bad_namespaces() -> impl Iterator<Item = String> {
    BAD_NAMESPACES.into_iter().map(String::from).chain(["x".repeat(64)])
}

pub fn bad_times() -> impl Iterator<Item = Wire> {
    BAD_TIMES.into_iter().map(|(seconds, nanos)| Wire { seconds, nanos })
}

/// Refuses all of these, naming `field`, and still serves.
async fn refuses(fixture: &Fixture, field: &str, asks: impl IntoIterator<Item = AcquireRequest>) {
    let service = Service::start(fixture).await;
    for ask in asks {
        invalid(service.try_acquire(ask).await, field);
    }
    assert_eq!(service.inspect().await.waiter_count, 0);
    service.acquire(acquire("good")).await;
}

pub async fn a_bad_namespace_is_refused(fixture: &Fixture) {
    let asks = bad_namespaces().map(|namespace| AcquireRequest {
        namespace,
        ..acquire("a")
    });
    refuses(fixture, "namespace", asks).await;
}

// G67a
pub async fn a_bad_name_is_refused(fixture: &Fixture) {
    let asks = bad_texts(512).map(|name| AcquireRequest { name, ..acquire("a") });
    refuses(fixture, "name", asks).await;
}

// G67c
pub async fn a_name_above_the_bound_of_its_namespace_is_refused(fixture: &Fixture) {
    let asks = ["123456789", "äöüäö"].map(|name| AcquireRequest {
        name: name.into(),
        ..acquire_elsewhere("a")
    });
    refuses(fixture, "name", asks).await;
}

// G67a
pub async fn a_bad_owner_is_refused(fixture: &Fixture) {
    refuses(fixture, "owner", bad_texts(256).map(|owner| acquire(&owner))).await;
}

// G34a
pub async fn a_bad_ttl_is_refused(fixture: &Fixture) {
    let zero = Wire { seconds: 0, nanos: 0 };
    let asks = bad_times().chain([zero]).map(|ttl| AcquireRequest {
        ttl: Some(ttl),
        ..acquire("a")
    });
    refuses(fixture, "ttl", asks).await;
}

// G34a
pub async fn a_ttl_outside_the_bounds_of_its_namespace_is_refused(fixture: &Fixture) {
    let asks = [9_999, 30_001, 3_600_000].map(Duration::from_millis);
    refuses(fixture, "ttl", asks.map(|ttl| living(ttl, acquire_elsewhere("a")))).await;
    let service = Service::start(fixture).await;
    for ttl in asks.map(|ttl| Some(wire(ttl))) {
        let locks = ["a", "b"].map(|name| LockToAcquire {
            name: name.into(),
            mode: None,
        });
        let all = AcquireAllRequest {
            namespace: ELSEWHERE.into(),
            locks: locks.into(),
            owner: "a".into(),
            ttl,
            ..AcquireAllRequest::default()
        };
        invalid(service.locks().acquire_all(all).await, "ttl");
        let campaign = CampaignRequest {
            namespace: ELSEWHERE.into(),
            election: "a".into(),
            candidate: "a".into(),
            ttl,
            ..CampaignRequest::default()
        };
        let mut elections = ElectionServiceClient::new(service.channel());
        invalid(elections.campaign(campaign).await, "ttl");
    }
}

// G34b
pub async fn a_ttl_within_the_bounds_is_granted_as_it_was_asked_for(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    for ttl in [500, 777, 1_500, 86_400_000].map(Duration::from_millis) {
        let lease = service.acquire(living(ttl, acquire("a"))).await;
        assert_eq!(time(lease.ttl), ttl);
        service.release(&lease).await;
    }
    let lease = service.acquire(acquire("a")).await;
    assert_eq!(time(lease.ttl), DEFAULT_TTL);
    let longer = DEFAULT_TTL * 2;
    let renewed = service.try_renew(&lease, Some(longer)).await.expect("it is held");
    assert_eq!(time(renewed.ttl), longer);
}

pub async fn a_bad_wait_is_refused(fixture: &Fixture) {
    let asks = bad_times().map(|wait| AcquireRequest {
        wait: Some(wait),
        ..acquire("a")
    });
    let above = waiting(61, acquire_elsewhere("a"));
    refuses(fixture, "wait", asks.chain([above])).await;
}

// G67a
pub async fn a_bad_mode_is_refused(fixture: &Fixture) {
    let of = |permits, limit| semaphore(permits, limit, acquire("a"));
    let asks = [
        in_mode(None, acquire("a")),
        of(0, 5),
        of(1, 0),
        of(6, 5),
        of(1, 1_000_001),
        of(u32::MAX, u32::MAX),
    ];
    refuses(fixture, "mode", asks).await;
}

// G67a
pub async fn a_bad_request_id_is_refused(fixture: &Fixture) {
    refuses(fixture, "request_id", [named(&"x".repeat(129), acquire("a"))]).await;
}

// G67a
pub async fn bad_metadata_is_refused(fixture: &Fixture) {
    let of = |metadata| AcquireRequest {
        metadata,
        ..acquire("a")
    };
    let many = (0..17).map(|n| (format!("key{n}"), String::new())).collect();
    let long = [("key".to_owned(), "x".repeat(4094))].into_iter().collect();
    refuses(fixture, "metadata", [of(many), of(long)]).await;
}

pub async fn a_bad_lease_id_is_refused(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let real = service.acquire(acquire("a")).await;
    let id = &real.lease_id;
    let long = "1".repeat(4096);
    for bad in [
        "",
        "garbage",
        "1:beds:lock",
        &id[1..],
        &id[..id.len() - 1],
        &format!("{id} "),
        &long,
        "\u{0}",
    ] {
        let renew = RenewRequest {
            lease_id: bad.into(),
            ttl: None,
        };
        invalid(service.locks().renew(renew).await, "lease_id");
        invalid(
            service
                .locks()
                .release(ReleaseRequest {
                    lease_id: bad.into(),
                    keep_for: None,
                })
                .await,
            "lease_id",
        );
    }
    service.release(&real).await;
}

// G34a
pub async fn a_bad_ttl_of_a_renewal_is_refused(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let b = service.acquire(acquire_elsewhere("b")).await;
    for ttl in bad_times().chain([Wire { seconds: 0, nanos: 0 }]) {
        let renew = RenewRequest {
            lease_id: a.lease_id.clone(),
            ttl: Some(ttl),
        };
        invalid(service.locks().renew(renew).await, "ttl");
    }
    for seconds in [9, 31] {
        invalid(service.try_renew(&b, Some(Duration::from_secs(seconds))).await, "ttl");
    }
    service.try_renew(&a, None).await.expect("renewed");
}

pub async fn a_bad_place_to_look_is_refused(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    for namespace in bad_namespaces() {
        invalid(
            service.locks().get_lock(get_lock(&namespace, "lock")).await,
            "namespace",
        );
        invalid(
            service
                .locks()
                .watch_lock(watch_lock(&namespace, "lock"))
                .await
                .map(drop),
            "namespace",
        );
        let list = ListLocksRequest {
            namespace: namespace.clone(),
            ..ListLocksRequest::default()
        };
        invalid(service.locks().list_locks(list).await, "namespace");
        let check = CheckTokenRequest {
            namespace: namespace.clone(),
            ..check_token(1)
        };
        invalid(service.locks().check_token(check).await, "namespace");
        let admit = AdmitRequest {
            namespace,
            ..AdmitRequest::default()
        };
        invalid(service.admin().admit(admit).await, "namespace");
    }
    for name in bad_texts(512) {
        invalid(service.locks().get_lock(get_lock(NAMESPACE, &name)).await, "name");
        invalid(
            service.locks().watch_lock(watch_lock(NAMESPACE, &name)).await.map(drop),
            "name",
        );
        let check = CheckTokenRequest { name, ..check_token(1) };
        invalid(service.locks().check_token(check).await, "name");
    }
    assert_eq!(service.inspect().await.holder_count, 0);
}

// G67a
pub async fn a_bad_page_is_refused(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    for (field, ask) in [
        ("page_size", list_locks("", -1, "")),
        ("page_size", list_locks("", i32::MIN, "")),
        ("prefix", list_locks(&"x".repeat(513), 0, "")),
        ("page_token", list_locks("", 0, "garbage")),
        ("page_token", list_locks("", 0, &"1".repeat(10_000))),
    ] {
        invalid(service.locks().list_locks(ask).await, field);
    }
    service
        .locks()
        .list_locks(list_locks("", i32::MAX, ""))
        .await
        .expect("a page");
}

pub async fn a_bad_token_is_refused(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    for token in [0, 1 << 53, u64::MAX] {
        invalid(service.locks().check_token(check_token(token)).await, "fencing_token");
        invalid(service.try_force(token).await, "fencing_token");
    }
    service
        .locks()
        .check_token(check_token((1 << 53) - 1))
        .await
        .expect("an answer");
}

// G69
pub async fn an_empty_request_is_refused_and_the_server_lives_on(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let (mut locks, mut admin) = (service.locks(), service.admin());
    for answer in [
        locks.acquire(AcquireRequest::default()).await.map(drop),
        locks.renew(RenewRequest::default()).await.map(drop),
        locks.release(ReleaseRequest::default()).await.map(drop),
        locks.get_lock(GetLockRequest::default()).await.map(drop),
        locks.list_locks(ListLocksRequest::default()).await.map(drop),
        locks.watch_lock(WatchLockRequest::default()).await.map(drop),
        locks.check_token(CheckTokenRequest::default()).await.map(drop),
        admin.force_release(ForceReleaseRequest::default()).await.map(drop),
        admin.admit(AdmitRequest::default()).await.map(drop),
    ] {
        invalid(answer, "");
    }
    let all = admin
        .list_namespaces(ListNamespacesRequest {})
        .await
        .expect("an answer");
    assert_eq!(all.into_inner().namespaces.len(), 2);
    service.acquire(acquire("a")).await;
}

// G67b
pub async fn the_longest_of_everything_is_accepted(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let entry = |n: usize| (format!("{n:02}"), "x".repeat(254));
    let ask = AcquireRequest {
        name: "é".repeat(256),
        metadata: (0..16).map(entry).collect(),
        ..named(
            &"x".repeat(128),
            semaphore(1_000_000, 1_000_000, acquire(&"x".repeat(256))),
        )
    };
    let lease = service.acquire(ask.clone()).await;
    assert_eq!((&lease.name, &lease.owner), (&ask.name, &ask.owner));
    assert_eq!(
        service.look_at(NAMESPACE, &ask.name).await.holders[0].metadata,
        ask.metadata
    );
    service.release(&lease).await;
}
