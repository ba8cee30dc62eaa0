//! How a session ends, and its bounds.

use super::*;

// G44
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

// G44
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

// G62
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
    // The answer to a keep_alive names what was detached behind it, and has room for no more.
    let ids = session.send(vec![
        Command::KeepAlive(KeepAlive {}),
        detach(&leases[0]),
        attach(&[&loose.lease_id]),
    ]);
    refused(session.result(ids[2]).await, ResourceExhausted, "OVERLOADED");
    let kept = session.kept(ids[0]).await;
    assert_eq!(
        reasons(&kept.not_renewed),
        [(leases[0].lease_id.as_str(), "INVALID_FIELD")]
    );
    // A place is free when a lease is detached, released or lost.
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
