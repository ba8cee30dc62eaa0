//! What keeps commits from succeeding, and sessions that would end or are shared: the health and the errors name the cause.

use std::time::{Duration, Instant};

use fencepost::backend::postgres::settings::{Replication, Settings};
use fencepost::backend::{BackendError, Health};

use crate::harness::{
    READY, applied, first, healthy, next, records, run, serves, settings, transaction, unready, waiting,
};
use crate::pooler::Pooler;
use crate::servers::{NAME, Postgres, available, eventually};
use crate::standbys::{wait_for, with, with_standby};
use crate::tables::is_refused;

fn says(cause: &'static str) -> impl FnMut(&Health) -> bool {
    move |health| matches!(health, Health::Unavailable { reason } if reason.contains(cause))
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_somebody_has_locked_is_the_reason_that_callers_and_operators_get() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let records = records(settings(&server)).await;
    applied(records.commit(first("a")).await);
    for (mode, table) in [
        ("SHARE", "fencepost_lock"),
        ("ACCESS EXCLUSIVE", "fencepost_lock"),
        ("SHARE", "fencepost_part"),
    ] {
        let mut other = transaction(&server, &format!("LOCK TABLE {table} IN {mode} MODE")).await;
        // Also while nobody calls.
        healthy(&*records, says("has locked the table")).await;
        if table == "fencepost_lock" {
            let result = records.commit(first("b")).await;
            let Err(BackendError::NotSent { reason }) = &result else {
                panic!("its effect is known: {result:?}");
            };
            assert!(
                reason.contains("has locked the table fencepost_lock") || reason.contains("public.fencepost_lock"),
                "{reason}"
            );
        }
        healthy(&*records, says("has locked the table")).await;
        run(&mut other, "ROLLBACK").await;
        serves(&*records).await;
    }
    applied(records.commit(first("b")).await);
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_ours_that_wait_for_a_row_are_not_told_as_the_lock_of_a_table() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let (one, two) = (records(settings(&server)).await, records(settings(&server)).await);
    let kept = first("a");
    applied(one.commit(kept.clone()).await);
    let _other = transaction(&server, "SELECT FROM fencepost_lock FOR UPDATE").await;
    // The first one holds the place in front, and the second one takes it as the first one gives up.
    let earlier = tokio::spawn({
        let commit = next("a", kept.version);
        async move { one.commit(commit).await }
    });
    eventually("it waits", || waiting(&server) == 1);
    let later = two.commit(next("a", kept.version)).await;
    for result in [earlier.await.expect("it is answered"), later] {
        let Err(BackendError::NotSent { reason }) = &result else {
            panic!("its effect is known: {result:?}");
        };
        assert!(!reason.contains("has locked the table"), "{reason}");
    }
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_standby_that_does_not_answer_is_the_reason_that_callers_and_operators_get() {
    common::skip_unless!(available());
    let (primary, mut standby) = with_standby();
    let records = records(with(Replication::Synchronous, &[&primary])).await;
    applied(records.commit(first("a")).await);
    wait_for(&primary, "nobody");
    let waits = "commits wait for the standbys of synchronous_standby_names = 'nobody'";
    let end = Instant::now() + READY;
    loop {
        assert!(Instant::now() < end, "the cause is never told");
        match records.commit(first("b")).await {
            Err(error) if error.to_string().contains(waits) => break,
            Err(error) => assert!(!error.to_string().contains("lock timeout"), "{error}"),
            Ok(answered) => panic!("no standby has it: {answered:?}"),
        }
    }
    healthy(&*records, says(waits)).await;
    wait_for(&primary, "one");
    serves(&*records).await;
    // Nobody calls, and each call would wait.
    standby.stop();
    healthy(&*records, says("no standby is connected")).await;
    standby.start();
    serves(&*records).await;
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_time_that_a_role_sets_end_no_connection() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    for setting in [
        "idle_session_timeout = '300ms'",
        "idle_in_transaction_session_timeout = '300ms'",
        "statement_timeout = '300ms'",
        "lock_timeout = '1ms'",
    ] {
        server.sql(&format!("ALTER ROLE {NAME} SET {setting}"));
    }
    let records = records(settings(&server)).await;
    applied(records.commit(first("a")).await);
    let old = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost' \
               AND clock_timestamp() - backend_start > interval '2 s'";
    eventually("the connections stay", || {
        server.sql(old).parse::<u32>().expect("a number") >= 2
    });
    assert!(!server.log().contains("idle-session timeout"), "{}", server.log());
}

// G175
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_nobody_has_named_is_refused_and_named() {
    let Some((_server, pooler)) = Pooler::started() else {
        return;
    };
    let unnamed = Settings {
        pooler: false,
        ..pooler.settings()
    };
    is_refused(unnamed.clone(), "set pooler = true").await;
    // One that passes over the settings of sessions.
    pooler.ignore_settings();
    let says_so = says("ignores the settings of a session: is it a pooler? Then set pooler = true");
    tokio::time::timeout(Duration::from_secs(60), healthy(&*unready(unnamed), says_so))
        .await
        .expect("in time");
}
