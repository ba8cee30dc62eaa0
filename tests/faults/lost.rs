//! A file that is deleted, replaced, shared, damaged or of a later release.

use std::path::Path;

use fencepost::api::proto::Lease;
use redb::{Database, ReadableDatabase, TableDefinition};
use tonic::Code::{Aborted, Unavailable};

use crate::client::{ask, refused};
use crate::server::{Home, Server};

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const LATER_FORMAT: u64 = 1_000;
/// The first page of a file, in bytes: the database's header.
const PAGE: usize = 4096;
/// How often a server is asked that must not answer; it takes longer than one look at its file.
const ASKED: usize = 20;

/// A home whose lock `a` was taken, and its server.
async fn taken() -> (Home, Server, Lease) {
    let home = Home::with_file();
    let server = home.start().await;
    let lease = server.client().acquire(ask("a", "before")).await;
    (home, server, lease)
}

/// Asserts that a server whose file is gone answers no call of a lease, says why, and lives on.
async fn serves_nothing(server: &mut Server, lease: &Lease) {
    let client = server.client();
    for _ in 0..ASKED {
        let grant = client.try_acquire(ask("b", "during")).await;
        refused(grant, Unavailable, "BACKEND_UNAVAILABLE");
        refused(client.try_renew(lease, None).await, Unavailable, "BACKEND_UNAVAILABLE");
        refused(client.try_release(lease).await, Unavailable, "BACKEND_UNAVAILABLE");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(client.is_unavailable("removed or replaced").await);
    assert!(server.lives());
}

/// Asserts that the server refuses to start, with these words, and leaves the file as it was.
fn is_refused(home: &Home, words: &str) {
    let before = std::fs::read(home.file()).expect("a file");
    let (code, said) = home.refusal();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(words), "{said}");
    let after = std::fs::read(home.file()).expect("a file");
    assert!(before == after, "the file was changed: {said}");
}

// G88a, G109
#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_after_a_file_was_deleted_while_stopped() {
    let (home, server, before) = taken().await;
    server.kill();
    std::fs::remove_file(home.file()).expect("a file");
    let server = home.start().await;
    let after = server.client().acquire(ask("a", "after")).await;
    assert!(after.fencing_token > before.fencing_token, "{after:?} after {before:?}");
}

// G86
#[tokio::test(flavor = "multi_thread")]
async fn a_file_deleted_while_running_stops_all_grants_until_a_restart() {
    let (home, mut server, before) = taken().await;
    std::fs::remove_file(home.file()).expect("a file");
    serves_nothing(&mut server, &before).await;
    assert!(!home.file().exists(), "another file was made in its place");
    server.kill();
    let server = home.start().await;
    let after = server.client().acquire(ask("a", "after")).await;
    assert!(after.fencing_token > before.fencing_token, "{after:?} after {before:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_replaced_while_running_stops_all_grants_until_a_restart() {
    let (home, mut server, lease) = taken().await;
    let copy = home.file().with_extension("copy");
    std::fs::copy(home.file(), &copy).expect("a copy");
    std::fs::rename(&copy, home.file()).expect("it is replaced");
    let put_there = std::fs::read(home.file()).expect("a file");
    serves_nothing(&mut server, &lease).await;
    assert!(
        put_there == std::fs::read(home.file()).expect("a file"),
        "it was written on"
    );
    server.kill();
    let server = home.start().await;
    refused(
        server.client().try_acquire(ask("a", "after")).await,
        Aborted,
        "LOCK_HELD",
    );
    server.client().release(&lease).await;
}

// G82
#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_the_same_file_is_refused() {
    let (home, server, lease) = taken().await;
    let (code, said) = Home::with_file_at(home.file()).refusal();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("in use by another process"), "{said}");
    server
        .client()
        .try_renew(&lease, None)
        .await
        .expect("the first one serves on");
}

#[test]
fn a_file_of_something_else_is_refused_and_left_alone() {
    let home = Home::with_file();
    write(home.file(), &b"not a database\n".repeat(1_000));
    is_refused(&home, home.file().to_str().expect("UTF-8"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_refused_and_left_alone() {
    let (home, server, _) = taken().await;
    server.kill();
    let mut bytes = std::fs::read(home.file()).expect("a file");
    bytes[..PAGE].fill(0xA5);
    write(home.file(), &bytes);
    is_refused(&home, home.file().to_str().expect("UTF-8"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_damaged_pages_is_refused_and_left_alone() {
    let (home, server, _) = taken().await;
    server.stop();
    let mut bytes = std::fs::read(home.file()).expect("a file");
    // The first page stays: what it leads to makes no sense.
    bytes[PAGE..].fill(0xA5);
    write(home.file(), &bytes);
    is_refused(&home, "is damaged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_cut_short_is_refused_each_time() {
    let (home, server, _) = taken().await;
    server.kill();
    let bytes = std::fs::read(home.file()).expect("a file");
    let rest = &bytes[..bytes.len() / 2];
    write(home.file(), rest);
    // The database may note in its first page that it was opened; what is left of the rest stays.
    for _ in 0..2 {
        let (code, said) = home.refusal();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(home.file().to_str().expect("UTF-8")), "{said}");
        let after = std::fs::read(home.file()).expect("a file");
        let changed = (PAGE..rest.len())
            .filter(|at| after.get(*at) != Some(&rest[*at]))
            .count();
        assert_eq!(changed, 0, "of {} bytes, now {}: {said}", rest.len(), after.len());
    }
}

#[test]
fn a_database_of_something_else_is_refused() {
    let home = Home::with_file();
    let other: redb::TableDefinition<&str, u64> = redb::TableDefinition::new("stamps");
    std::fs::create_dir_all(home.file().parent().expect("a folder")).expect("a folder");
    let database = redb::Database::create(home.file()).expect("a database");
    let transaction = database.begin_write().expect("a transaction");
    transaction
        .open_table(other)
        .expect("a table")
        .insert("blue", 1)
        .expect("an entry");
    transaction.commit().expect("a commit");
    drop(database);
    let (code, said) = home.refusal();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("was not written by this program"), "{said}");
}

#[test]
fn a_file_of_a_later_format_is_refused_and_left_alone() {
    let home = Home::with_file();
    write(home.file(), b"");
    std::fs::remove_file(home.file()).expect("a file");
    let database = Database::create(home.file()).expect("a database");
    let change = database.begin_write().expect("a transaction");
    change
        .open_table(META)
        .expect("a table")
        .insert("format", LATER_FORMAT)
        .expect("a number");
    change.commit().expect("committed");
    drop(database);
    let (code, said) = home.refusal();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("has format {LATER_FORMAT}")), "{said}");
    let database = Database::open(home.file()).expect("it is still a database");
    let meta = database.begin_read().expect("a transaction").open_table(META);
    let format = meta.expect("its table").get("format").expect("it is read");
    assert_eq!(format.expect("its format").value(), LATER_FORMAT);
}

fn write(file: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
    std::fs::write(file, bytes).expect("written");
}
