//! The store's file lost, replaced, taken twice, damaged, or from a later release.

use std::path::Path;
use std::time::Duration;

use redb::{Database, ReadableTable, TableDefinition};

use crate::client::{Caller, until};
use crate::server::{Home, Server};

const TTL: Duration = Duration::from_secs(60);
/// The table of the file that says its format.
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// A home whose server has run and granted a token.
async fn used() -> (Home, u64) {
    let home = Home::new();
    let server = home.start();
    let held = Caller::of(&server).take("lock", TTL).await;
    assert_eq!(server.stop(), Some(0));
    (home, held.token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tokens_rise_after_the_file_was_lost_while_no_server_ran() {
    let (home, before) = used().await;
    std::fs::remove_file(home.file()).expect("the file is there");
    let after = Caller::of(&home.start()).take("lock", TTL).await;
    assert!(after.token > before, "{} after {before}", after.token);
}

/// What a server without its file does until it is started again.
async fn grants_nothing(server: &mut Server) {
    let caller = Caller::of(server);
    for _ in 0..50 {
        assert_eq!(caller.refusal("other").await, "BACKEND_UNAVAILABLE");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(server.lives());
    assert!(!caller.serves().await);
    let info = caller.info().await;
    assert_eq!(info.health().as_str_name(), "NAMESPACE_HEALTH_AWAY");
    assert!(
        info.reason.contains("was removed or replaced while it was open"),
        "{info:?}"
    );
    until("the log says why", async || {
        server.log().has(&info.reason).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_deleted_under_the_server_ends_its_grants_until_a_restart() {
    let home = Home::new();
    let mut server = home.start();
    let before = Caller::of(&server).take("lock", TTL).await;
    std::fs::remove_file(home.file()).expect("the file is there");
    grants_nothing(&mut server).await;
    assert!(!home.file().exists(), "another file was made in its place");
    assert_eq!(server.stop(), Some(0));
    let after = Caller::of(&home.start()).take("lock", TTL).await;
    assert!(after.token > before.token, "{after:?} after {before:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_replaced_under_the_server_ends_its_grants_until_a_restart() {
    let home = Home::new();
    let mut server = home.start();
    let before = Caller::of(&server).take("lock", TTL).await;
    let copy = home.data().join("copy");
    std::fs::copy(home.file(), &copy).expect("a copy");
    std::fs::rename(&copy, home.file()).expect("it is replaced");
    grants_nothing(&mut server).await;
    server.kill();
    let server = home.start();
    let caller = Caller::of(&server);
    caller.renew(&before, None).await.expect("the copy has the lease");
    let after = caller.take("other", TTL).await;
    assert!(after.token > before.token, "{after:?} after {before:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_second_server_on_the_same_file_is_refused_and_harms_nobody() {
    let home = Home::new();
    let server = home.start();
    let caller = Caller::of(&server);
    let held = caller.take("lock", TTL).await;
    let refused = home.refused();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.said.contains("fencepost.redb\" is in use by another process"),
        "{refused:?}"
    );
    caller.renew(&held, None).await.expect("the first one serves on");
}

/// Checks that no server starts on the file as it is, that it says so with these words, and that the
/// file stays as it is, for a backup is worth more than a fresh start.
fn is_refused(home: &Home, words: &str) {
    let before = std::fs::read(home.file()).expect("the file is there");
    says_no(home, words);
    let after = std::fs::read(home.file()).expect("the file is there");
    assert!(before == after, "the file was changed");
}

/// Checks that no server starts on the file, and that it says so with these words.
fn says_no(home: &Home, words: &str) {
    let refused = home.refused();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let said = refused.said.lines().last().unwrap_or_default();
    assert!(
        said.starts_with("error: namespace default: the embedded store at "),
        "{said}"
    );
    assert!(said.contains("fencepost.redb") && said.contains(words), "{said}");
}

fn damage(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(file).expect("the file is there");
    change(&mut bytes);
    std::fs::write(file, bytes).expect("it is written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_of_something_else_is_refused() {
    let (home, _) = used().await;
    std::fs::write(home.file(), "not a database\n".repeat(1000)).expect("it is written");
    is_refused(&home, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_cut_short_is_refused() {
    for part in [2, 3, 50] {
        let (home, _) = used().await;
        damage(&home.file(), |bytes| bytes.truncate(bytes.len() / part));
        is_refused(&home, "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_damaged_file_is_refused() {
    let (home, _) = used().await;
    damage(&home.file(), |bytes| {
        // All but the header: what it points to is gone.
        bytes[4096..].fill(0xa5);
    });
    is_refused(&home, "is damaged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_of_a_later_format_is_refused() {
    let (home, _) = used().await;
    let database = Database::open(home.file()).expect("the file is closed");
    let transaction = database.begin_write().expect("it can be written");
    {
        let mut meta = transaction.open_table(META).expect("its table");
        let format = meta.get("format").expect("its format").expect("it has one").value();
        meta.insert("format", format + 1).expect("a later one");
    }
    transaction.commit().expect("it is written");
    drop(database);
    // Its pages may be moved by being looked at; what it holds stays.
    says_no(&home, "has format 2, and this release reads format 1");
    says_no(&home, "has format 2, and this release reads format 1");
}
