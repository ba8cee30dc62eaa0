//! What the embedded store keeps when it is closed and opened again, and what it does when its file
//! is not there any more.

#![cfg(feature = "embedded")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost::backend::embedded::clock::{BootClock, Clock};
use fencepost::backend::embedded::{OpenError, Store};
use fencepost::backend::{BackendError, Health, WatchEvent};
use fencepost::error::Error;
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::{Identity, Kind, LockName, Metadata, Mode, Namespace, Owner, RequestId};
use futures::StreamExt;
use futures::future::BoxFuture;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

const TTL: Duration = Duration::from_secs(30);
/// More changes than wait for a slow watcher.
const MANY: usize = 1000;

/// The locks of one namespace of a store.
fn locks(store: &Store) -> Locks {
    let namespace = Namespace::new("jobs").expect("a namespace");
    Locks::new(namespace.clone(), Limits::default(), store.namespace(namespace))
}

/// The locks in a file; the file is free again when they are closed.
fn open(path: &Path) -> Locks {
    locks(&Store::open(path).expect("the store opens"))
}

fn name(name: &str) -> LockName {
    LockName::new(name).expect("a name")
}

/// A try for a lock.
fn ask(lock: &str) -> Acquire {
    Acquire {
        lock: name(lock),
        owner: Owner::new("somebody").expect("an owner"),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: Some(TTL),
        wait: Duration::ZERO,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    }
}

async fn take(locks: &Locks, ask: Acquire) -> Lease {
    locks.acquire(ask).await.expect("the lock is free").delivered()
}

#[tokio::test]
async fn a_lease_that_was_not_given_back_lives_for_its_whole_ttl_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let before = open(&file);
    let lease = take(&before, ask("a")).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    before.close().await;
    let opened = std::time::Instant::now();
    let after = open(&file);
    let holder = after
        .check(&name("a"), lease.key.token)
        .await
        .expect("the store answers")
        .expect("it is held");
    // Counted from the restart: nothing is left out for the time before it.
    assert!(holder.remaining + opened.elapsed() >= TTL, "{holder:?}");
    assert!(matches!(after.acquire(ask("a")).await, Err(Error::LockHeld { .. })));
    after.renew(&lease.key, None).await.expect("it is renewed");
    after.release(&lease.key).await.expect("it is released");
    take(&after, ask("a")).await;
}

#[tokio::test]
async fn a_shorter_renewal_takes_nothing_away_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let before = open(&file);
    let lease = take(&before, ask("a")).await;
    before.renew(&lease.key, Some(TTL / 10)).await.expect("it is renewed");
    before.close().await;
    let renewed = open(&file).renew(&lease.key, None).await.expect("it is renewed");
    assert!(renewed.ttl > TTL / 2, "{renewed:?}");
}

#[tokio::test]
async fn the_metadata_of_a_holder_is_kept_over_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let before = open(&file);
    let lease = take(&before, ask("a")).await;
    let note = Metadata::of_value("proclaimed".into()).expect("a short value");
    before.update_metadata(&lease.key, &note).await.expect("it is held");
    before.close().await;
    let queue = open(&file).inspect(&name("a"), 1).await.expect("the store answers");
    assert_eq!(
        (&queue.holders[0].metadata, queue.holders[0].token),
        (&note, lease.key.token)
    );
}

#[tokio::test]
async fn what_was_given_back_is_free_after_a_restart_and_remembered() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let again = || Acquire {
        request_id: Some(RequestId::new("again").expect("a request id")),
        ..ask("a")
    };
    let before = open(&file);
    let lease = take(&before, again()).await;
    before.release(&lease.key).await.expect("it is released");
    before.close().await;
    let after = open(&file);
    assert_eq!(
        after.acquire(again()).await.expect_err("a retry"),
        Error::AlreadyReleased
    );
    after.release(&lease.key).await.expect("a repeated release succeeds");
    take(&after, ask("a")).await;
}

#[tokio::test]
async fn tokens_rise_across_a_restart_on_every_lock() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let mut last = 0;
    for round in 0..5 {
        let locks = open(&file);
        for lock in ["a", "b"] {
            let lease = take(&locks, ask(lock)).await;
            assert!(lease.key.token.get() > last, "round {round}: {lease:?} after {last}");
            last = lease.key.token.get();
            locks.release(&lease.key).await.expect("it is released");
        }
        locks.close().await;
    }
}

/// A boot clock with a wall clock that is wrong.
#[derive(Debug)]
struct WrongWall {
    wall: SystemTime,
}

impl Clock for WrongWall {
    fn now(&self) -> Duration {
        BootClock.now()
    }

    fn wall(&self) -> SystemTime {
        self.wall
    }

    fn sleep_until(&self, due: Duration) -> BoxFuture<'static, ()> {
        BootClock.sleep_until(due)
    }
}

#[tokio::test]
async fn tokens_rise_also_when_the_wall_clock_was_set_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let mut last = 0;
    for years in [30, 10, 0] {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(years * 31_557_600);
        let store = Store::open_with_clock(&file, Arc::new(WrongWall { wall })).expect("the store opens");
        let locks = locks(&store);
        drop(store);
        for _ in 0..3 {
            let lease = take(&locks, ask("a")).await;
            assert!(lease.key.token.get() > last, "{years}: {lease:?} after {last}");
            last = lease.key.token.get();
            locks.release(&lease.key).await.expect("it is released");
        }
        locks.close().await;
    }
}

#[tokio::test]
async fn past_their_limit_the_oldest_ends_are_forgotten_also_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let open = || {
        let limits = Limits {
            finished: 10,
            ..Limits::default()
        };
        let (store, namespace) = (Store::open(&file).expect("the store opens"), Namespace::new("jobs"));
        let namespace = namespace.expect("a namespace");
        Locks::new(namespace.clone(), limits, store.namespace(namespace))
    };
    let named = |number: usize| Acquire {
        request_id: Some(RequestId::new(&format!("r{number}")).expect("a request id")),
        ..ask(&format!("lock-{number}"))
    };
    let use_once = async |locks: &Locks, numbers: std::ops::Range<usize>| {
        for number in numbers {
            let lease = take(locks, named(number)).await;
            locks.release(&lease.key).await.expect("it is released");
        }
    };
    let locks = open();
    use_once(&locks, 0..13).await;
    locks.close().await;
    let locks = open();
    use_once(&locks, 13..16).await;
    locks.close().await;
    let locks = open();
    use_once(&locks, 16..18).await;
    for number in 8..18 {
        let retried = locks.acquire(named(number)).await.map(|granted| granted.lease.clone());
        assert_eq!(retried, Err(Error::AlreadyReleased), "r{number}");
    }
    for number in 0..8 {
        take(&locks, named(number)).await;
    }
}

/// A finished hold as format 1 stored it under its secret, behind a byte of version.
#[derive(serde::Serialize)]
struct FinishedOfFormat1 {
    lock: String,
    token: u64,
    cause: u8,
    id: Option<[u8; 16]>,
    position: u64,
}

/// The same as format 2 stores it under its position.
#[derive(serde::Deserialize)]
struct FinishedOfFormat2 {
    lock: String,
    token: u64,
    cause: u8,
    id: Option<[u8; 16]>,
    secret: [u8; 16],
}

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const FORMAT_1: TableDefinition<(&str, [u8; 16]), &[u8]> = TableDefinition::new("finished");
const FORMAT_2: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("ended");

/// Rewrites a closed file as the first format had it; returns how many finished holds it has.
fn to_format_1(file: &Path) -> usize {
    let database = Database::open(file).expect("a database");
    let change = database.begin_write().expect("a transaction");
    let mut moved = 0;
    {
        let (after, mut before) = (
            change.open_table(FORMAT_2),
            change.open_table(FORMAT_1).expect("a table"),
        );
        for entry in after.expect("a table").iter().expect("entries") {
            let (key, value) = entry.expect("an entry");
            let (namespace, position) = key.value();
            let found: FinishedOfFormat2 = postcard::from_bytes(&value.value()[1..]).expect("a record");
            let record = FinishedOfFormat1 {
                lock: found.lock,
                token: found.token,
                cause: found.cause,
                id: found.id,
                position,
            };
            let record = postcard::to_extend(&record, vec![1]).expect("a record");
            before
                .insert((namespace, found.secret), record.as_slice())
                .expect("added");
            moved += 1;
        }
    }
    change.delete_table(FORMAT_2).expect("deleted");
    change
        .open_table(META)
        .expect("a table")
        .insert("format", 1)
        .expect("a number");
    change.commit().expect("committed");
    moved
}

#[tokio::test]
async fn a_file_of_the_first_format_keeps_its_locks_and_its_ends_in_their_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let named = |number: usize| Acquire {
        request_id: Some(RequestId::new(&format!("r{number}")).expect("a request id")),
        ..ask(&format!("lock-{number}"))
    };
    let locks = open(&file);
    let mut ended = Vec::new();
    for number in 0..5 {
        let lease = take(&locks, named(number)).await;
        locks.release(&lease.key).await.expect("it is released");
        ended.push(lease);
    }
    let held = take(&locks, ask("held")).await;
    locks.close().await;
    assert_eq!(to_format_1(&file), 5);
    // Converted, and then read as it is.
    for _ in 0..2 {
        let locks = open(&file);
        for (number, lease) in ended.iter().enumerate() {
            locks.release(&lease.key).await.expect("a repeated release succeeds");
            let retried = locks.acquire(named(number)).await.map(|granted| granted.lease.clone());
            assert_eq!(retried, Err(Error::AlreadyReleased), "r{number}");
        }
        locks.renew(&held.key, None).await.expect("it is still held");
        locks.close().await;
    }
    // The oldest are the first to be forgotten.
    let limits = Limits {
        finished: 3,
        ..Limits::default()
    };
    let namespace = Namespace::new("jobs").expect("a namespace");
    let store = Store::open(&file).expect("the store opens");
    let locks = Locks::new(namespace.clone(), limits, store.namespace(namespace));
    let lease = take(&locks, named(5)).await;
    assert!(lease.key.token > held.key.token);
    locks.release(&lease.key).await.expect("it is released");
    for number in 0..3 {
        take(&locks, named(number)).await;
    }
    for number in 3..6 {
        let retried = locks.acquire(named(number)).await.map(|granted| granted.lease.clone());
        assert_eq!(retried, Err(Error::AlreadyReleased), "r{number}");
    }
}

#[tokio::test]
async fn a_file_of_the_first_format_with_a_bad_record_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    open(&file).close().await;
    assert_eq!(to_format_1(&file), 0);
    let database = Database::open(&file).expect("a database");
    let change = database.begin_write().expect("a transaction");
    let mut table = change.open_table(FORMAT_1).expect("a table");
    table.insert(("jobs", [7; 16]), [1, 200].as_slice()).expect("added");
    drop(table);
    change.commit().expect("committed");
    drop(database);
    assert!(matches!(Store::open(&file), Err(OpenError::Record { .. })));
    let database = Database::open(&file).expect("a database");
    let left = database.begin_read().expect("a transaction");
    let format = left
        .open_table(META)
        .expect("a table")
        .get("format")
        .expect("it is read");
    assert_eq!(format.expect("its format").value(), 1);
    assert_eq!(left.open_table(FORMAT_1).expect("a table").len().expect("a number"), 1);
}

#[tokio::test]
async fn a_namespace_holds_so_many_claims_and_no_more() {
    let store = Store::memory();
    let namespace = Namespace::new("jobs").expect("a namespace");
    let locks = Locks::new(namespace.clone(), Limits::default(), store.namespace_of(namespace, 2));
    let named = Acquire {
        request_id: Some(RequestId::new("again").expect("a request id")),
        ..ask("a")
    };
    let first = take(&locks, named.clone()).await;
    take(&locks, ask("b")).await;
    let refused = locks.acquire(ask("c")).await.map(|granted| granted.lease.clone());
    assert!(matches!(refused, Err(Error::Overloaded { .. })), "{refused:?}");
    assert_eq!(take(&locks, named).await.key, first.key, "a retry needs no more room");
    locks.release(&first.key).await.expect("it is released");
    take(&locks, ask("c")).await;
}

#[tokio::test]
async fn a_lease_of_another_kind_is_no_lease() {
    let locks = locks(&Store::memory());
    let lease = take(&locks, ask("a")).await;
    let mut changed = lease.key.clone();
    changed.kind = Kind::Shared;
    assert_eq!(locks.renew(&changed, None).await, Err(Error::LeaseLost { cause: None }));
    assert_eq!(locks.release(&changed).await, Err(Error::LeaseLost { cause: None }));
    locks.release(&lease.key).await.expect("it is released");
}

#[tokio::test]
async fn a_second_store_on_the_same_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let first = open(&file);
    let second = Store::open(&file);
    assert!(matches!(second, Err(OpenError::InUse { .. })), "{second:?}");
    take(&first, ask("a")).await;
}

#[tokio::test]
async fn a_file_that_vanished_grants_nothing_until_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let locks = open(&file);
    take(&locks, ask("a")).await;
    std::fs::remove_file(&file).expect("the file is there");
    for _ in 0..3 {
        let refused = locks.acquire(ask("b")).await.expect_err("nothing is granted");
        assert!(
            matches!(
                refused,
                Error::Backend(BackendError::Unavailable { .. } | BackendError::NotSent { .. })
            ),
            "{refused}"
        );
        // Where the file lies is no business of a caller.
        assert!(!refused.to_string().contains(file.to_str().expect("text")), "{refused}");
    }
    assert!(matches!(*locks.health().borrow(), Health::Unavailable { .. }));
    assert!(!file.exists(), "another file was made in its place");
    locks.close().await;
    take(&open(&file), ask("a")).await;
}

#[tokio::test]
async fn a_lost_file_loses_its_locks_and_tokens_still_rise() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let locks = open(&file);
    let before = take(&locks, ask("a")).await;
    locks.close().await;
    std::fs::remove_file(&file).expect("the file is there");
    let after = take(&open(&file), ask("a")).await;
    assert!(after.key.token > before.key.token, "{after:?} after {before:?}");
}

#[tokio::test]
async fn a_store_in_memory_forgets_its_locks_and_its_tokens_still_rise() {
    let before = take(&locks(&Store::memory()), ask("a")).await;
    let after = take(&locks(&Store::memory()), ask("a")).await;
    assert!(after.key.token > before.key.token, "{after:?} after {before:?}");
}

#[tokio::test]
async fn a_watcher_that_is_too_slow_gets_the_full_state_again() {
    let locks = locks(&Store::memory());
    let mut seen = locks.watch(&name("a"));
    assert!(matches!(seen.next().await, Some(Ok(WatchEvent::State(_)))));
    for _ in 0..MANY {
        let lease = take(&locks, ask("a")).await;
        locks.release(&lease.key).await.expect("it is released");
    }
    let last = take(&locks, ask("a")).await;
    let mut changes = 0;
    let state = loop {
        match seen
            .next()
            .await
            .expect("the watch goes on")
            .expect("the store answers")
        {
            WatchEvent::Change(_) => changes += 1,
            WatchEvent::State(state) => break state,
        }
    };
    assert!(changes < 2 * MANY, "no change was skipped");
    assert_eq!(state.holders[0].token, last.key.token);
}
