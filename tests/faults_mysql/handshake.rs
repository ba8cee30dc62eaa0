//! Which servers the store refuses, and how it makes its tables and logs in.

use std::os::unix::fs::PermissionsExt;

use fencepost::backend::Health;
use fencepost::backend::mysql::Store;
use fencepost::backend::mysql::settings::{Credentials, Login, Settings, Tls};
use fencepost::name::Namespace;

use crate::certificates::Certificates;
use crate::harness::{records, settings};
use crate::record_steps::{applied, first, healthy, serves};
use crate::servers::{MariaDb, NAME, available};
use crate::tables::is_refused;

// G128
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_lose_commits_is_refused() {
    common::skip_unless!(available());
    let server = MariaDb::started(&["log-bin", "sync-binlog=1", "binlog-format=ROW"]);
    serves(&*records(settings(&server)).await).await;
    for (setting, usual) in [
        (
            "innodb_flush_log_at_trx_commit = 2",
            "innodb_flush_log_at_trx_commit = 1",
        ),
        ("sync_binlog = 0", "sync_binlog = 1"),
        ("binlog_format = STATEMENT", "binlog_format = MIXED"),
        ("max_allowed_packet = 1048576", "max_allowed_packet = 16777216"),
        ("read_only = ON", "read_only = OFF"),
    ] {
        server.sql(&format!("SET GLOBAL {setting}"));
        let words = match setting {
            "read_only = ON" => "is read-only",
            setting => setting.split(" =").next().expect("a name"),
        };
        is_refused(settings(&server), words).await;
        server.sql(&format!("SET GLOBAL {usual}"));
        serves(&*records(settings(&server)).await).await;
    }
    server.sql(
        "CREATE DATABASE other; CREATE TABLE other.fencepost_lock LIKE fencepost_lock; \
         ALTER TABLE other.fencepost_lock ENGINE = MyISAM",
    );
    server.sql(&format!("GRANT ALL ON other.* TO {NAME}@'127.0.0.1'"));
    let other = Settings {
        database: "other".into(),
        ..settings(&server)
    };
    is_refused(other, "fencepost_lock in the engine MyISAM").await;
    for (start, words) in [
        ("sysdate-is-now", "sysdate-is-now"),
        ("skip-innodb-doublewrite", "innodb_doublewrite OFF"),
    ] {
        let server = MariaDb::started(&[start]);
        is_refused(settings(&server), words).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_made_by_hand_are_used_with_the_least_rights() {
    common::skip_unless!(available());
    let server = MariaDb::started(&[]);
    server.sql("CREATE DATABASE locks; CREATE USER least@'127.0.0.1'");
    server.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON locks.* TO least@'127.0.0.1'");
    let by_hand = Settings {
        create_tables: false,
        database: "locks".into(),
        ..settings(&server)
    };
    let credentials = Credentials {
        login: Some(Login {
            user: "least".into(),
            password: String::new(),
        }),
        tls: None,
    };
    let store = Store::open(by_hand, credentials).expect("random numbers");
    let least = store.records(&Namespace::new("faults").expect("a good name"));
    let says = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("docs/mysql.md"));
    healthy(&*least, says).await;
    let page = include_str!("../../docs/mysql.md");
    let tables = page
        .split("```sql\n")
        .find(|block| block.contains("CREATE TABLE"))
        .expect("the tables");
    let tables = tables.split("GRANT").next().expect("its end");
    server.sql(&format!("USE locks; {tables}"));
    serves(&*least).await;
    applied(least.commit(first("a")).await);
    // The page shows what the server would create.
    serves(&*records(settings(&server)).await).await;
    let columns = |database: &str| {
        server.sql(&format!(
            "SELECT table_name, column_name, column_type, is_nullable, column_default, column_key \
             FROM information_schema.columns WHERE table_schema = '{database}' ORDER BY 1, ordinal_position"
        ))
    };
    assert_eq!(columns("locks"), columns(NAME));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_login_uses_tls_and_passwords_that_change() {
    common::skip_unless!(available());
    let folder = tempfile::tempdir().expect("a folder");
    let files = Certificates::write(folder.path());
    for path in [folder.path(), &files.ca, &files.certificate, &files.key] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("others may read");
    }
    let path = |name: &str, file: &std::path::Path| format!("ssl-{name}={}", file.display());
    let [ca, certificate, key] = [
        path("ca", &files.ca),
        path("cert", &files.certificate),
        path("key", &files.key),
    ];
    let server = MariaDb::started(&[&ca, &certificate, &key]);
    server.sql(&format!(
        "ALTER USER {NAME}@'127.0.0.1' IDENTIFIED BY 'right' REQUIRE X509"
    ));
    let read = |file: &std::path::Path| std::fs::read(file).expect("a file");
    let credentials = |password: &str, tls: Option<Tls>| Credentials {
        login: Some(Login {
            user: NAME.into(),
            password: password.into(),
        }),
        tls,
    };
    let tls = Tls {
        authority: read(&files.ca),
        identity: Some((read(&files.certificate), read(&files.key))),
        server_name: None,
    };
    let open = |credentials| Store::open(settings(&server), credentials).expect("random numbers");
    let namespace = Namespace::new("faults").expect("a good name");
    let says = |problem: &'static str| move |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains(problem));
    let without = open(credentials("right", None)).records(&namespace);
    healthy(&*without, says("Access denied")).await;
    let elsewhere = Tls {
        server_name: Some("elsewhere".into()),
        ..tls.clone()
    };
    let elsewhere = open(credentials("right", Some(elsewhere))).records(&namespace);
    healthy(&*elsewhere, says("certificate")).await;
    let store = open(credentials("wrong", Some(tls.clone())));
    let records = store.records(&namespace);
    healthy(&*records, says("Access denied")).await;
    store.set_credentials(credentials("right", Some(tls)));
    serves(&*records).await;
    applied(records.commit(first("a")).await);
}
