//! Records over a database, and commits of them.

use std::sync::Arc;
use std::time::Duration;

pub use fencepost::backend::postgres::Store;
use fencepost::backend::postgres::settings::{Credentials, Login};
pub use fencepost::backend::postgres::settings::{LastUsed, Replication, Settings};
use fencepost::backend::record::store::RecordStore;
use fencepost::name::Namespace;
use tempfile::TempDir;

pub use crate::record_steps::{
    READY, applied, eventually_read, first, healthy, name, next, random, refused, serves, version_of,
};
pub use crate::servers::Postgres as Server;
use crate::servers::{NAME, Postgres, folder};
use crate::small_disk::SmallDisk;

/// How many sessions a server has: two for batches, one whose commits may be lost, and one that listens.
pub const MOST_SESSIONS: usize = 4;
/// Whether a server that is read-only may have been replaced: a standby says more.
pub const READ_ONLY_IS_OLD: bool = false;
/// How late the end of a lease of another server is noticed at most: it is told of it, before its poll of 1 s.
pub const NOTICED: Duration = Duration::from_millis(600);
/// The body "held" in a statement.
pub const HELD: &[u8] = b"held";
/// Makes the root of the lock "new".
pub const INSERT_NEW: &str =
    "INSERT INTO fencepost_lock (id, version, time, ahead, body) VALUES ('\\x6661756c7473006e6577', 1, 0, 0, '')";

/// How many years ahead the clock of a database may be that grants, and then back.
pub const FAR_YEARS: [i64; 3] = [300, 12_000, 0];

/// A server that soon finds a deadlock.
pub fn started() -> Postgres {
    Postgres::started(&[("deadlock_timeout", "50ms")])
}

/// The column of `fencepost_store` that numbers a server's history.
pub const NUMBER: &str = "timeline";
/// What a server says of a full disk.
pub const DISK_IS_FULL: &str = "No space left on device";

/// A server on a disk that a test fills, and the folder of its log, which has room as on a disk of its own.
pub fn on_small_disk() -> Option<(SmallDisk, Postgres, TempDir)> {
    let (disk, log) = (SmallDisk::mount("128m")?, folder());
    let mut server = Postgres::started_in(disk.path(), &[]);
    server.stop();
    server.move_log_to(log.path());
    server.start();
    Some((disk, server, log))
}

/// Asserts that no statement met a key that was there.
pub fn assert_no_conflict(server: &Postgres) {
    assert!(!server.log().contains("ERROR:  duplicate key"), "{}", server.log());
}

/// A server that may crash.
pub fn durable() -> Postgres {
    Postgres::started(&[])
}

/// Changes whether a server is read-only.
pub fn set_read_only(server: &Postgres, is_so: bool) {
    server.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {is_so}"));
    server.sql("SELECT pg_reload_conf()");
}

/// How many deadlocks there were.
pub fn deadlocks(server: &Postgres) -> usize {
    let count = format!("SELECT deadlocks FROM pg_stat_database WHERE datname = '{NAME}'");
    let counted: usize = server.sql(&count).parse().expect("a number");
    counted + usize::from(server.log().contains("deadlock detected"))
}

/// How many sessions of the service there are.
pub fn sessions(server: &Postgres) -> usize {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost'";
    server.sql(count).parse().expect("a number")
}

/// What [`refuse_sessions`] has the database say.
pub const REFUSED: &str = "is not permitted to log in";

/// Lets the service keep its sessions, and have no other.
pub fn refuse_sessions(server: &Postgres) {
    server.sql(&format!("ALTER ROLE {NAME} NOLOGIN"));
}

/// How many statements of the service wait for a row.
pub fn waiting(server: &Postgres) -> usize {
    let waits = "wait_event_type = 'Lock' AND application_name = 'fencepost'";
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE {waits}");
    server.sql(&count).parse().expect("a number")
}

/// A session that holds what these statements have locked.
pub async fn transaction(server: &Postgres, statements: &str) -> tokio_postgres::Client {
    let mut session = session(server).await;
    run(&mut session, &format!("BEGIN; {statements}")).await;
    session
}

/// Runs statements in a session.
pub async fn run(session: &mut tokio_postgres::Client, statements: &str) {
    session.batch_execute(statements).await.expect("it runs");
}

/// Settings with which a row may stay locked while the test looks.
pub fn patient(server: &Postgres) -> Settings {
    Settings {
        timeout: Duration::from_secs(9),
        ..settings(server)
    }
}

/// The login of the service.
pub fn credentials() -> Credentials {
    Credentials {
        login: Some(Login {
            user: NAME.into(),
            password: String::new(),
        }),
        tls: None,
    }
}

/// The settings for a server.
pub fn settings(server: &Postgres) -> Settings {
    settings_of(vec![server.address()])
}

/// The settings for servers.
pub fn settings_of(servers: Vec<String>) -> Settings {
    Settings {
        timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(1),
        ..Settings::new(servers)
    }
}

/// The records of one namespace, once the store serves.
pub async fn records(settings: Settings) -> Arc<dyn RecordStore> {
    let records = unready(settings);
    serves(&*records).await;
    records
}

/// The records of one namespace.
pub fn unready(settings: Settings) -> Arc<dyn RecordStore> {
    let store = Store::open(settings, credentials()).expect("random numbers");
    store.records(&Namespace::new("faults").expect("a good name"))
}

/// Commits until that fails for this reason; a server that is slow gives others before.
pub async fn fails_because(records: &dyn RecordStore, problem: &str) {
    let end = std::time::Instant::now() + READY;
    loop {
        match records.commit(first(problem)).await {
            Err(error) if error.to_string().contains(problem) => return,
            Err(error) if error.is_transient() => assert!(std::time::Instant::now() < end, "{error}"),
            other => panic!("it may not succeed: {other:?}"),
        }
    }
}

/// Another session of the database.
pub async fn session(server: &Postgres) -> tokio_postgres::Client {
    let mut config = tokio_postgres::Config::new();
    config.user("postgres").dbname(NAME);
    let stream = tokio::net::TcpStream::connect(server.address())
        .await
        .expect("it listens");
    let (client, connection) = config
        .connect_raw(stream, tokio_postgres::NoTls)
        .await
        .expect("it accepts");
    tokio::spawn(connection);
    client
}

/// A session whose reads all see the database as it is now.
pub async fn snapshot(server: &Postgres) -> tokio_postgres::Client {
    let mut session = session(server).await;
    run(&mut session, "BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    count(&mut session).await;
    session
}

/// How many locks a session sees.
pub async fn count(session: &mut tokio_postgres::Client) -> i64 {
    let count = session.query_one("SELECT count(*) FROM fencepost_lock", &[]).await;
    count.expect("it reads").get(0)
}

/// How a namespace of this database is configured.
pub fn namespace(address: &str) -> String {
    format!("backend = \"postgres\"\npostgres.servers = [\"{address}\"]")
}

/// What a statement has of this text in a body.
pub fn in_statement(text: &str) -> Vec<u8> {
    text.into()
}

/// Each way in which other tables come into the place of those that servers use: what prepares it, and what does it.
pub fn anew() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            "CREATE TABLE new_lock (LIKE fencepost_lock INCLUDING ALL); CREATE TABLE new_store (LIKE fencepost_store INCLUDING ALL);
             INSERT INTO new_store (format) VALUES (1);
             ALTER TABLE new_lock OWNER TO fencepost; ALTER TABLE new_store OWNER TO fencepost",
            "DROP TABLE fencepost_lock, fencepost_store; ALTER TABLE new_lock RENAME TO fencepost_lock;
             ALTER TABLE new_store RENAME TO fencepost_store",
        ),
        (
            "CREATE TABLE new_lock (LIKE fencepost_lock INCLUDING ALL); ALTER TABLE new_lock OWNER TO fencepost",
            "DROP TABLE fencepost_lock; ALTER TABLE new_lock RENAME TO fencepost_lock",
        ),
    ]
}
