//! A database that crashes, stands still, or may not be written for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::postgres::settings::Settings;
use fencepost::backend::record::store::{Committed, ServerId};
use fencepost::backend::{BackendError, Health};
use futures::future::join_all;

use crate::forwarder::{Answers, Forwarder};
use crate::harness::{
    applied, eventually_read, first, healthy, name, next, random, records, serves, settings, settings_of, version_of,
};
use crate::servers::{NAME, Postgres, available};

// G140
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_there_after_a_crash() {
    if !available() {
        return;
    }
    let mut server = Postgres::started(&[]);
    let records = records(settings(&server)).await;
    for round in 0..3 {
        let commits: Vec<_> = (0..20).map(|lock| first(&format!("{round} {lock}"))).collect();
        for result in join_all(commits.iter().map(|commit| records.commit(commit.clone()))).await {
            applied(result);
        }
        server.crash();
        let down = records.commit(first("down")).await;
        assert!(
            matches!(
                down,
                Err(BackendError::NotSent { .. } | BackendError::Unavailable { .. })
            ),
            "{down:?}"
        );
        healthy(&*records, |health| matches!(health, Health::Unavailable { .. })).await;
        server.start();
        eventually_read(&*records, "down").await;
        for commit in commits {
            assert_eq!(version_of(&*records, commit.lock.as_str()).await, Some(commit.version));
        }
        serves(&*records).await;
    }
}

// G141
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_stands_still_calls_fail_in_time_and_no_sessions_pile_up() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let records = records(settings(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    server.pause();
    let late = next("a", one.version);
    let begun = Instant::now();
    let result = records.commit(late.clone()).await;
    assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
    let result = records.commit(first("b")).await;
    assert!(matches!(&result, Err(error) if error.is_transient()), "{result:?}");
    let beat = records.beat(ServerId(random())).await;
    assert!(matches!(&beat, Err(error) if error.is_transient()), "{beat:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    server.resume();
    serves(&*records).await;
    eventually_read(&*records, "a").await;
    // Whatever became of it, the next write settles it. It may take effect even between the read and that write.
    let found = version_of(&*records, "a").await.expect("there is a root");
    assert!([one.version, late.version].contains(&found));
    let mut settling = records.commit(next("a", found)).await;
    if found == one.version && matches!(settling, Ok(Committed::Refused(_))) {
        settling = records.commit(next("a", late.version)).await;
    }
    applied(settling);
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost'";
    crate::servers::eventually("the sessions that were given up end", || {
        server.sql(count).parse::<u32>().expect("a number") <= 4
    });
}

// G141
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_may_not_be_written_for_a_while_grants_nothing() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let records = records(settings(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    // Over both connections.
    let commits = (0..9).map(|lock| records.commit(first(&format!("lock {lock}"))));
    join_all(commits).await.into_iter().map(applied).for_each(drop);
    server.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    server.sql("SELECT pg_reload_conf()");
    let end = Instant::now() + crate::harness::READY;
    let mut version = one.version;
    loop {
        let commit = next("a", version);
        match records.commit(commit.clone()).await {
            Ok(_) => version = commit.version,
            Err(BackendError::NotSent { .. }) => break,
            Err(other) => panic!("its effect is known: {other}"),
        }
        assert!(Instant::now() < end, "the setting is never read");
    }
    healthy(
        &*records,
        |health| matches!(health, Health::Unavailable { reason } if reason.contains("read-only")),
    )
    .await;
    // Over a connection that has not noticed it.
    let _ = records.read(&name("a"), None).await;
    let health = records.health().borrow().clone();
    assert!(
        matches!(health, Health::Unavailable { .. }),
        "that it is read says nothing of commits: {health:?}"
    );
    server.sql("ALTER SYSTEM RESET default_transaction_read_only");
    server.sql("SELECT pg_reload_conf()");
    serves(&*records).await;
    assert_eq!(version_of(&*records, "a").await, Some(version));
    applied(records.commit(next("a", version)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_answer_comes_late_is_used_again() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let way = Forwarder::before(server.port()).await;
    let alone = Settings {
        connections: 1,
        ..settings_of(vec![way.address()])
    };
    let late = Answers::Late(alone.timeout + Duration::from_millis(50));
    let records = records(alone).await;
    let session =
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost' AND query LIKE 'INSERT INTO%_lock%'";
    // A look at the database that was not answered either may close it before.
    for attempt in 0..9 {
        eventually_read(&*records, "a").await;
        applied(records.commit(first(&format!("before {attempt}"))).await);
        let before = server.sql(session);
        way.answers(late);
        let result = records.commit(first(&format!("late {attempt}"))).await;
        assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
        way.answers(Answers::Pass);
        eventually_read(&*records, "a").await;
        applied(records.commit(first(&format!("after {attempt}"))).await);
        if server.sql(session) == before {
            return;
        }
    }
    panic!("each was closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_ended_by_hand_is_replaced() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let records = records(settings(&server)).await;
    applied(records.commit(first("a")).await);
    let all = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{NAME}'");
    assert!(server.sql(&all).parse::<u32>().expect("a number") >= 2);
    eventually_read(&*records, "a").await;
    serves(&*records).await;
    applied(records.commit(first("b")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_locked_row_fails_only_its_own_lock() {
    if !available() {
        return;
    }
    let server = Postgres::started(&[]);
    let patient = Settings {
        timeout: Duration::from_secs(6),
        ..settings(&server)
    };
    let alone = Settings {
        connections: 1,
        ..settings(&server)
    };
    let (records, alone) = (records(patient).await, records(alone).await);
    let one = first("locked");
    applied(records.commit(one.clone()).await);
    let mut other = crate::harness::session(&server).await;
    let transaction = other.transaction().await.expect("it begins");
    transaction
        .execute("UPDATE fencepost_lock SET time = time", &[])
        .await
        .expect("it locks");
    let stuck = tokio::spawn({
        let (records, commit) = (Arc::clone(&records), next("locked", one.version));
        async move { records.commit(commit).await }
    });
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'fencepost'";
    crate::servers::eventually("it waits", || server.sql(waits) == "1");
    let free: Vec<_> = (0..20).map(|lock| first(&format!("free {lock}"))).collect();
    for commit in &free {
        applied(records.commit(commit.clone()).await);
    }
    assert!(!stuck.is_finished(), "others have passed it");
    let result = stuck.await.expect("it is answered");
    assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}");
    // Those behind the first one share a statement with it.
    let beside = free.iter().enumerate().map(|(lock, commit)| match lock {
        10 => next("locked", one.version),
        _ => next(commit.lock.as_str(), commit.version),
    });
    let results = join_all(beside.map(|commit| alone.commit(commit))).await;
    for (lock, result) in results.into_iter().enumerate() {
        match lock {
            10 => assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}"),
            _ => drop(applied(result)),
        }
    }
}
