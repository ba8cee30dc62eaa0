//! Records over a database.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::mysql::Store;
use fencepost::backend::mysql::settings::{Credentials, Login, Settings};
use fencepost::backend::record::store::RecordStore;
use fencepost::name::Namespace;

use crate::record_steps::serves;
use crate::servers::{MariaDb, NAME};

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

/// A session that holds what these statements have locked.
pub async fn transaction(server: &MariaDb, statements: &str) -> mysql_async::Conn {
    use mysql_async::prelude::Queryable;
    let options = mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.port())
        .user(Some("root"))
        .db_name(Some(NAME))
        .prefer_socket(false);
    let mut session = mysql_async::Conn::new(options).await.expect("it connects");
    // A REPEATABLE READ would lock what is between the rows, too.
    for begin in ["SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"] {
        session.query_drop(begin).await.expect("it begins");
    }
    session.query_drop(statements).await.expect("it locks");
    session
}
