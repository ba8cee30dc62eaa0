//! Files of format 1, which releases before wrote.

use std::path::Path;

use fencepost::backend::embedded::{OpenError, Store};
use fencepost::error::Error;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::{ask, named, open, remembering, take};

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
    let locks = remembering(3, &file);
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
async fn a_file_of_a_later_format_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks");
    let locks = open(&file);
    let lease = take(&locks, ask("held")).await;
    locks.close().await;
    let set_format = |format: u64| {
        let database = Database::open(&file).expect("a database");
        let change = database.begin_write().expect("a transaction");
        let mut meta = change.open_table(META).expect("a table");
        let before = meta.insert("format", format).expect("a number");
        let before = before.map(|before| before.value());
        drop(meta);
        change.commit().expect("committed");
        before
    };
    let today = set_format(3).expect("its format");
    assert!(matches!(Store::open(&file), Err(OpenError::Format { found: 3, .. })));
    assert_eq!(set_format(today), Some(3));
    open(&file).renew(&lease.key, None).await.expect("it is still held");
}
