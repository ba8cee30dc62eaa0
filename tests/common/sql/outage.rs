//! A database that crashes, stands still, or may not be written for a while: what is the same for each kind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::record::store::{Committed, ServerId};
use fencepost::backend::{BackendError, Health};
use futures::future::join_all;

use crate::harness::{
    INSERT_NEW, MOST_SESSIONS, READ_ONLY_IS_OLD, REFUSED, Server, Settings, patient, records, refuse_sessions, run,
    sessions, set_read_only, settings, transaction, waiting,
};
use crate::record_steps::{READY, applied, eventually_read, first, healthy, next, random, serves, version_of};
use crate::servers::{available, eventually};

// G141
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_stands_still_calls_fail_in_time_and_no_sessions_pile_up() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let settings = settings(&server);
    let longest = settings.timeout * 4;
    let records = records(settings).await;
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
    assert!(begun.elapsed() < longest, "{:?}", begun.elapsed());
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
    eventually("the sessions that were given up end", || {
        sessions(&server) <= MOST_SESSIONS
    });
}

/// A call does not fail because the server refuses one more session: it waits for one that is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_refuses_another_session_goes_on_with_those_that_there_are() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let records = records(patient(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    let mut other = transaction(&server, "UPDATE fencepost_lock SET ahead = ahead").await;
    refuse_sessions(&server);
    let commit = |commit| {
        let records = Arc::clone(&records);
        tokio::spawn(async move { records.commit(commit).await })
    };
    let behind = commit(next("a", one.version));
    eventually("it waits", || waiting(&server) == 1);
    let refused = [commit(first("b")), commit(first("c"))];
    // Time for a failure: no session is free, unless the store had to open two before.
    tokio::time::sleep(settings(&server).timeout / 10).await;
    assert_eq!(*records.health().borrow(), Health::Serving);
    run(&mut other, "COMMIT").await;
    applied(behind.await.expect("no panic"));
    for commit in refused {
        applied(commit.await.expect("no panic"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_session_says_why_there_is_none() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let records = records(Settings {
        connections: 9,
        ..settings(&server)
    })
    .await;
    let known: Vec<_> = (0..9).map(|lock| first(&format!("lock {lock}"))).collect();
    for commit in &known {
        applied(records.commit(commit.clone()).await);
    }
    let _locked = transaction(&server, "UPDATE fencepost_lock SET ahead = ahead").await;
    refuse_sessions(&server);
    // Each waits for its row for a third of the time that it has, so one session serves three of them in time.
    let mut failed = Vec::new();
    for (lock, commit) in known.iter().enumerate() {
        let (records, next) = (Arc::clone(&records), next(&format!("lock {lock}"), commit.version));
        failed.push(tokio::spawn(async move { records.commit(next).await }));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let failed = join_all(failed).await.into_iter().map(|failed| {
        let failed = failed.expect("no panic").expect_err("its row is locked");
        failed.to_string()
    });
    let failed: Vec<_> = failed.collect();
    let refused = failed.iter().filter(|said| said.contains(REFUSED)).count();
    assert!((1..9).contains(&refused), "{failed:#?}");
}

// G141
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_may_not_be_written_for_a_while_grants_nothing() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let records = records(settings(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    // Over both connections.
    let commits = (0..9).map(|lock| records.commit(first(&format!("lock {lock}"))));
    join_all(commits).await.into_iter().map(applied).for_each(drop);
    set_read_only(&server, true);
    let end = Instant::now() + READY;
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
    let is_read_only =
        |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("read-only"));
    healthy(&*records, is_read_only).await;
    // Over a connection that has not noticed it.
    let read = records.read(&one.lock, None).await;
    assert!(
        read.is_err() || !READ_ONLY_IS_OLD,
        "it may be the one that a promoted replica replaced: {read:?}"
    );
    let health = records.health().borrow().clone();
    assert!(
        matches!(health, Health::Unavailable { .. }),
        "that it is read says nothing of commits: {health:?}"
    );
    set_read_only(&server, false);
    serves(&*records).await;
    assert_eq!(version_of(&*records, "a").await, Some(version));
    applied(records.commit(next("a", version)).await);
}

// G147
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_locked_row_fails_only_its_own_lock() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let alone = Settings {
        connections: 1,
        ..settings(&server)
    };
    let (records, alone) = (records(patient(&server)).await, records(alone).await);
    let one = first("locked");
    applied(records.commit(one.clone()).await);
    let _other = transaction(&server, "UPDATE fencepost_lock SET ahead = ahead + 1").await;
    let stuck = tokio::spawn({
        let (records, commit) = (Arc::clone(&records), next("locked", one.version));
        async move { records.commit(commit).await }
    });
    eventually("it waits", || waiting(&server) == 1);
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
    fails_only(10, join_all(beside.map(|commit| alone.commit(commit))).await);
}

// G147
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_others_insert_or_a_part_that_they_lock_fails_only_its_own_lock() {
    common::skip_unless!(available());
    let server = Server::started(&[]);
    let alone = records(Settings {
        connections: 1,
        ..patient(&server)
    })
    .await;
    let mut one = first("locked");
    one.put = vec![(1, b"part".to_vec())];
    applied(alone.commit(one.clone()).await);
    let mut part = next("locked", one.version);
    part.put = vec![(1, b"other".to_vec())];
    for (lock, statement) in [
        (part, "UPDATE fencepost_part SET body = 'x'"),
        (first("new"), INSERT_NEW),
    ] {
        let other = transaction(&server, statement).await;
        let commits = (0..20).map(|at| match at {
            10 => lock.clone(),
            _ => first(&format!("{} {at}", lock.lock.as_str())),
        });
        fails_only(10, join_all(commits.map(|commit| alone.commit(commit))).await);
        drop(other);
    }
}

/// All were applied, but one had no effect.
#[track_caller]
pub fn fails_only(one: usize, results: Vec<Result<Committed, BackendError>>) {
    for (at, result) in results.into_iter().enumerate() {
        match at == one {
            true => assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}"),
            false => drop(applied(result)),
        }
    }
}
