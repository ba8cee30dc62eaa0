//! What a commit does: compare-and-set with its guards, and parts with the root.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fencepost::backend::mysql::settings::Settings;
use fencepost::backend::record::store::{Commit, Committed};
use futures::future::join_all;

use crate::harness::{patient, records, settings};
use crate::record_contract;
use crate::record_steps::{applied, first, name, next};
use crate::servers::{MariaDb, NAME, available};

// G143
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_keeps_the_contract_of_records() {
    static CASE: AtomicU32 = AtomicU32::new(0);
    if !available() {
        return;
    }
    let server = MariaDb::started(&[]);
    let empty = async || {
        let database = format!("case{}", CASE.fetch_add(1, Ordering::Relaxed));
        server.sql(&format!(
            "CREATE DATABASE {database}; GRANT ALL ON {database}.* TO {NAME}@'127.0.0.1'"
        ));
        let own = Settings {
            database,
            ..settings(&server)
        };
        records(own).await
    };
    record_contract::all_but_messages(empty).await;
}

// G80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_clock_goes_back_a_locks_clock_stands_still() {
    if !available() {
        return;
    }
    let server = MariaDb::started(&[]);
    let records = records(settings(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    // As if the database's clock had been an hour ahead when the root was written.
    server.sql("UPDATE fencepost_lock SET time = time + 3600000000");
    let found = records.read(&name("a"), None).await.expect("it reads").now;
    assert!(found.clock.0 > found.time.0 + 3_590_000_000, "{found:?}");
    let two = next("a", one.version);
    let stamp = applied(records.commit(two.clone()).await);
    assert!(
        stamp.clock >= found.clock && stamp.clock.0 < found.clock.0 + 60_000_000,
        "{stamp:?} {found:?}"
    );
    // From now on it advances with the database's clock again.
    let later = applied(records.commit(next("a", two.version)).await);
    let passed = (later.clock.0 - stamp.clock.0, later.time.0 - stamp.time.0);
    assert_eq!(passed.0, passed.1);
    assert!(passed.0 > 0);
}

// G143
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_two_servers_never_deadlock() {
    if !available() {
        return;
    }
    let server = MariaDb::started(&[]);
    let deadlocks = || server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    let servers = [records(settings(&server)).await, records(settings(&server)).await];
    let locks: Vec<String> = (0..40).map(|lock| format!("lock {lock}")).collect();
    let mut versions = vec![None; locks.len()];
    for round in 0..30 {
        let commits = locks.iter().enumerate().flat_map(|(at, lock)| {
            // The one server's batch comes in the other order.
            let turned = locks.len() - 1 - at;
            let commit = |at: usize, lock: &str| Commit {
                expected: versions[at],
                put: vec![(round, vec![round as u8])],
                ..first(lock)
            };
            [(at, 0, commit(at, lock)), (turned, 1, commit(turned, &locks[turned]))]
        });
        let results = join_all(commits.map(|(at, by, commit)| {
            let records = Arc::clone(&servers[by]);
            async move { (at, commit.version, records.commit(commit).await) }
        }))
        .await;
        let mut winners = vec![0; locks.len()];
        for (at, version, result) in results {
            if let Committed::Applied(_) = result.expect("it is answered") {
                winners[at] += 1;
                versions[at] = Some(version);
            }
        }
        assert!(
            winners.iter().all(|winners| *winners == 1),
            "round {round}: {winners:?}"
        );
    }
    assert_eq!(deadlocks(), "Innodb_deadlocks\t0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_long_queues_fits_into_the_packets_of_the_server() {
    if !available() {
        return;
    }
    let server = MariaDb::started(&[]);
    let records = records(patient(&server)).await;
    let large = |lock: usize| Commit {
        body: vec![7; 1 << 20],
        ..first(&format!("lock {lock}"))
    };
    // Ten times 2 MiB of digits; the server refuses more than 16.
    for result in join_all((0..10).map(|lock| records.commit(large(lock)))).await {
        applied(result);
    }
    assert_eq!(records.list("", None, 100).await.expect("it lists").len(), 10);
}
