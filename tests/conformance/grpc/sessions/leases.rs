//! Attached leases, and what is told of their loss.

use super::*;

// G41
pub async fn a_keep_alive_renews_all_attached_leases(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let short = fixture.ample();
    let ids = session.send(vec![
        take(living(short, on("short", acquire("a"))), true),
        take(on("long", acquire("a")), true),
        take(living(short, on("loose", acquire("a"))), false),
    ]);
    let mut leases = Vec::new();
    for id in ids {
        leases.push(session.lease(id).await.expect("it is free"));
    }
    let began = Instant::now();
    while began.elapsed() < 2 * short {
        session.asked().await;
        let kept = session.keep_alive().await;
        assert!(kept.not_renewed.is_empty(), "{kept:?}");
    }
    let mut held = Vec::new();
    for lease in &leases {
        held.push(is_held(&service, lease).await);
    }
    assert_eq!(held, [true, true, false], "what is not attached is not renewed");
}

pub async fn a_lease_that_any_replica_granted_is_attached(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(living(fixture.ample(), acquire("a"))).await;
    let mut session = open(&service).await;
    let id = session.one(attach(&[&lease.lease_id, &lease.lease_id]));
    assert!(matches!(session.result(id).await, Ok(Outcome::Attach(_))));
    // Its TTL is not known yet, so the server asks at once.
    let began = Instant::now();
    session.asked().await;
    assert!(began.elapsed() < SOON);
    assert!(session.keep_alive().await.not_renewed.is_empty());
    let key = LeaseKey::parse(&lease.lease_id).expect("a lease id");
    let ended = fixture
        .second
        .release(&lock(LOCK), ReleaseTarget::Hold(&key), None)
        .await;
    ended.expect("released");
    // Another replica's release is told with the next keep_alive, beside the event.
    let kept = session.keep_alive().await;
    assert_eq!(reasons(&kept.not_renewed), [(lease.lease_id.as_str(), "LEASE_LOST")]);
    assert_eq!(session.lost().await.lease_id, lease.lease_id);
    assert!(session.keep_alive().await.not_renewed.is_empty(), "it is detached");
}

pub async fn a_keep_alive_tells_each_ttl_that_the_session_did_not_tell(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(living(fixture.ample(), acquire("a"))).await;
    let mut session = open(&service).await;
    let id = session.one(attach(&[&lease.lease_id]));
    session.result(id).await.expect("it is held");
    let first = told(&session.keep_alive().await, &lease).expect("attach told no TTL");
    assert_eq!(told(&session.keep_alive().await, &lease), None, "it is the same");
    // A call outside of the session gives it another TTL.
    let ask = RenewRequest {
        lease_id: lease.lease_id.clone(),
        ttl: Some(prost_types::Duration::try_from(3 * fixture.ample()).expect("short")),
    };
    service.locks().renew(ask).await.expect("it is held");
    let second = told(&session.keep_alive().await, &lease).expect("it is another one");
    assert!(second > first, "{second:?} after {first:?}");
    assert_eq!(told(&session.keep_alive().await, &lease), None, "it was told");
}

/// The new TTL of the only attached lease, which was renewed.
fn told(kept: &Kept, lease: &Lease) -> Option<Duration> {
    assert!(kept.not_renewed.is_empty(), "{kept:?}");
    let told = kept.new_ttls.first()?;
    assert_eq!(told.lease_id, lease.lease_id);
    Some(Duration::try_from(told.ttl.expect("a TTL")).expect("a good one"))
}

pub async fn what_cannot_be_attached_attaches_nothing(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(acquire("a")).await;
    let mut elsewhere = LeaseKey::parse(&lease.lease_id).expect("a lease id");
    elsewhere.lock.namespace = crate::fixture::namespace("nowhere");
    let mut session = open(&service).await;
    for (bad, reason) in [
        ("garbage".to_owned(), "INVALID_FIELD"),
        (elsewhere.to_lease_id(), "NAMESPACE_NOT_FOUND"),
    ] {
        let id = session.one(attach(&[&lease.lease_id, &bad]));
        let status = session.result(id).await.expect_err("refused");
        assert_eq!(crate::grpc::service::reason(&status), reason);
        let says_which = status.message().contains("lease_ids[1]");
        assert_eq!(says_which, reason == "INVALID_FIELD", "{status:?}");
    }
    service.release(&lease).await;
    session.keep_alive().await;
    session.end_commands();
    let (rest, _) = session.rest().await;
    assert!(rest.is_empty(), "nothing was attached: {rest:?}");
}

pub async fn a_detached_lease_is_not_renewed_and_not_told(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let ttl = fixture.ample();
    let lease = session
        .try_acquire(living(ttl, acquire("a")), true)
        .await
        .expect("free");
    let id = session.one(detach(&lease));
    assert!(matches!(session.result(id).await, Ok(Outcome::Detach(_))));
    assert!(session.keep_alive().await.not_renewed.is_empty());
    fixture.outlive(ttl).await;
    assert!(!is_held(&service, &lease).await);
    session.end_commands();
    let (rest, _) = session.rest().await;
    let told = rest.iter().any(|event| matches!(event, Event::Lost(_)));
    assert!(!told, "{rest:?}");
}

// G41
pub async fn a_keep_alive_says_what_is_unsure_while_the_store_is_away(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let lease = session.try_acquire(acquire("a"), true).await.expect("it is free");
    fixture.first.close().await;
    let kept = session.keep_alive().await;
    assert_eq!(
        reasons(&kept.not_renewed),
        [(lease.lease_id.as_str(), "BACKEND_UNAVAILABLE")]
    );
    // It stays attached.
    assert_eq!(session.keep_alive().await.not_renewed.len(), 1);
}

pub async fn a_renewal_by_a_command_counts_for_the_next_keep_alive(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let short = fixture.ample();
    let lease = session.try_acquire(living(short, acquire("a")), true).await;
    let lease = lease.expect("it is free");
    let id = session.one(renew(&lease, Some(10 * short)));
    session.lease(id).await.expect("renewed");
    // It renews for the TTL that the command gave.
    assert!(session.keep_alive().await.not_renewed.is_empty());
    fixture.outlive(2 * short).await;
    assert!(is_held(&service, &lease).await);
}

pub async fn a_lost_lease_is_told_at_once(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let lease = session.try_acquire(acquire("a"), true).await.expect("it is free");
    let began = Instant::now();
    service.try_force(lease.fencing_token).await.expect("forced");
    let told = session.lost().await;
    assert_eq!((told.reason.as_str(), told.cause.as_str()), ("LEASE_LOST", "forced"));
    assert_eq!(told.lease_id, lease.lease_id);
    let lease = session.try_acquire(acquire("a"), true).await.expect("it is free");
    service.release(&lease).await;
    assert_eq!(session.lost().await.cause, "released");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    // The client knows of its own releases.
    let lease = session.try_acquire(acquire("a"), true).await.expect("it is free");
    let id = session.one(release(&lease));
    session.result(id).await.expect("released");
    session.end_commands();
    let (rest, _) = session.rest().await;
    assert!(!rest.iter().any(|event| matches!(event, Event::Lost(_))), "{rest:?}");
}

// G211
pub async fn a_lease_that_was_released_and_kept_is_told_lost(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let lease = session.try_acquire(acquire("a"), true).await.expect("it is free");
    service.release_keeping(&lease, SOON).await.expect("released");
    let told = session.lost().await;
    assert_eq!((told.reason.as_str(), told.cause.as_str()), ("LEASE_LOST", "released"));
    // At another replica: with the next beat.
    let on = |name: &str| on(name, acquire("a"));
    let lease = session.try_acquire(on("other"), true).await.expect("it is free");
    let key = LeaseKey::parse(&lease.lease_id).expect("a lease id");
    let target = ReleaseTarget::Keeping(&key, SOON);
    let released = fixture.second.release(&lock("other"), target, None).await;
    released.expect("the store answers");
    let kept = session.keep_alive().await;
    assert_eq!(reasons(&kept.not_renewed), [(lease.lease_id.as_str(), "LEASE_LOST")]);
}

// G210
pub async fn a_command_releases_a_lease_and_keeps_its_lock(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let lease = session.try_acquire(acquire("a"), true).await.expect("it is free");
    let id = session.one(Command::Release(ReleaseRequest {
        lease_id: lease.lease_id.clone(),
        keep_for: Some(wire(SOON)),
    }));
    match session.result(id).await.expect("released") {
        Outcome::Release(answer) => assert_eq!(answer.kept_for, Some(wire(SOON))),
        other => panic!("{other:?}"),
    }
    assert!(is_held(&service, &lease).await);
    let kept = session.keep_alive().await;
    assert_eq!(kept.not_renewed, []);
}

// G39
pub async fn a_lost_lease_is_told_in_every_mode(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    for ask in [
        shared(acquire("a")),
        semaphore(2, 3, acquire("a")),
        reentrant(acquire("a")),
    ] {
        let lease = session.try_acquire(ask, true).await.expect("it is free");
        assert!(session.keep_alive().await.not_renewed.is_empty());
        service.try_force(lease.fencing_token).await.expect("forced");
        let told = session.lost().await;
        assert_eq!((told.lease_id, told.cause.as_str()), (lease.lease_id, "forced"));
    }
}

pub async fn a_lease_that_ran_out_is_told_lost(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let ask = living(fixture.short(), acquire("a"));
    let lease = session.try_acquire(ask, true).await.expect("it is free");
    // The client does not answer.
    let told = session.lost().await;
    assert_eq!((told.lease_id, told.reason.as_str()), (lease.lease_id, "LEASE_LOST"));
}

/// A `kept` that does not name a lease says that it was renewed.
pub async fn a_lease_that_is_detached_or_released_behind_a_keep_alive_is_not_confirmed(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let mut leases = Vec::new();
    for name in ["a", "b", "c"] {
        let taken = session
            .try_acquire(living(fixture.ample(), on(name, acquire("a"))), true)
            .await;
        leases.push(taken.expect("it is free"));
    }
    let ids = session.send(vec![
        Command::KeepAlive(KeepAlive {}),
        detach(&leases[0]),
        release(&leases[1]),
    ]);
    let kept = session.kept(ids[0]).await;
    let mut named: Vec<_> = reasons(&kept.not_renewed);
    named.sort_unstable();
    let mut expected = [&leases[0], &leases[1]].map(|lease| (lease.lease_id.as_str(), "INVALID_FIELD"));
    expected.sort_unstable();
    assert_eq!(named, expected);
}

/// Its renewal by the keep_alive may come before that by the command, or after it.
pub async fn a_keep_alive_behind_a_renewal_of_its_message_confirms_it(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let lease = session
        .try_acquire(living(fixture.ample(), acquire("a")), true)
        .await
        .expect("it is free");
    for _ in 0..5 {
        let ids = session.send(vec![
            renew(&lease, Some(3 * fixture.ample())),
            Command::KeepAlive(KeepAlive {}),
        ]);
        let kept = session.kept(ids[1]).await;
        assert!(kept.not_renewed.is_empty(), "{kept:?}");
        session.lease(ids[0]).await.expect("it is held");
    }
}
