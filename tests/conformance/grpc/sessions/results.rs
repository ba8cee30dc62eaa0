//! Results of commands, and their order.

use super::*;

// G42
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

// G42
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
        keep_for: None,
    }));
    refused(session.result(id).await, InvalidArgument, "INVALID_FIELD");
    // Those that were released may be released again, as by calls.
    let id = session.one(release(&lease));
    assert!(session.result(id).await.is_ok());
}

// G42
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

// G43a
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

// G43a
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

// G43b
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

// G43a
pub async fn tries_of_one_message_take_effect_in_their_order(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    for round in 0..8 {
        let ids = session.send(vec![
            take(acquire("first"), false),
            take(acquire("second"), false),
            take(waiting(60, acquire("third")), false),
        ]);
        let first = session.lease(ids[0]).await.expect("it is free");
        let second = session.lease(ids[1]).await.expect_err("the first one holds");
        assert_eq!(crate::grpc::service::reason(&second), "LOCK_HELD", "round {round}");
        session.one(release(&first));
        let third = session.lease(ids[2]).await.expect("it is next");
        let id = session.one(release(&third));
        session.result(id).await.expect("it is held");
    }
}

// G214
pub async fn a_client_says_its_name_first(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let said = |name: &str, version: &str| {
        Command::Open(Open {
            client_name: name.into(),
            client_version: version.into(),
            ..Open::default()
        })
    };
    let long = "x".repeat(65);
    for (bad, field) in [(said("\u{fc}", ""), "client_name"), (said("", &long), "client_version")] {
        let mut session = open(&service).await;
        let id = session.one(bad);
        invalid(session.result(id).await, field);
        // It is no longer the first command.
        let id = session.one(said("a", "1"));
        invalid(session.result(id).await, "open");
    }
    let mut session = open(&service).await;
    let ids = session.send(vec![said("fencepost-test", "1.2"), take(acquire("a"), false)]);
    assert_eq!(
        session.result(ids[0]).await.expect("accepted"),
        Outcome::Open(OpenAccepted {})
    );
    session.lease(ids[1]).await.expect("it is free");
    let shown = service.admin().list_sessions(ListSessionsRequest::default()).await;
    let shown = shown.expect("the open sessions").into_inner().sessions;
    let names = |session: &SessionInfo| (session.client_name.clone(), session.client_version.clone());
    assert!(
        shown
            .iter()
            .map(names)
            .any(|it| it == ("fencepost-test".into(), "1.2".into())),
        "{shown:?}"
    );
}
