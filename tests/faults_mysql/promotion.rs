//! A database that is replaced by its replica, and one that comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::backend::mysql::settings::{Replication, Settings};
use fencepost::backend::record::store::{Commit, RecordStore};
use fencepost::backend::{BackendError, Health};
use tokio::time::timeout;

use crate::forwarder::Forwarder;
use crate::harness::{patient, records, settings, settings_of, unready};
use crate::record_steps::{READY, applied, first, healthy, next, serves};
use crate::servers::{MariaDb, available, eventually};

/// The settings of a server with replicas, of this number.
fn logging(number: u32) -> Vec<String> {
    let id = format!("server-id={number}");
    [
        &id,
        "log-bin",
        "sync-binlog=1",
        "binlog-format=ROW",
        "log-slave-updates",
    ]
    .map(str::to_owned)
    .into()
}

pub fn started(number: u32) -> MariaDb {
    let settings = logging(number);
    MariaDb::started(&settings.iter().map(String::as_str).collect::<Vec<_>>())
}

fn is_quarantined(health: &Health) -> bool {
    matches!(health, Health::Quarantined { .. })
}

async fn grants_nothing(records: &dyn RecordStore) {
    healthy(records, is_quarantined).await;
    let result = records.commit(first("quarantined")).await;
    assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
}

async fn is_admitted(records: &dyn RecordStore) {
    grants_nothing(records).await;
    records.admit().await.expect("it is admitted");
    serves(records).await;
}

/// Servers of which each may be the primary, without their data in common.
fn several<const COUNT: usize>() -> [MariaDb; COUNT] {
    std::array::from_fn(|at| MariaDb::started(&[&format!("server-id={}", at + 1)]))
}

/// Settings with which a quarantine does not end by itself.
fn between(servers: Vec<String>) -> Settings {
    Settings {
        replication: Replication::Asynchronous,
        longest_ttl: Duration::from_secs(3_600),
        ..settings_of(servers)
    }
}

// G137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_promotion_nothing_is_granted_for_the_longest_ttl() {
    const TTL: Duration = Duration::from_secs(8);
    common::skip_unless!(available());
    let mut primary = started(1);
    let mut settings_of_replica = logging(2);
    settings_of_replica.push("read-only".into());
    let replica = primary.replica(&settings_of_replica.iter().map(String::as_str).collect::<Vec<_>>());
    let settings = Settings {
        replication: Replication::Asynchronous,
        longest_ttl: TTL,
        ..settings_of(vec![primary.address(), replica.address()])
    };
    let records = records(settings.clone()).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    eventually("the replica has it", || {
        replica.sql("SELECT count(*) FROM information_schema.tables WHERE table_name = 'fencepost_lock'") == "1"
            && replica.sql("SELECT count(*) FROM fencepost_lock WHERE id <> ''") == "1"
    });
    primary.crash();
    // The first step at the promoted replica is no grant.
    let granting = tokio::spawn({
        let records = Arc::clone(&records);
        async move {
            loop {
                match records.commit(first("b")).await {
                    Err(BackendError::NotSent { .. } | BackendError::Unavailable { .. }) => {}
                    answered => return answered,
                }
            }
        }
    });
    replica.promote();
    let promoted = Instant::now();
    let result = granting.await.expect("it is answered");
    assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
    healthy(&*records, is_quarantined).await;
    // What grants nothing goes on, such as a release.
    let release = Commit {
        grants: false,
        ..next("a", one.version)
    };
    applied(records.commit(release.clone()).await);
    // A server that starts now knows it from the database.
    let later = unready(settings.clone());
    healthy(&*later, is_quarantined).await;
    serves(&*records).await;
    assert!(promoted.elapsed() >= TTL, "{:?}", promoted.elapsed());
    applied(records.commit(next("a", release.version)).await);
    // An old primary that can be written again is another server, too.
    primary.start();
    drop(replica);
    let end = Instant::now() + READY;
    while !matches!(records.commit(first("c")).await, Err(BackendError::Quarantined { .. })) {
        assert!(Instant::now() < end, "it never moves");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    records.admit().await.expect("it is admitted");
    applied(records.commit(first("c")).await);
}

// G142
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_the_database_on_another_server_is_quarantined() {
    common::skip_unless!(available());
    let mut server = MariaDb::started(&["server-id=1"]);
    applied(records(settings(&server)).await.commit(first("a")).await);
    server.stop();
    server.set("server-id=2");
    server.start();
    // It has seen neither the one nor the other.
    let copy = unready(Settings {
        longest_ttl: Duration::from_secs(3_600),
        ..settings(&server)
    });
    healthy(&*copy, is_quarantined).await;
    let result = copy.commit(first("b")).await;
    assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
}

// G137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_return_to_an_old_primary_begins_a_quarantine() {
    common::skip_unless!(available());
    let mut servers = several::<2>();
    servers[1].crash();
    let records = records(between(servers.iter().map(MariaDb::address).collect())).await;
    for (round, at) in [1, 0, 1, 0].into_iter().enumerate() {
        servers[at].start();
        servers[1 - at].crash();
        is_admitted(&*records).await;
        applied(records.commit(first(&format!("round {round}"))).await);
    }
    // Tables that are older than those that were seen on this server.
    servers[0].sql("UPDATE fencepost_store SET epoch = epoch - 1");
    grants_nothing(&*records).await;
}

// G137
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_at_a_returned_primary_is_told_by_one_that_used_the_promoted_one() {
    common::skip_unless!(available());
    let mut servers = several::<2>();
    let way = Forwarder::before(servers[0].port()).await;
    servers[1].crash();
    let knowing = records(between(vec![way.address(), servers[1].address()])).await;
    way.ends_after(|_| true);
    servers[1].start();
    is_admitted(&*knowing).await;
    applied(knowing.commit(first("a")).await);
    // The old one was never away for this one.
    servers[1].crash();
    let unaware = records(between(servers.iter().map(MariaDb::address).collect())).await;
    applied(unaware.commit(first("a")).await);
    way.go_on();
    grants_nothing(&*knowing).await;
    is_admitted(&*unaware).await;
    // From now on it knows that the other one lacks what it has granted here.
    drop(knowing);
    servers[1].start();
    servers[0].crash();
    grants_nothing(&*unaware).await;
    assert_eq!(servers[1].sql("SELECT epoch FROM fencepost_store"), "4");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lacks_two_promotions_is_quarantined_anew_for_those_who_saw_them() {
    common::skip_unless!(available());
    let mut servers = several::<3>();
    let way = Forwarder::before(servers[2].port()).await;
    serves(&*records(between(vec![servers[2].address()])).await).await;
    // As a replica of the first one has it.
    servers[2].sql("UPDATE fencepost_store SET server = 1");
    servers[1].crash();
    way.ends_after(|_| true);
    let of_all = [servers[0].address(), servers[1].address(), way.address()];
    let knowing = records(between(of_all.into())).await;
    servers[1].start();
    servers[0].crash();
    is_admitted(&*knowing).await;
    servers[1].crash();
    let unaware = unready(between(vec![servers[2].address()]));
    is_admitted(&*unaware).await;
    assert_eq!(servers[2].sql("SELECT epoch FROM fencepost_store"), "2");
    way.go_on();
    grants_nothing(&*knowing).await;
    grants_nothing(&*unaware).await;
    assert_eq!(servers[2].sql("SELECT epoch FROM fencepost_store"), "3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_connections_at_the_start_none_goes_back_to_the_old_primary() {
    common::skip_unless!(available());
    let mut servers = several::<2>();
    servers[1].crash();
    let mover = records(between(servers.iter().map(MariaDb::address).collect())).await;
    servers[1].start();
    servers[0].crash();
    grants_nothing(&*mover).await;
    drop(mover);
    servers[0].start();
    let way = Forwarder::before(servers[0].port()).await;
    way.holds(|part| part.windows(22).any(|text| text == b"UPDATE fencepost_store"));
    let records = unready(Settings {
        connect_timeout: READY,
        ..between(vec![way.address(), servers[1].address()])
    });
    way.is_holding().await;
    let is_refused = async || {
        let result = records.commit(first("a")).await;
        assert!(matches!(result, Err(BackendError::Quarantined { .. })), "{result:?}");
    };
    is_refused().await;
    way.go_on();
    let sessions = "SELECT count(*) FROM information_schema.processlist WHERE user = 'fencepost'";
    while servers[1].sql(sessions) != "2" {
        is_refused().await;
    }
    is_refused().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_busy_when_its_server_became_read_only_is_not_used_again() {
    common::skip_unless!(available());
    let server = MariaDb::started(&[]);
    // Whoever has this right commits at a server that is read-only.
    server.sql("GRANT READ_ONLY ADMIN ON *.* TO fencepost@'127.0.0.1'");
    let way = Forwarder::before(server.port()).await;
    let records = records(Settings {
        servers: vec![way.address()],
        connections: 1,
        ..patient(&server)
    })
    .await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    way.holds(|part| part.windows(22).any(|text| text == b"UPDATE fencepost_lock "));
    let two = next("a", one.version);
    let busy = tokio::spawn({
        let (records, commit) = (Arc::clone(&records), two.clone());
        async move { records.commit(commit).await }
    });
    way.is_holding().await;
    server.sql("SET GLOBAL read_only = ON");
    let is_read_only =
        |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("read-only"));
    // A read would wait for the only connection.
    let told = timeout(READY, records.health().wait_for(is_read_only)).await.is_ok();
    assert!(told, "no look has found it");
    way.go_on();
    // It was committed at a server that another one may have replaced.
    let result = busy.await.expect("it is answered");
    assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
    let result = records.commit(next("a", two.version)).await;
    assert!(matches!(result, Err(BackendError::NotSent { .. })), "{result:?}");
}
