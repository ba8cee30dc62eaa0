//! Promotions of standbys that had to confirm commits, all of them or some.

use std::time::Instant;

use common::signals::send;
use fencepost::backend::Health;
use fencepost::backend::driver::StoreIdentity;
use fencepost::backend::postgres::settings::Settings;
use fencepost::backend::record::store::{Commit, Committed, RecordStore};

use crate::forwarder::Forwarder;
use crate::harness::{
    LastUsed, READY, applied, eventually_read, first, healthy, next, records, serves, unready, version_of,
};
use crate::servers::{Postgres, available, eventually, folder};
use crate::standbys::{has_locks, promote, quarantine, synchronous, wait_for, with_standby};

/// Commits until that succeeds.
async fn grants(records: &dyn RecordStore) {
    let end = Instant::now() + READY;
    for attempt in 0.. {
        match records.commit(first(&format!("attempt {attempt}"))).await {
            Ok(Committed::Applied(_)) => return,
            Err(error) if error.is_transient() => assert!(Instant::now() < end, "{error}"),
            other => panic!("it grants nothing: {other:?}"),
        }
    }
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_is_followed_by_a_quarantine_if_not_all_standbys_had_to_confirm() {
    common::skip_unless!(available());
    // Those who were there know it, and those who come later read it.
    for were_there in [true, false] {
        let mut primary = Postgres::started(&[]);
        let _one = primary.standby("one");
        let mut two = primary.standby("two");
        wait_for(&primary, "ANY 1 (one, two)");
        let before = records(synchronous(&[&primary, &two])).await;
        applied(before.commit(first("a")).await);
        eventually("the standby has it", || has_locks(&two, 1));
        two.stop();
        // The other one has it.
        applied(before.commit(first("lost")).await);
        if !were_there {
            before.close().await;
        }
        let before = were_there.then_some(before);
        primary.crash();
        two.start();
        let _next = promote(&two);
        if let Some(before) = before {
            quarantine(&*before).await;
        }
        let later = unready(synchronous(&[&two]));
        quarantine(&*later).await;
        assert_eq!(version_of(&*later, "lost").await, None);
        later.admit().await.expect("it is admitted");
        applied(later.commit(first("lost")).await);
    }
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_quarantine_follows_where_all_standbys_had_to_confirm_also_for_a_server_that_starts_later() {
    common::skip_unless!(available());
    let mut primary = Postgres::started(&[]);
    let (one, _two) = (primary.standby("one"), primary.standby("two"));
    wait_for(&primary, "ANY 2 (one, two)");
    let before = records(synchronous(&[&primary, &one])).await;
    let kept = first("kept");
    applied(before.commit(kept.clone()).await);
    primary.crash();
    let _next = promote(&one);
    grants(&*before).await;
    let later = unready(synchronous(&[&one]));
    serves(&*later).await;
    assert_eq!(version_of(&*later, "kept").await, Some(kept.version));
    assert_eq!(one.sql("SELECT since IS NULL FROM fencepost_store"), "t");
}

// G198
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_after_a_promotion_does_not_believe_that_all_standbys_had_to_confirm() {
    common::skip_unless!(available());
    // Its data directory has the database that it used before, and not what others confirmed.
    for has_data_dir in [false, true] {
        let folder = folder();
        let synchronous = |server: &Postgres| Settings {
            last_used: LastUsed::new(
                has_data_dir.then_some(folder.path()),
                StoreIdentity::new("a database".into(), &["a:1".into()]),
            ),
            ..synchronous(&[server])
        };
        let mut primary = Postgres::started(&[]);
        let (_one, mut two) = (primary.standby("one"), primary.standby("two"));
        wait_for(&primary, "one");
        let before = records(synchronous(&primary)).await;
        applied(before.commit(first("a")).await);
        eventually("the standby has it", || has_locks(&two, 1));
        before.close().await;
        drop(before);
        // Both have all that was committed when the names are changed.
        wait_for(&primary, "ANY 1 (one, two)");
        two.stop();
        let before = records(synchronous(&primary)).await;
        applied(before.commit(first("lost")).await);
        assert_eq!(primary.sql("SELECT all_confirm FROM fencepost_store"), "f");
        before.close().await;
        drop(before);
        primary.crash();
        two.start();
        assert_eq!(two.sql("SELECT all_confirm FROM fencepost_store"), "t");
        let _next = promote(&two);
        quarantine(&*unready(synchronous(&two))).await;
    }
}

// G198
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_misses_is_quarantined_although_another_one_has_entered_and_there_was_a_quarantine_before() {
    common::skip_unless!(available());
    let mut primary = Postgres::started(&[]);
    let _one = primary.standby("one");
    let mut other = primary.standby("other");
    wait_for(&primary, "one");
    let settings = synchronous(&[&primary, &other]);
    let ways = [
        Forwarder::before(primary.port()).await,
        Forwarder::before(other.port()).await,
    ];
    let wrote = records(Settings {
        servers: ways.iter().map(Forwarder::address).collect(),
        ..settings.clone()
    });
    let (wrote, another) = (wrote.await, records(settings).await);
    primary.sql("UPDATE fencepost_store SET since = 0");
    let one = first("a");
    applied(wrote.commit(one.clone()).await);
    eventually("the standby has it", || has_locks(&other, 1));
    other.stop();
    applied(wrote.commit(next("a", one.version)).await);
    ways.iter().for_each(|way| way.ends_after(|_| true));
    primary.crash();
    other.start();
    let _next = promote(&other);
    // It wrote nothing, and can miss nothing.
    grants(&*another).await;
    ways.iter().for_each(Forwarder::go_on);
    for records in [&wrote, &another] {
        quarantine(&**records).await;
    }
}

// G198
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_during_a_quarantine_begins_it_anew() {
    common::skip_unless!(available());
    let (mut primary, one) = with_standby();
    let records = records(synchronous(&[&primary, &one])).await;
    applied(records.commit(first("a")).await);
    let began = "(date_part('epoch', now()) * 1000000)::bigint - 60000000";
    primary.sql(&format!("UPDATE fencepost_store SET since = {began}"));
    quarantine(&*records).await;
    primary.crash();
    let _next = promote(&one);
    let anew = format!("SELECT since > {began} + 50000000 FROM fencepost_store");
    eventually("it begins anew", || one.sql(&anew) == "t");
    quarantine(&*records).await;
}

// G198
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_that_lacks_what_a_server_wrote_is_quarantined_whatever_is_named() {
    common::skip_unless!(available());
    let mut primary = Postgres::started(&[]);
    let _one = primary.standby("one");
    let mut other = primary.standby("other");
    wait_for(&primary, "one");
    let records = records(synchronous(&[&primary, &other])).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    eventually("the standby has it", || has_locks(&other, 1));
    other.stop();
    applied(records.commit(next("a", one.version)).await);
    primary.crash();
    other.start();
    let _next = promote(&other);
    quarantine(&*records).await;
    assert_eq!(version_of(&*records, "a").await, Some(one.version));
}

// G198
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_a_queue_that_a_promotion_loses_begins_no_quarantine() {
    common::skip_unless!(available());
    let mut primary = Postgres::started(&[]);
    let one = primary.standby("one");
    wait_for(&primary, "one");
    let records = records(synchronous(&[&primary, &one])).await;
    let kept = first("a");
    applied(records.commit(kept.clone()).await);
    let writer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    // It would flush the next commit in time.
    send("STOP", &[primary.sql(writer).parse().expect("a process")]);
    let soft = Commit {
        soft: true,
        ..next("a", kept.version)
    };
    applied(records.commit(soft).await);
    primary.crash();
    let _next = promote(&one);
    serves(&*records).await;
    assert_eq!(version_of(&*records, "a").await, Some(kept.version));
    assert_eq!(one.sql("SELECT since IS NULL FROM fencepost_store"), "t");
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_remembers_that_not_all_standbys_had_to_confirm_where_the_promoted_one_does_not_know() {
    common::skip_unless!(available());
    let mut primary = Postgres::started(&[]);
    let _one = primary.standby("one");
    let mut two = primary.standby("two");
    wait_for(&primary, "ANY 2 (one, two)");
    let records = records(synchronous(&[&primary, &two])).await;
    applied(records.commit(first("a")).await);
    let noted = |server: &Postgres, all: &str| server.sql("SELECT all_confirm FROM fencepost_store") == all;
    eventually("it is noted", || noted(&two, "t"));
    two.stop();
    let change = primary.sql("SELECT clock_timestamp()");
    wait_for(&primary, "ANY 1 (one, two)");
    eventually("it is noted", || noted(&primary, "f"));
    // The server knows it, too: a connection that began since has entered.
    let entered = format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'fencepost' AND state = 'idle'
             AND query LIKE 'WITH raised%' AND backend_start > '{change}'"
    );
    eventually("it is used", || primary.sql(&entered) == "t");
    primary.crash();
    two.start();
    assert!(noted(&two, "t"));
    let _next = promote(&two);
    quarantine(&*records).await;
}

// G171
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_all_standbys_confirm_is_noted_once_they_did() {
    common::skip_unless!(available());
    let primary = Postgres::started(&[]);
    let (_one, mut two) = (primary.standby("one"), primary.standby("two"));
    wait_for(&primary, "ANY 1 (one, two)");
    let records = records(synchronous(&[&primary])).await;
    applied(records.commit(first("a")).await);
    two.stop();
    wait_for(&primary, "ANY 2 (one, two)");
    let waits =
        |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("commits wait for"));
    healthy(&*records, waits).await;
    let noted = || primary.sql("SELECT all_confirm FROM fencepost_store");
    assert_eq!(noted(), "f");
    two.start();
    serves(&*records).await;
    eventually("it is noted", || noted() == "t");
}

// G136
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_promotion_of_a_synchronous_standby_loses_nothing() {
    common::skip_unless!(available());
    let (mut primary, standby) = with_standby();
    let records = records(synchronous(&[&primary, &standby])).await;
    let mut version = first("a").version;
    for round in 0..50 {
        let commit = match round {
            0 => first("a"),
            _ => next("a", version),
        };
        version = commit.version;
        applied(records.commit(commit).await);
    }
    primary.crash();
    // Promoted, it waits for another standby.
    standby.promote();
    wait_for(&standby, "*");
    let _another = standby.standby("two");
    eventually_read(&*records, "a").await;
    serves(&*records).await;
    assert_eq!(version_of(&*records, "a").await, Some(version));
    applied(records.commit(next("a", version)).await);
    // The old primary would be taken for one by its place in the list.
    primary.start();
    assert_eq!(primary.sql("SELECT pg_is_in_recovery()"), "f");
    standby.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'fencepost'");
    eventually_read(&*records, "a").await;
    assert!(version_of(&*records, "a").await.is_some_and(|found| found != version));
}
