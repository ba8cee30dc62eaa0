//! What a commit does in each kind of database: compare-and-set with its guards, and parts with the root.

use std::time::Duration;

use fencepost::backend::record::store::{Commit, FoundRoot, LockTime, StoreTime, Version};

use crate::harness::{Store, credentials, deadlocks, records, settings, started};
use crate::record_contract;
use crate::record_steps::{applied, first, name, next, random, refused, version_of};
use crate::servers::available;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_replaces_the_version_that_it_expects_and_no_other() {
    common::skip_unless!(available());
    let server = started();
    let records = records(settings(&server)).await;
    let one = first("a");
    let begun = applied(records.commit(one.clone()).await);
    assert_eq!(
        begun.clock.0, begun.time.0,
        "the lock's clock begins at the store's time"
    );
    // The same commit again finds itself, and a second first write finds a root.
    for commit in [one.clone(), first("a")] {
        let found = refused(records.commit(commit).await);
        let FoundRoot::Root(root) = found.root else {
            panic!("there is a root: {found:?}");
        };
        assert_eq!(
            (root.version, root.body.as_slice(), root.stamp),
            (one.version, &b"first"[..], begun)
        );
    }
    let two = next("a", one.version);
    let stamp = applied(records.commit(two.clone()).await);
    assert!(stamp.clock >= begun.clock && stamp.time >= begun.time, "{stamp:?}");
    let stale = next("a", one.version);
    let found = refused(records.commit(stale).await);
    assert!(found.now.clock >= stamp.clock, "{found:?}");
    assert_eq!(version_of(&*records, "a").await, Some(two.version));
    // A root that is gone is replaced by nothing.
    let gone = refused(records.commit(next("b", one.version)).await);
    assert_eq!(gone.root, FoundRoot::Absent);
    assert_eq!(version_of(&*records, "b").await, None);
    let known = records.read(&name("a"), Some(two.version)).await.expect("it reads");
    assert_eq!(known.root, FoundRoot::Known);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_refused_outside_its_bounds_of_time() {
    common::skip_unless!(available());
    let server = started();
    let records = records(settings(&server)).await;
    let now = records.read(&name("a"), None).await.expect("it reads").now;
    let (before, after) = (LockTime(now.clock.0 - 1), LockTime(now.clock.0 + 60_000_000));
    let outside = |commit: Commit| {
        let early = Commit {
            not_before: after,
            ..commit.clone()
        };
        let late = Commit {
            not_after: before,
            ..commit.clone()
        };
        let latest = Commit {
            latest: StoreTime(now.time.0 - 1),
            ..commit
        };
        [early, late, latest]
    };
    for commit in outside(first("a")) {
        assert_eq!(refused(records.commit(commit).await).root, FoundRoot::Absent);
    }
    let one = first("a");
    applied(records.commit(one.clone()).await);
    for commit in outside(next("a", one.version)) {
        refused(records.commit(commit).await);
    }
    assert_eq!(version_of(&*records, "a").await, Some(one.version));
    let within = Commit {
        not_before: before,
        not_after: after,
        latest: StoreTime(after.0),
        ..next("a", one.version)
    };
    applied(records.commit(within).await);
}

// G80
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_clock_goes_back_a_locks_clock_stands_still() {
    common::skip_unless!(available());
    let server = started();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loser_reserves_the_lock_for_itself() {
    common::skip_unless!(available());
    let server = started();
    let records = records(settings(&server)).await;
    let one = first("a");
    applied(records.commit(one.clone()).await);
    let loser = Commit {
        reserve: Some(Duration::from_secs(600)),
        ..next("a", Version(random()))
    };
    let found = refused(records.commit(loser.clone()).await);
    let (server_id, until) = found.reserved.expect("it is reserved");
    assert_eq!(server_id, loser.server);
    assert!(until.0 > found.now.clock.0 + 500_000_000, "{found:?}");
    let other = Commit {
        reserve: Some(Duration::from_secs(600)),
        ..next("a", one.version)
    };
    let found = refused(records.commit(other.clone()).await);
    assert_eq!(
        found.reserved.map(|(id, _)| id),
        Some(loser.server),
        "it is not reserved twice"
    );
    // While the database's clock is behind, a reservation would last as long as that.
    server.sql("UPDATE fencepost_lock SET time = time + 3600000000");
    assert_eq!(records.read(&name("a"), None).await.expect("it reads").reserved, None);
    server.sql("UPDATE fencepost_lock SET time = time - 3600000000");
    assert_eq!(version_of(&*records, "a").await, Some(one.version));
    let winner = Commit {
        server: loser.server,
        ..next("a", one.version)
    };
    applied(records.commit(winner.clone()).await);
    // The server that asked meanwhile has the next one.
    let found = records.read(&name("a"), None).await.expect("it reads");
    assert_eq!(found.reserved.map(|(id, _)| id), Some(other.server));
    let next_winner = Commit {
        server: other.server,
        ..next("a", winner.version)
    };
    applied(records.commit(next_winner.clone()).await);
    assert_eq!(records.read(&name("a"), None).await.expect("it reads").reserved, None);
    applied(records.commit(next("a", next_winner.version)).await);
    // Nor does it refuse anybody then.
    let one = first("b");
    applied(records.commit(one.clone()).await);
    let loser = Commit {
        lock: name("b"),
        ..loser
    };
    refused(records.commit(loser).await);
    server.sql("UPDATE fencepost_lock SET time = time + 3600000000");
    applied(records.commit(next("b", one.version)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_are_written_with_their_root_or_not_at_all() {
    common::skip_unless!(available());
    let server = started();
    let records = records(settings(&server)).await;
    let one = Commit {
        put: (0..5).map(|part| (part, vec![part as u8; 3])).collect(),
        ..first("a")
    };
    applied(records.commit(one.clone()).await);
    let numbers = async |parts| -> Vec<u64> {
        let parts = records.parts(&name("a"), parts).await.expect("it reads");
        parts.into_iter().map(|(number, _)| number).collect()
    };
    assert_eq!(numbers(0..u64::MAX).await, [0, 1, 2, 3, 4]);
    assert_eq!(
        records.parts(&name("a"), 3..4).await.expect("it reads"),
        [(3, vec![3; 3])]
    );
    let lost = Commit {
        put: vec![(9, b"lost".to_vec())],
        delete: 0..5,
        ..next("a", Version(random()))
    };
    // One of a batch is refused beside one that is not.
    let other = Commit {
        put: vec![(1, b"other".to_vec())],
        ..first("b")
    };
    let (lost, other) = tokio::join!(records.commit(lost), records.commit(other));
    refused(lost);
    applied(other);
    assert_eq!(numbers(0..u64::MAX).await, [0, 1, 2, 3, 4]);
    let two = Commit {
        put: vec![(7, b"seven".to_vec())],
        delete: 1..4,
        ..next("a", one.version)
    };
    applied(records.commit(two).await);
    assert_eq!(numbers(0..u64::MAX).await, [0, 4, 7]);
    assert_eq!(records.parts(&name("b"), 0..9).await.expect("it reads").len(), 1);
}

// G71, G134
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_roots_are_listed_and_removed_with_their_parts_and_raise_the_floor() {
    common::skip_unless!(available());
    let server = started();
    let records = records(settings(&server)).await;
    let old = Commit {
        put: vec![(1, b"part".to_vec())],
        ..first("old/a")
    };
    let changed = first("old/b");
    for commit in [&old, &changed] {
        applied(records.commit(commit.clone()).await);
    }
    // By the clock of the lock they are as young as before: no older copy of them is there.
    server.sql("UPDATE fencepost_lock SET time = time - 3600000000, ahead = ahead + 3600000000");
    let young = first("young");
    applied(records.commit(young.clone()).await);
    let idle = records.idle(Duration::from_secs(60), None, 10).await.expect("it lists");
    let names: Vec<_> = idle.iter().map(|(name, root)| (name.as_str(), root.version)).collect();
    assert_eq!(names, [("old/a", old.version), ("old/b", changed.version)]);
    assert_eq!(
        records
            .idle(Duration::from_secs(60), Some("old/a"), 10)
            .await
            .expect("it lists")
            .len(),
        1
    );
    assert_eq!(
        records
            .idle(Duration::from_secs(60), None, 1)
            .await
            .expect("it lists")
            .len(),
        1
    );
    let listed = records.list("old/", None, 10).await.expect("it lists");
    assert_eq!(listed.len(), 2);
    assert!(
        listed
            .iter()
            .all(|(_, root, now)| now.time.0 >= root.stamp.time.0 + 3_600_000_000)
    );
    assert_eq!(
        records.list("", Some("old/b"), 10).await.expect("it lists")[0].0,
        name("young")
    );
    // One was used since it was listed.
    let used = next("old/b", changed.version);
    applied(records.commit(used.clone()).await);
    let roots: Vec<_> = idle.into_iter().map(|(name, root)| (name, root.version)).collect();
    records.remove(&roots, 1_000).await.expect("it removes");
    assert_eq!(version_of(&*records, "old/a").await, None);
    assert_eq!(version_of(&*records, "old/b").await, Some(used.version));
    assert_eq!(records.parts(&name("old/a"), 0..9).await.expect("it reads"), []);
    let unaware = Commit {
        floor: 999,
        ..first("old/a")
    };
    let found = refused(records.commit(unaware.clone()).await);
    assert_eq!((found.root, found.floor), (FoundRoot::Absent, 1_000));
    applied(
        records
            .commit(Commit {
                floor: 1_000,
                ..unaware
            })
            .await,
    );
    records.remove(&[], 10).await.expect("it raises nothing");
    assert_eq!(records.read(&name("x"), None).await.expect("it reads").floor, 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_namespace_are_of_no_other() {
    common::skip_unless!(available());
    let server = started();
    let store = Store::open(settings(&server), credentials()).expect("random numbers");
    record_contract::names_stay_in_their_namespace(|namespace| store.records(&namespace)).await;
}

// G1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_commits_from_one_version_one_is_applied_and_batches_of_two_servers_never_deadlock() {
    common::skip_unless!(available());
    let server = started();
    let servers = [records(settings(&server)).await, records(settings(&server)).await];
    record_contract::of_commits_from_one_version_one_is_applied(servers).await;
    assert_eq!(deadlocks(&server), 0);
}
