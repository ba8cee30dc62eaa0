//! Records over a database.

use std::sync::Arc;
use std::time::Duration;

pub use fencepost::backend::mysql::Store;
use fencepost::backend::mysql::settings::{Credentials, Login};
pub use fencepost::backend::mysql::settings::{LastUsed, Replication, Settings};
use fencepost::backend::record::store::RecordStore;
use fencepost::name::Namespace;
use mysql_async::prelude::Queryable;

use crate::record_steps::serves;
pub use crate::servers::MariaDb as Server;
use crate::servers::{MariaDb, NAME};
use crate::small_disk::SmallDisk;

/// How many sessions a server has: two for batches, and one that looks.
pub const MOST_SESSIONS: usize = 3;
/// Whether a server that is read-only may have been replaced.
pub const READ_ONLY_IS_OLD: bool = true;
/// How late the end of a lease of another server is noticed at most. The waiter hears of it by a poll of at most 250 ms; a
/// watch waits 500 ms, looked at each 250 ms, for changes of other servers before it reads the state.
pub const NOTICED: Duration = Duration::from_millis(1_100);
/// The body "held" in the text of a statement.
pub const HELD: &[u8] = b"x'68656c64'";
/// Makes the root of the lock "new".
pub const INSERT_NEW: &str = "INSERT INTO fencepost_lock (id, version, replaced, time, ahead, body)
    VALUES (x'6661756c7473006e6577', 1, 0, 0, 0, '')";

/// How many years ahead the clock of a database may be that grants, and then back: its time ends with the year 9999.
pub const FAR_YEARS: [i64; 3] = [300, 7_000, 0];

/// A server, with what is the default since MariaDB 11.6.2.
pub fn started() -> MariaDb {
    MariaDb::started(&["innodb-snapshot-isolation=ON"])
}

/// The column of `fencepost_store` that numbers a server.
pub const NUMBER: &str = "server";
/// What a server says of a full disk.
pub const DISK_IS_FULL: &str = "is full";

/// A server on a disk that a test fills, without a binary log, which would wait for space.
pub fn on_small_disk() -> Option<(SmallDisk, MariaDb, ())> {
    let disk = SmallDisk::mount("192m")?;
    let server = MariaDb::started_in(disk.path(), &[]);
    Some((disk, server, ()))
}

/// Its log tells of no conflict.
pub fn assert_no_conflict(_: &MariaDb) {}

/// A server with a binary log.
pub fn durable() -> MariaDb {
    crate::promotion::started(1)
}

/// Changes whether a server is read-only.
pub fn set_read_only(server: &MariaDb, is_so: bool) {
    server.sql(&format!("SET GLOBAL read_only = {is_so}"));
}

/// How many deadlocks there were.
pub fn deadlocks(server: &MariaDb) -> usize {
    let status = server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    let count = status.strip_prefix("Innodb_deadlocks\t").expect("the count");
    count.parse().expect("a number")
}

/// How many sessions of the service there are.
pub fn sessions(server: &MariaDb) -> usize {
    let count = format!("SELECT count(*) FROM information_schema.processlist WHERE user = '{NAME}'");
    server.sql(&count).parse().expect("a number")
}

/// What [`refuse_sessions`] has the database say.
pub const REFUSED: &str = "account is locked";

/// Lets the service keep its sessions, and have no other.
pub fn refuse_sessions(server: &MariaDb) {
    server.sql(&format!("ALTER USER {NAME}@'127.0.0.1' ACCOUNT LOCK"));
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
pub fn settings(server: &MariaDb) -> Settings {
    settings_of(vec![server.address()])
}

/// The settings for servers.
pub fn settings_of(servers: Vec<String>) -> Settings {
    Settings {
        timeout: Duration::from_secs(3),
        connect_timeout: Duration::from_secs(2),
        ..Settings::new(servers)
    }
}

/// Settings with which a row may stay locked while the test looks.
pub fn patient(server: &MariaDb) -> Settings {
    Settings {
        timeout: Duration::from_secs(9),
        ..settings(server)
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

/// How many statements of the service wait for a row.
pub fn waiting(server: &MariaDb) -> usize {
    let count = format!(
        "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p \
         ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.user = '{NAME}'"
    );
    server.sql(&count).parse().expect("a number")
}

/// Another session of the database.
async fn connect(server: &MariaDb) -> mysql_async::Conn {
    let options = mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.port())
        .user(Some("root"))
        .db_name(Some(NAME))
        .prefer_socket(false);
    mysql_async::Conn::new(options).await.expect("it connects")
}

/// A session that holds what these statements have locked.
pub async fn transaction(server: &MariaDb, statements: &str) -> mysql_async::Conn {
    let mut session = connect(server).await;
    // A REPEATABLE READ would lock what is between the rows, too.
    for begin in ["SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"] {
        session.query_drop(begin).await.expect("it begins");
    }
    run(&mut session, statements).await;
    session
}

/// Runs statements in a session.
pub async fn run(session: &mut mysql_async::Conn, statements: &str) {
    session.query_drop(statements).await.expect("it runs");
}

/// A session whose reads all see the database as it is now.
pub async fn snapshot(server: &MariaDb) -> mysql_async::Conn {
    let mut session = connect(server).await;
    run(&mut session, "START TRANSACTION WITH CONSISTENT SNAPSHOT").await;
    session
}

/// How many locks a session sees.
pub async fn count(session: &mut mysql_async::Conn) -> i64 {
    let count = session
        .query_first("SELECT count(*) FROM fencepost_lock WHERE id <> ''")
        .await;
    count.expect("it reads").expect("a row")
}

/// How a namespace of this database is configured.
pub fn namespace(address: &str) -> String {
    format!("backend = \"mysql\"\nmysql.servers = [\"{address}\"]")
}

/// What a statement has of this text in a body: its bytes as hexadecimal digits.
pub fn in_statement(text: &str) -> Vec<u8> {
    text.bytes()
        .flat_map(|byte| format!("{byte:02x}").into_bytes())
        .collect()
}

/// Each way in which other tables, or older rows, come into the place of those that servers use: what prepares it, and what
/// does it.
pub fn anew() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            "CREATE TABLE new_lock LIKE fencepost_lock; CREATE TABLE new_part LIKE fencepost_part;
             CREATE TABLE new_server LIKE fencepost_server; CREATE TABLE new_store LIKE fencepost_store;
             INSERT INTO new_store (one, format, floor) VALUES (1, 1, 0)",
            "RENAME TABLE fencepost_lock TO old_lock, new_lock TO fencepost_lock, fencepost_part TO old_part,
                 new_part TO fencepost_part, fencepost_server TO old_server, new_server TO fencepost_server,
                 fencepost_store TO old_store, new_store TO fencepost_store;
             DROP TABLE old_lock, old_part, old_server, old_store",
        ),
        (
            "CREATE TABLE new_lock LIKE fencepost_lock",
            "RENAME TABLE fencepost_lock TO old_lock, new_lock TO fencepost_lock; DROP TABLE old_lock",
        ),
        (
            "CREATE TABLE copy AS SELECT * FROM fencepost_lock",
            "BEGIN; DELETE FROM fencepost_lock; INSERT INTO fencepost_lock SELECT * FROM copy; COMMIT; DROP TABLE copy",
        ),
    ]
}
