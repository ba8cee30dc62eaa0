//! What the embedded store keeps when it is closed and opened again.

#![cfg(feature = "embedded")]

use std::path::Path;
use std::time::Duration;

use common::clients;
use fencepost::backend::WatchEvent;
use fencepost::backend::embedded::{OpenError, Store};
use fencepost::error::Error;
use fencepost::limits::Limits;
use fencepost::locks::{Acquire, Lease, Locks};
use fencepost::name::{Kind, Metadata, Mode, Namespace, RequestId};
use futures::StreamExt;
use redb::{Database, TableDefinition};

use self::clients::name;

mod golden;
mod lost_file;
mod wall_clock;

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

/// A try for a lock.
fn ask(lock: &str) -> Acquire {
    clients::ask(lock, TTL, Duration::ZERO)
}

/// A try for a lock of its own, with a request id.
fn named(number: usize) -> Acquire {
    Acquire {
        request_id: Some(RequestId::new(&format!("r{number}")).expect("a request id")),
        ..ask(&format!("lock-{number}"))
    }
}

/// Locks that remember so many finished holds.
fn remembering(finished: u32, file: &Path) -> Locks {
    let limits = Limits {
        finished,
        ..Limits::default()
    };
    let (store, namespace) = (Store::open(file).expect("the store opens"), Namespace::new("jobs"));
    let namespace = namespace.expect("a namespace");
    Locks::new(namespace.clone(), limits, store.namespace(namespace))
}

async fn take(locks: &Locks, ask: Acquire) -> Lease {
    locks.acquire(ask).await.expect("the lock is free").delivered()
}

// G231
#[tokio::test]
async fn a_lease_that_was_not_given_back_ends_after_a_restart_when_it_would_have_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let before = open(&file);
    let lease = take(&before, ask("a")).await;
    let granted = std::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    before.close().await;
    let after = open(&file);
    let left = TTL - granted.elapsed();
    let holder = after.check(&name("a"), lease.key.token).await;
    let holder = holder.expect("the store answers").expect("it is held");
    assert!(holder.remaining <= left, "{holder:?}, at most {left:?}");
    assert!(matches!(after.acquire(ask("a")).await, Err(Error::LockHeld { .. })));
    after.renew(&lease.key, None).await.expect("it is renewed");
    after.release(&lease.key).await.expect("it is released");
    take(&after, ask("a")).await;
}

// G231
#[tokio::test]
async fn after_a_kill_a_lease_ends_in_time_unless_one_was_renewed_and_then_once_after_its_whole_ttl() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let before = open(&file);
    let lease = take(&before, ask("a")).await;
    let granted = std::time::Instant::now();
    // What a process leaves that is killed now.
    let killed = || std::fs::read(&file).expect("a file");
    // In the place of the file, or as a copy of it.
    let put = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).expect("a file");
        open(path)
    };
    let remaining = async |locks: &Locks| {
        let holder = locks.check(&name("a"), lease.key.token).await;
        holder.expect("the store answers").expect("it is held").remaining
    };
    let (unrenewed, pause) = (killed(), Duration::from_secs(2));
    before.renew(&lease.key, None).await.expect("it is renewed");
    let renewed = killed();
    tokio::time::sleep(pause).await;
    before.close().await;
    let after = put(&file, &unrenewed);
    assert!(granted.elapsed() + remaining(&after).await <= TTL);
    after.close().await;
    // Leases may have been renewed since it was made, and the file knows only that none was before.
    for (path, bytes) in [(&folder.path().join("copy"), &unrenewed), (&file, &renewed)] {
        let began = std::time::Instant::now();
        let after = put(path, bytes);
        assert!(remaining(&after).await + began.elapsed() >= TTL);
        after.close().await;
    }
    let after = put(&file, &renewed);
    let opened = std::time::Instant::now();
    // It is not put off by further processes, of which one is killed.
    tokio::time::sleep(pause).await;
    let again = killed();
    after.close().await;
    for bytes in [killed(), again] {
        let after = put(&file, &bytes);
        assert!(opened.elapsed() + remaining(&after).await <= TTL);
        after.close().await;
    }
}

// G83
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
async fn every_hold_of_a_claim_is_kept_over_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let before = open(&file);
    let reentrant = |lock, ttl| Acquire {
        reentrant: true,
        ..clients::ask(lock, ttl, Duration::ZERO)
    };
    let lease = take(&before, reentrant("a", TTL)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let more = take(&before, reentrant("a", TTL / 3)).await;
    // From now on the client relies on the whole TTL again.
    let renewed = std::time::Instant::now();
    before.renew(&lease.key, None).await.expect("it is renewed");
    take(&before, reentrant("b", TTL)).await;
    let last = take(&before, reentrant("b", TTL)).await;
    before.close().await;
    let after = open(&file);
    after.renew(&last.key, None).await.expect("it is still held");
    let holder = after.check(&name("a"), lease.key.token).await;
    let holder = holder.expect("the store answers").expect("it is held");
    assert!(holder.remaining + renewed.elapsed() >= TTL, "{holder:?}");
    assert_eq!(holder.holds, 2);
    after.release(&lease.key).await.expect("it is released");
    after.release(&more.key).await.expect("it is released");
    take(&after, ask("a")).await;
}

// G35
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
async fn holders_of_different_limits_are_counted_after_a_restart_as_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let of = |permits, limit| Acquire {
        mode: Mode::semaphore(permits, limit).expect("a good semaphore"),
        ..ask("a")
    };
    let before = open(&file);
    take(&before, of(1, 5)).await;
    let small = take(&before, of(1, 3)).await;
    take(&before, of(1, 5)).await;
    before.close().await;
    let after = open(&file);
    assert!(matches!(after.acquire(of(1, 5)).await, Err(Error::LockHeld { .. })));
    after.release(&small.key).await.expect("it is released");
    take(&after, of(3, 5)).await;
    assert!(matches!(after.acquire(of(1, 9)).await, Err(Error::LockHeld { .. })));
}

// G83
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

// G81
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

#[tokio::test]
async fn past_their_limit_the_oldest_ends_are_forgotten_also_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let open = || remembering(10, &file);
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

// G36c
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

// G170
#[tokio::test]
async fn a_file_of_another_format_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let locks = open(&file);
    let lease = take(&locks, ask("held")).await;
    locks.close().await;
    let set_format = |format: u64| {
        let database = Database::open(&file).expect("a database");
        let change = database.begin_write().expect("a transaction");
        let mut meta = change
            .open_table(TableDefinition::<&str, u64>::new("meta"))
            .expect("a table");
        let before = meta.insert("format", format).expect("a number");
        let before = before.map(|before| before.value());
        drop(meta);
        change.commit().expect("committed");
        before
    };
    let today = set_format(0).expect("its format");
    for other in [1, today + 1] {
        set_format(other);
        let refused = Store::open(&file);
        assert!(
            matches!(refused, Err(OpenError::Format { found, .. }) if found == other),
            "{refused:?}"
        );
    }
    assert_eq!(set_format(today), Some(today + 1), "it was left alone");
    open(&file).renew(&lease.key, None).await.expect("it is still held");
}
