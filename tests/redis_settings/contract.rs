//! The records in Redis keep the contract that the record engine builds on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencepost::backend::record::store::{Commit, FoundRoot, Message, RecordStore, ServerId};
use fencepost::backend::redis::Store;
use fencepost::backend::redis_server::settings::{Servers, Settings};
use fencepost::backend::{BackendError, Health};
use fencepost::name::{LockName, Namespace};

use crate::redis_settings::access::{RIGHTS, with_user};
use crate::redis_settings::harness::{settings, standalone};
use crate::redis_settings::kept::open_records;
use crate::redis_settings::record_contract::{self, applied, commit, refused};
use crate::redis_settings::servers::{Cluster, RedisServer, available};

/// The records of a store without any.
async fn empty(settings: &Settings) -> Arc<dyn RecordStore> {
    static STORE: AtomicU32 = AtomicU32::new(0);
    let mut settings = settings.clone();
    settings.prefix = format!("store{}", STORE.fetch_add(1, Ordering::Relaxed));
    let records = Store::open(settings)
        .unwrap()
        .records(&Namespace::new("records").unwrap());
    let mut health = records.health();
    health.wait_for(|health| *health == Health::Serving).await.unwrap();
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_keeps_the_contract() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let settings = standalone(&server.url());
    record_contract::all(async || empty(&settings).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_namespace_are_of_no_other() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let store = Store::open(standalone(&server.url())).unwrap();
    record_contract::names_stay_in_their_namespace(|namespace| store.records(&namespace)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_commits_from_one_version_one_is_applied() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let servers = [open_records(&server).await, open_records(&server).await];
    record_contract::of_commits_from_one_version_one_is_applied(servers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_the_contract() {
    common::skip_unless!(available());
    let cluster = Cluster::start();
    let settings = settings(Servers::cluster(&cluster.urls()).unwrap());
    record_contract::all(async || empty(&settings).await).await;
}

fn server_id(number: u64) -> ServerId {
    ServerId(number.try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_clock_goes_back_a_locks_clock_stands_still_and_nothing_is_reserved() {
    common::skip_unless!(available());
    let mut server = RedisServer::with_clock(&[]);
    let records = empty(&standalone(&server.url())).await;
    let stamp = applied(&*records, commit("a", None, 1)).await;
    let loser = Commit {
        server: server_id(1),
        reserve: Some(Duration::from_secs(600)),
        ..commit("a", Some(9), 2)
    };
    assert!(refused(&*records, loser).await.reserved.is_some());
    server.shift_clock(-3_600);
    let found = records.read(&LockName::new("a").unwrap(), None).await.unwrap();
    assert_eq!((found.now.clock, found.reserved), (stamp.clock, None));
    assert!(found.now.time < stamp.time);
    let other = Commit {
        server: server_id(2),
        ..commit("a", Some(1), 2)
    };
    let next = applied(&*records, other).await;
    assert_eq!(next.clock, stamp.clock);
    let third = applied(&*records, commit("a", Some(2), 3)).await;
    assert_eq!(
        third.clock.0 - next.clock.0,
        third.time.0 - next.time.0,
        "it goes on from there"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_a_user_may_not_make_has_no_effect_and_one_whose_messages_are_refused_has() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let rights: Vec<&str> = RIGHTS.iter().copied().chain(["~store*", "&store*"]).collect();
    with_user(&server, "locks", "right", &rights);
    let url = server.url().replace("redis://", "redis://locks:right@");
    let records = empty(&standalone(&url)).await;
    let first = Commit {
        put: vec![(1, b"part".to_vec())],
        ..commit("a", None, 1)
    };
    applied(&*records, first).await;
    assert_eq!(server.cli(&["ACL", "SETUSER", "locks", "-hdel", "resetchannels"]), "OK");
    let with_delete = Commit {
        delete: 1..2,
        ..commit("a", Some(1), 2)
    };
    let denied = records.commit(with_delete).await;
    assert!(
        matches!(&denied, Err(BackendError::NotSent { reason }) if reason.contains("HDEL")),
        "{denied:?}"
    );
    let with_message = Commit {
        messages: vec![Message {
            to: server_id(3),
            body: Vec::new(),
        }],
        ..commit("a", Some(1), 2)
    };
    applied(&*records, with_message).await;
    assert_eq!(server.cli(&["ACL", "SETUSER", "locks", "-pexpire"]), "OK");
    let names = [LockName::new("a").unwrap(), LockName::new("b").unwrap()];
    let denied = records.commit(commit("b", None, 1)).await.map(drop);
    let version = commit("a", None, 2).version;
    let removed = records.remove(&[(names[0].clone(), version)], 5).await;
    for denied in [denied, removed] {
        assert!(
            matches!(&denied, Err(BackendError::NotSent { reason }) if reason.contains("PEXPIRE")),
            "{denied:?}"
        );
    }
    assert_eq!(server.cli(&["ACL", "SETUSER", "locks", "+pexpire", "-hset"]), "OK");
    let denied = records.remove(&[(names[0].clone(), version)], 5).await;
    assert!(
        matches!(&denied, Err(BackendError::NotSent { reason }) if reason.contains("HSET")),
        "{denied:?}"
    );
    let [known, absent] = names.each_ref().map(|name| records.read(name, Some(version)));
    assert_eq!(known.await.unwrap().root, FoundRoot::Known);
    assert_eq!(absent.await.unwrap().root, FoundRoot::Absent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_deletes_more_parts_than_one_command_may_name() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let records = empty(&standalone(&server.url())).await;
    for at in 0..3 {
        let parts = Commit {
            put: (3_000 * at..3_000 * (at + 1)).map(|part| (part, Vec::new())).collect(),
            ..commit("a", (at > 0).then_some(at), at + 1)
        };
        applied(&*records, parts).await;
    }
    let delete = Commit {
        delete: 0..9_000,
        ..commit("a", Some(3), 4)
    };
    applied(&*records, delete).await;
    assert_eq!(records.parts(&LockName::new("a").unwrap(), 0..9_000).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_finds_no_root_reserves_nothing_and_leaves_no_name() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let records = empty(&standalone(&server.url())).await;
    let loser = Commit {
        reserve: Some(Duration::from_secs(600)),
        ..commit("a", Some(9), 2)
    };
    let found = refused(&*records, loser).await;
    assert_eq!((found.root, found.reserved), (FoundRoot::Absent, None));
    let locks = server.cli(&["KEYS", "store*"]);
    assert!(!locks.contains(":names") && !locks.contains(":l:"), "{locks}");
}
