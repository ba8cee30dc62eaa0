//! Session: many operations on one stream.

use std::time::{Duration, Instant};

use fencepost::api::Settings;
use fencepost::api::proto::session_command::{Command, KeepAlive};
use fencepost::api::proto::session_event::command_result::Outcome;
use fencepost::api::proto::session_event::{Event, LeaseError};
use fencepost::api::proto::{AcquireRequest, CheckTokenRequest, Lease, ReleaseRequest};
use fencepost::backend::{InspectLimit, ReleaseTarget};
use fencepost::name::LeaseKey;
use tonic::Code::{Aborted, Cancelled, InvalidArgument, NotFound, ResourceExhausted, Unavailable};
use tonic::Status;

use super::refused::{lost, refused};
use super::service::{LOCK, Service, acquire, check_token, get_lock, living, reentrant, semaphore, shared, waiting};
use crate::fixture::{Fixture, NAMESPACE, lock};
use crate::session_client::{SessionClient, acquire as take, attach, cancel, close, detach, release, renew};

/// Longer than an event takes that comes at once.
const SOON: Duration = Duration::from_secs(5);

async fn try_open(service: &Service) -> Result<SessionClient, Status> {
    let (commands, sent) = SessionClient::commands();
    let events = service.locks().session(sent).await?;
    SessionClient::opened(commands, events.into_inner()).await
}

async fn open(service: &Service) -> SessionClient {
    try_open(service).await.expect("a session")
}

fn on(name: &str, ask: AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        name: name.into(),
        ..ask
    }
}

async fn is_held(service: &Service, lease: &Lease) -> bool {
    let ask = CheckTokenRequest {
        name: lease.name.clone(),
        ..check_token(lease.fencing_token)
    };
    let checked = service.locks().check_token(ask).await;
    checked.expect("an answer").into_inner().held
}

fn reasons(not_renewed: &[LeaseError]) -> Vec<(&str, &str)> {
    let reasons = not_renewed
        .iter()
        .map(|lease| (lease.lease_id.as_str(), lease.reason.as_str()));
    reasons.collect()
}

// Results and their order.

pub async fn a_session_does_what_calls_do(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    assert!(session.opened.command_limit >= 100 && session.opened.lease_limit >= 100);
    let lease = session.try_acquire(acquire("a"), false).await.expect("it is free");
    assert_eq!((lease.name.as_str(), lease.owner.as_str()), (LOCK, "a"));
    let ids = session.send(vec![
        Command::GetLock(get_lock(NAMESPACE, LOCK)),
        Command::CheckToken(check_token(lease.fencing_token)),
        renew(&lease, None),
    ]);
    match session.result(ids[0]).await {
        Ok(Outcome::GetLock(shown)) => assert_eq!(shown.lock.expect("a state").holders[0].owner, "a"),
        other => panic!("{other:?}"),
    }
    match session.result(ids[1]).await {
        Ok(Outcome::CheckToken(checked)) => assert!(checked.held && checked.owner == "a"),
        other => panic!("{other:?}"),
    }
    assert_eq!(session.lease(ids[2]).await.expect("renewed").lease_id, lease.lease_id);
    // A call releases what a session was granted, and the other way round.
    service.release(&lease).await;
    let lease = service.acquire(acquire("b")).await;
    let id = session.one(release(&lease));
    assert!(matches!(session.result(id).await, Ok(Outcome::Release(_))));
    assert_eq!(service.inspect().await.holder_count, 0);
}

pub async fn an_error_of_a_command_is_that_of_its_call(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let lease = service.acquire(acquire("a")).await;
    service.release(&lease).await;
    service.acquire(acquire("b")).await;
    let nowhere = AcquireRequest {
        namespace: "nowhere".into(),
        ..acquire("a")
    };
    for (ask, code, reason) in [
        (AcquireRequest::default(), InvalidArgument, "INVALID_FIELD"),
        (on("\u{7}", acquire("a")), InvalidArgument, "INVALID_FIELD"),
        (acquire(""), InvalidArgument, "INVALID_FIELD"),
        (nowhere, NotFound, "NAMESPACE_NOT_FOUND"),
    ] {
        let answered = service.try_acquire(ask.clone()).await.expect_err("refused");
        let result = session.try_acquire(ask, false).await.expect_err("refused");
        assert_eq!(result.message(), answered.message());
        let [answered, result] = [answered, result].map(|status| refused(Err::<(), _>(status), code, reason));
        assert_eq!(
            (result.metadata, result.fields, result.retry),
            (answered.metadata, answered.fields, answered.retry)
        );
    }
    let held = refused(session.try_acquire(acquire("c"), true).await, Aborted, "LOCK_HELD");
    assert_eq!(held.says("owner"), "b");
    let id = session.one(renew(&lease, None));
    lost(session.lease(id).await, "released");
    let id = session.one(Command::Release(ReleaseRequest {
        lease_id: "garbage".into(),
    }));
    refused(session.result(id).await, InvalidArgument, "INVALID_FIELD");
    // Those that were released may be released again, as by calls.
    let id = session.one(release(&lease));
    assert!(session.result(id).await.is_ok());
}

pub async fn a_cancelled_wait_gets_one_result_and_has_left_the_queue(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let held = service.acquire(acquire("a")).await;
    let mut session = open(&service).await;
    let wait = session.one(take(waiting(60, acquire("b")), true));
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    let again = session.send(vec![cancel(wait), cancel(wait), cancel(999)]);
    refused_as_cancelled(session.result(wait).await);
    assert_eq!(
        service.inspect().await.waiter_count,
        0,
        "it left before it was answered"
    );
    for id in again {
        assert!(matches!(session.result(id).await, Ok(Outcome::Cancel(_))));
    }
    service.release(&held).await;
    session.try_acquire(acquire("c"), false).await.expect("it is free");
    session.end_commands();
    let (rest, end) = session.rest().await;
    assert!(end.is_none() && rest.is_empty(), "{rest:?} {end:?}");
}

fn refused_as_cancelled(result: Result<Outcome, Status>) {
    let status = result.expect_err("cancelled");
    assert_eq!(status.code(), Cancelled, "{status:?}");
}

pub async fn a_wait_that_is_cancelled_in_its_own_message_gets_one_result(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let mut session = open(&service).await;
    // The second one waits for its turn behind the look at the lock.
    session.send_raw(vec![
        (1, Some(take(waiting(60, acquire("b")), false))),
        (2, Some(Command::GetLock(get_lock(NAMESPACE, LOCK)))),
        (3, Some(take(waiting(60, acquire("c")), false))),
        (4, Some(cancel(3))),
        (5, Some(cancel(1))),
    ]);
    for id in [1, 3] {
        refused_as_cancelled(session.result(id).await);
    }
    for id in [2, 4, 5] {
        session.result(id).await.expect("no error");
    }
    assert_eq!(service.inspect().await.waiter_count, 0);
}

pub async fn commands_on_one_lock_take_effect_in_the_order_in_which_they_were_sent(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let mut lease = session.try_acquire(acquire("0"), false).await.expect("it is free");
    for round in 1..8 {
        let owner = round.to_string();
        let ids = session.send(vec![
            Command::GetLock(get_lock(NAMESPACE, LOCK)),
            release(&lease),
            take(acquire(&owner), false),
            Command::CheckToken(check_token(lease.fencing_token)),
            Command::GetLock(get_lock(NAMESPACE, LOCK)),
        ]);
        let mut owners = Vec::new();
        for id in [ids[0], ids[4]] {
            let Ok(Outcome::GetLock(shown)) = session.result(id).await else {
                panic!("a state");
            };
            owners.extend(
                shown
                    .lock
                    .expect("a state")
                    .holders
                    .into_iter()
                    .map(|holder| holder.owner),
            );
        }
        assert_eq!(owners, [(round - 1).to_string(), owner]);
        session.result(ids[1]).await.expect("released");
        lease = session
            .lease(ids[2])
            .await
            .expect("a try behind a release finds it free");
        match session.result(ids[3]).await {
            Ok(Outcome::CheckToken(checked)) => assert!(!checked.held),
            other => panic!("{other:?}"),
        }
    }
}

pub async fn waits_of_one_message_are_served_in_their_order(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let first = session.try_acquire(acquire("first"), false).await.expect("it is free");
    // The release behind the waits is not held up by them.
    let waits = (0..6).map(|number| take(waiting(60, acquire(&number.to_string())), false));
    let ids = session.send(waits.chain([release(&first)]).collect());
    let mut holder = session.lease(ids[0]).await.expect("granted");
    for id in &ids[1..6] {
        session.one(release(&holder));
        holder = session.lease(*id).await.expect("granted");
    }
    assert_eq!(holder.owner, "5");
}

pub async fn a_command_on_another_lock_passes_those_that_wait(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let mut session = open(&service).await;
    let ids = session.send(vec![
        take(waiting(60, acquire("b")), false),
        take(on("other", acquire("b")), false),
    ]);
    session.lease(ids[1]).await.expect("it is free");
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
}

// Attached leases.

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
        assert_eq!(super::service::reason(&status), reason);
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

// Losses.

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

// The end.

pub async fn the_end_of_a_session_ends_its_waits_and_leaves_its_leases(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let mut session = open(&service).await;
    let mine = session
        .try_acquire(on("mine", acquire("b")), true)
        .await
        .expect("it is free");
    session.one(take(waiting(60, acquire("b")), true));
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    drop(session);
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 0).await;
    let mut session = open(&service).await;
    let id = session.one(attach(&[&mine.lease_id]));
    session.result(id).await.expect("attached");
    assert!(session.keep_alive().await.not_renewed.is_empty(), "it is still held");
}

pub async fn a_client_that_has_no_more_commands_gets_all_results(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let mut session = open(&service).await;
    let ids = session.send(vec![
        take(waiting(60, acquire("b")), false),
        take(on("other", acquire("b")), true),
        Command::KeepAlive(KeepAlive {}),
    ]);
    session.end_commands();
    session.lease(ids[1]).await.expect("it is free");
    session.kept(ids[2]).await;
    refused_as_cancelled(session.result(ids[0]).await);
    let (_, end) = session.rest().await;
    assert!(end.is_none(), "{end:?}");
    assert_eq!(service.look_at(NAMESPACE, "other").await.holder_count, 1);
}

pub async fn a_close_gives_the_leases_back_and_is_answered_then(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let mut session = open(&service).await;
    let takes = (0..5).map(|number| take(on(&format!("mine/{number}"), acquire("b")), true));
    for id in session.send(takes.collect()) {
        session.lease(id).await.expect("it is free");
    }
    let ids = session.send(vec![take(waiting(60, acquire("b")), true), close(true)]);
    refused_as_cancelled(session.result(ids[0]).await);
    match session.result(ids[1]).await {
        Ok(Outcome::Close(closed)) => assert!(closed.not_released.is_empty(), "{closed:?}"),
        other => panic!("{other:?}"),
    }
    for number in 0..5 {
        let state = service.look_at(NAMESPACE, &format!("mine/{number}")).await;
        assert_eq!(state.holder_count, 0, "it is free when the close is answered");
    }
    assert_eq!(service.inspect().await.waiter_count, 0);
    let (rest, end) = session.rest().await;
    assert!(rest.is_empty() && end.is_none(), "{rest:?} {end:?}");
}

pub async fn a_close_without_release_leaves_the_leases(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let lease = session.try_acquire(acquire("b"), true).await.expect("it is free");
    let ids = session.send(vec![close(false), Command::GetLock(get_lock(NAMESPACE, LOCK))]);
    assert!(matches!(session.result(ids[0]).await, Ok(Outcome::Close(_))));
    let (rest, end) = session.rest().await;
    assert!(end.is_none(), "{end:?}");
    let after = rest
        .iter()
        .filter(|event| matches!(event, Event::Result(result) if result.id == ids[1]));
    assert!(after.count() <= 1, "{rest:?}");
    assert!(is_held(&service, &lease).await);
}

pub async fn a_stop_is_told_and_ends_the_session(fixture: &Fixture) {
    let mut service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let mut session = open(&service).await;
    session
        .try_acquire(on("mine", acquire("b")), true)
        .await
        .expect("it is free");
    let wait = session.one(take(waiting(60, acquire("b")), false));
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    let began = Instant::now();
    service.tell_to_stop();
    session
        .find(|event| matches!(event, Event::Draining(_)).then_some(()))
        .await;
    refused(session.result(wait).await, Unavailable, "DRAINING");
    let (rest, end) = session.rest().await;
    refused(end.map_or(Ok(()), Err), Unavailable, "DRAINING");
    assert!(rest.is_empty(), "{rest:?}");
    service.stopped().await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    // A store of one process is closed now.
    let most = InspectLimit::of_each(1);
    if let Ok(queue) = fixture.second.inspect(&lock("mine"), most).await {
        assert_eq!(queue.holder_count, 1, "held leases stay");
    }
}

// Bounds.

pub async fn leases_beyond_the_limit_are_refused_and_the_session_lives_on(fixture: &Fixture) {
    let settings = Settings {
        max_kept_leases: 2,
        identity_share: 100,
        peer_share: 100,
        ..Settings::default()
    };
    let service = Service::start_with(fixture, settings).await;
    let mut session = open(&service).await;
    let mut leases = Vec::new();
    for number in 0..2 {
        let ask = on(&number.to_string(), acquire("a"));
        leases.push(session.try_acquire(ask, true).await.expect("there is a place"));
    }
    refused(
        session.try_acquire(on("2", acquire("a")), true).await,
        ResourceExhausted,
        "OVERLOADED",
    );
    assert_eq!(
        service.look_at(NAMESPACE, "2").await.holder_count,
        0,
        "it was not granted"
    );
    let loose = session
        .try_acquire(on("2", acquire("a")), false)
        .await
        .expect("without a place");
    let id = session.one(attach(&[&loose.lease_id]));
    refused(session.result(id).await, ResourceExhausted, "OVERLOADED");
    // A place is free when a lease is detached, released or lost.
    let id = session.one(detach(&leases[0]));
    session.result(id).await.expect("detached");
    let id = session.one(attach(&[&loose.lease_id]));
    session.result(id).await.expect("there is a place");
    let id = session.one(release(&leases[1]));
    session.result(id).await.expect("released");
    let last = session.try_acquire(on("3", acquire("a")), true).await.expect("a place");
    service.release(&last).await;
    assert_eq!(session.lost().await.lease_id, last.lease_id);
    session.try_acquire(on("4", acquire("a")), true).await.expect("a place");
}

pub async fn commands_take_the_places_of_their_calls(fixture: &Fixture) {
    let settings = Settings {
        max_acquires: 1,
        ..Settings::default()
    };
    let service = Service::start_with(fixture, settings).await;
    let mut session = open(&service).await;
    let lease = session
        .try_acquire(acquire("a"), false)
        .await
        .expect("there is a place");
    session.one(take(waiting(60, acquire("b")), false));
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    refused(
        session.try_acquire(on("c", acquire("c")), false).await,
        ResourceExhausted,
        "OVERLOADED",
    );
    refused(
        service.try_acquire(on("c", acquire("c"))).await,
        ResourceExhausted,
        "OVERLOADED",
    );
    let id = session.one(renew(&lease, None));
    session.lease(id).await.expect("renewals have their own places");
}

pub async fn what_is_no_command_is_refused(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    session.send_raw(vec![(1, None), (2, Some(take(acquire("a"), false)))]);
    let empty = refused(session.result(1).await, InvalidArgument, "INVALID_FIELD");
    assert_eq!(empty.fields, ["command"]);
    session.lease(2).await.expect("the session lives on");
    // Two results of one id could not be told apart.
    session.send_raw(vec![
        (3, Some(take(waiting(60, acquire("a")), false))),
        (3, Some(take(on("b", acquire("a")), false))),
    ]);
    let (_, end) = session.rest().await;
    let end = refused(end.map_or(Ok(()), Err), InvalidArgument, "INVALID_FIELD");
    assert_eq!(end.fields, ["id"]);
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 0).await;
}

pub async fn a_message_that_is_too_large_ends_the_session_and_the_server_lives_on(fixture: &Fixture) {
    let settings = Settings {
        request_bytes: 1_000,
        ..Settings::default()
    };
    let service = Service::start_with(fixture, settings).await;
    let mut session = open(&service).await;
    session.send(vec![take(acquire("a"), false); 100]);
    let (_, end) = session.rest().await;
    let end = refused(end.map_or(Ok(()), Err), InvalidArgument, "INVALID_FIELD");
    assert_eq!(end.fields, ["request"]);
    assert_eq!(service.look_at(NAMESPACE, LOCK).await.holder_count, 0);
}
