//! What operators see, and what nobody is shown.

use std::time::{Duration, SystemTime};

use fencepost::api::proto::watch_lock_response::Event;
use fencepost::api::proto::{AcquireRequest, ChangeKind, LockChange, LockState, NamespaceHealth, WatchLockResponse};
use tonic::Streaming;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::service::{
    LOCK, Service, acquire, check_token, list_locks, living, narrow, shared, time, waiting, watch_lock,
};
use crate::fixture::{ELSEWHERE, Fixture, NAMESPACE};

// G38
pub async fn get_lock_shows_holders_and_waiters(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let noting = AcquireRequest {
        metadata: [("host".to_owned(), "h1".to_owned())].into(),
        ..acquire("a")
    };
    let a = service.acquire(noting).await;
    let b = service.wait_for(waiting(60, shared(acquire("b"))), 1).await;
    let LockState {
        holders,
        waiters,
        holder_count,
        waiter_count,
        ..
    } = service.inspect().await;
    let (holder, waiter) = (&holders[0], &waiters[0]);
    assert_eq!((holder_count, waiter_count), (1, 1));
    assert_eq!(
        (holder.owner.as_str(), holder.fencing_token, holder.holds),
        ("a", a.fencing_token, 1)
    );
    assert!(time(holder.remaining_ttl) <= time(a.ttl));
    assert_eq!((holder.metadata["host"].as_str(), holder.identity.as_str()), ("h1", ""));
    assert!(holder.since.is_some_and(|since| since.seconds > 1_000_000_000));
    assert_eq!((waiter.owner.as_str(), waiter.mode), ("b", shared(acquire("b")).mode));
    b.abort();
}

pub async fn a_lock_that_nobody_uses_is_free(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let expected = LockState {
        namespace: NAMESPACE.into(),
        name: LOCK.into(),
        ..LockState::default()
    };
    assert_eq!(service.inspect().await, expected);
}

// G38
pub async fn a_list_comes_page_by_page(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    for name in ["b", "a/1", "a/3", "a/2", "c"] {
        service
            .acquire(AcquireRequest {
                name: name.into(),
                ..acquire("a")
            })
            .await;
    }
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let page = service
            .locks()
            .list_locks(list_locks("a/", 2, &token))
            .await
            .expect("a page")
            .into_inner();
        assert!(page.locks.len() <= 2);
        names.extend(page.locks.into_iter().map(|lock| lock.name));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["a/1", "a/2", "a/3"]);
    for size in [0, i32::MAX] {
        let page = service
            .locks()
            .list_locks(list_locks("", size, ""))
            .await
            .expect("a page")
            .into_inner();
        assert_eq!((page.locks.len(), page.next_page_token.as_str()), (5, ""));
        assert_eq!(
            page.locks[0].first_holder.as_ref().map(|holder| holder.owner.as_str()),
            Some("a")
        );
    }
}

/// What a WatchLock call sees.
struct Watching(Streaming<WatchLockResponse>);

impl Watching {
    async fn begin(service: &Service) -> (Self, LockState) {
        let stream = service.locks().watch_lock(watch_lock(NAMESPACE, LOCK)).await;
        let mut watching = Self(stream.expect("a stream").into_inner());
        match watching.next().await {
            Event::State(state) => (watching, state),
            Event::Change(change) => panic!("the state does not come first: {change:?}"),
        }
    }

    async fn next(&mut self) -> Event {
        let next = tokio::time::timeout(Duration::from_secs(10), self.0.message()).await;
        let message = next
            .expect("a message comes")
            .expect("no error")
            .expect("the watch goes on");
        message.event.expect("one of the two")
    }

    async fn sees(&mut self, kind: ChangeKind, owner: &str) -> LockChange {
        loop {
            if let Event::Change(change) = self.next().await {
                assert_eq!((change.kind(), change.owner.as_str()), (kind, owner), "{change:?}");
                return change;
            }
        }
    }
}

/// The same with a note in its metadata.
fn noting(note: &str, ask: AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        metadata: [("note".to_owned(), note.to_owned())].into(),
        ..ask
    }
}

/// The note of the claim that changed.
fn note(change: &LockChange) -> Option<&str> {
    change.metadata.get("note").map(String::as_str)
}

pub async fn a_watch_shows_the_state_and_then_each_change(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let (mut watching, state) = Watching::begin(&service).await;
    assert_eq!((state.holder_count, state.name.as_str()), (0, LOCK));
    let began = SystemTime::now();
    let a = service.acquire(noting("first", acquire("a"))).await;
    let seen = watching.sees(ChangeKind::Granted, "a").await;
    assert_eq!((seen.fencing_token, seen.holder_count), (a.fencing_token, 1));
    assert_eq!((note(&seen), seen.identity.as_str()), (Some("first"), ""));
    let time = SystemTime::try_from(seen.time.expect("a time")).expect("a time");
    let passed = time.duration_since(began).expect("after it began");
    assert!(passed < Duration::from_secs(60), "{passed:?}");
    let b = service.wait_for(waiting(60, noting("of b", acquire("b"))), 1).await;
    let seen = watching.sees(ChangeKind::Queued, "b").await;
    assert_eq!((seen.fencing_token, seen.waiter_count), (0, 1));
    assert_eq!(note(&seen), Some("of b"));
    b.abort();
    let seen = watching.sees(ChangeKind::Left, "b").await;
    assert_eq!(note(&seen), Some("of b"));
    service.release(&a).await;
    let seen = watching.sees(ChangeKind::Released, "a").await;
    assert_eq!(note(&seen), Some("first"));
    let c = service.acquire(acquire("c")).await;
    watching.sees(ChangeKind::Granted, "c").await;
    service.try_force(c.fencing_token).await.expect("forced");
    watching.sees(ChangeKind::Forced, "c").await;
    service.acquire(living(fixture.short(), acquire("d"))).await;
    watching.sees(ChangeKind::Granted, "d").await;
    assert_eq!(watching.sees(ChangeKind::Expired, "d").await.holder_count, 0);
}

// G33
pub async fn a_secret_is_shown_to_nobody_but_its_owner(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let secret = a.lease_id.rsplit(':').next().expect("a secret").to_owned();
    let mut shown = vec![format!("{:?}", service.inspect().await)];
    let list = service.locks().list_locks(list_locks("", 0, "")).await;
    shown.push(format!("{:?}", list.expect("a page")));
    let check = service.locks().check_token(check_token(a.fencing_token)).await;
    shown.push(format!("{:?}", check.expect("an answer")));
    let (mut watching, state) = Watching::begin(&service).await;
    service.release(&a).await;
    shown.push(format!(
        "{state:?} {:?}",
        watching.sees(ChangeKind::Released, "a").await
    ));
    let answer = service
        .try_acquire(AcquireRequest {
            owner: String::new(),
            ..acquire("a")
        })
        .await;
    shown.push(format!("{answer:?}"));
    for text in shown {
        assert!(!text.contains(&secret) && !text.contains(&a.lease_id), "{text}");
    }
}

pub async fn namespaces_show_their_store_and_limits(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let all = service
        .admin()
        .list_namespaces(fencepost::api::proto::ListNamespacesRequest {})
        .await;
    let all = all.expect("an answer").into_inner().namespaces;
    let names: Vec<_> = all.iter().map(|namespace| namespace.name.as_str()).collect();
    assert_eq!(names, [NAMESPACE, ELSEWHERE]);
    let (info, expected) = (&all[1], narrow());
    let limits = info.limits.as_ref().expect("limits");
    assert_eq!(
        (info.backend.as_str(), info.health()),
        (fixture.capabilities().kind, NamespaceHealth::Serving)
    );
    assert_eq!(
        (time(limits.ttl_min), time(limits.ttl_max)),
        (expected.ttl_min, expected.ttl_max)
    );
    assert_eq!(
        (limits.queue_limit, limits.hold_limit),
        (expected.queue, expected.holds)
    );
    assert_eq!(
        (limits.name_limit, time(limits.wait_max)),
        (expected.name_bytes, expected.wait_max)
    );
    assert_eq!(
        info.modes.contains(&"semaphore".to_owned()),
        fixture.capabilities().sharing
    );
    let nodes = info.nodes.iter().map(|node| node.name.clone());
    assert!(nodes.eq(fixture.first.nodes().into_iter().map(|(name, _)| name)));
}

pub async fn health_is_answered_for_all_and_for_each_namespace(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut health = HealthClient::new(service.channel());
    let mut ask = async |service: &str| {
        health
            .check(HealthCheckRequest {
                service: service.into(),
            })
            .await
    };
    for name in ["", "namespace/beds", "namespace/elsewhere"] {
        let answer = ask(name).await.expect("an answer").into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{name}");
    }
    assert_eq!(
        ask("namespace/nowhere").await.expect_err("unknown").code(),
        tonic::Code::NotFound
    );
}
