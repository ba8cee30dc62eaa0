//! A database that crashes, stands still, or may not be written for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::mysql::settings::Settings;
use fencepost::backend::record::store::{Committed, ServerId};
use fencepost::backend::{BackendError, Health};
use futures::future::join_all;
use mysql_async::prelude::Queryable;

use crate::harness::{patient, records, settings, transaction, waiting};
use crate::promotion::started;
use crate::record_steps::{applied, eventually_read, first, healthy, next, random, serves, version_of};
use crate::servers::{MariaDb, available, eventually};

// G146
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_there_after_a_crash_under_load() {
    if !available() {
        return;
    }
    let mut server = started(1);
    let records = records(settings(&server)).await;
    for round in 0..3 {
        // Each counts its lock up until the database is killed.
        let counting = (0..20).map(|lock| {
            let records = Arc::clone(&records);
            tokio::spawn(async move {
                let lock = format!("{round} {lock}");
                let (mut done, mut commit) = (None, first(&lock));
                loop {
                    match records.commit(commit.clone()).await {
                        Ok(Committed::Applied(_)) => done = Some(commit.version),
                        Ok(refused) => panic!("nobody else writes: {refused:?}"),
                        Err(_) => return (lock, done, commit.version),
                    }
                    commit = next(&lock, commit.version);
                }
            })
        });
        let counting: Vec<_> = counting.collect();
        eventually("they count", || {
            server
                .sql("SELECT count(*) FROM fencepost_lock")
                .parse::<u32>()
                .expect("a number")
                >= 20 * (round + 1)
        });
        server.crash();
        let counted = join_all(counting).await;
        healthy(&*records, |health| matches!(health, Health::Unavailable { .. })).await;
        server.start();
        serves(&*records).await;
        for counted in counted {
            let (lock, done, last) = counted.expect("it counts");
            let found = version_of(&*records, &lock).await;
            assert!(
                found == done || found == Some(last),
                "{lock}: {found:?}, not {done:?} or {last:?}"
            );
        }
    }
}

// G147
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_stands_still_calls_fail_in_time() {
    if !available() {
        return;
    }
    let server = MariaDb::started(&[]);
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
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    server.resume();
    serves(&*records).await;
    eventually_read(&*records, "a").await;
    // Whatever became of it, the next write settles it.
    let found = version_of(&*records, "a").await.expect("there is a root");
    assert!([one.version, late.version].contains(&found));
    applied(records.commit(next("a", found)).await);
    let count = "SELECT count(*) FROM information_schema.processlist WHERE user = 'fencepost'";
    eventually("the sessions that were given up end", || {
        server.sql(count).parse::<u32>().expect("a number") <= 3
    });
}

// G147
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_becomes_read_only_grants_nothing() {
    if !available() {
        return;
    }
    let server = MariaDb::started(&[]);
    let records = records(settings(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    server.sql("SET GLOBAL read_only = ON");
    let result = records.read(&one.lock, None).await;
    assert!(
        result.is_err(),
        "it may be the one that a promoted replica replaced: {result:?}"
    );
    let result = records.commit(next("a", one.version)).await;
    assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}");
    healthy(
        &*records,
        |health| matches!(health, Health::Unavailable { reason } if reason.contains("read-only")),
    )
    .await;
    server.sql("SET GLOBAL read_only = OFF");
    serves(&*records).await;
    applied(records.commit(next("a", one.version)).await);
}

// G147
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_locked_row_fails_only_its_own_lock() {
    if !available() {
        return;
    }
    let server = MariaDb::started(&[]);
    let records = records(Settings {
        connections: 1,
        ..patient(&server)
    })
    .await;
    let one = first("locked");
    applied(records.commit(one.clone()).await);
    let mut other = transaction(&server, "UPDATE fencepost_lock SET ahead = ahead + 1").await;
    let stuck = tokio::spawn({
        let (records, commit) = (Arc::clone(&records), next("locked", one.version));
        async move { records.commit(commit).await }
    });
    eventually("it waits", || waiting(&server) == 1);
    // Those behind it share a transaction with another one of the same row.
    let beside = (0..20).map(|lock| match lock {
        10 => next("locked", one.version),
        _ => first(&format!("beside {lock}")),
    });
    let results = join_all(beside.map(|commit| records.commit(commit))).await;
    for (lock, result) in results.into_iter().enumerate() {
        match lock {
            10 => assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}"),
            _ => drop(applied(result)),
        }
    }
    let result = stuck.await.expect("it is answered");
    assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}");
    other.query_drop("ROLLBACK").await.expect("it ends");
    applied(records.commit(next("locked", one.version)).await);
}
