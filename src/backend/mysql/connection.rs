//! One connection to the primary: TLS, the login, the handshake, and then scripts of statements.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{ClientIdentity, Conn, Error, OptsBuilder, Row, SslOpts};
use tokio::sync::Mutex;

use crate::backend::login::Tls;
use crate::backend::sql::dialect::{Origin, Session, Use};
use crate::backend::sql::error::{Because, SqlError};
use crate::backend::sql::settings::{Credentials, Settings};

/// The largest packet that a server must accept, for all of a script: a root takes 1 MiB, and twice that as text.
pub const PACKET: usize = 16 * 1024 * 1024;
/// How often the system asks whether an idle server is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// What the handshake asks for. Variables that a server does not know are left out of its answer.
const VARIABLES: &str = "\
SHOW GLOBAL VARIABLES WHERE variable_name IN ('version', 'server_uuid', 'server_id', 'read_only', 'super_read_only',
    'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog', 'binlog_format',
    'max_allowed_packet')";
/// Whether SYSDATE() is the time at which it is evaluated, and not that at which the statement began.
const CLOCK: &str = "SELECT SLEEP(0.001) = 0 AND SYSDATE(6) > NOW(6)";
/// How many of the tables, if they are there, can lose what was committed.
const OTHER_ENGINES: &str = "\
SELECT count(*) FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name LIKE 'fencepost\\_%' AND engine <> 'InnoDB'";

/// What a statement of a script did.
#[derive(Debug)]
pub struct Outcome {
    /// How many rows it changed.
    pub changed: u64,
    /// The rows that it returned.
    pub rows: Vec<Row>,
}

/// A script that failed, with the number of its statements that succeeded.
struct Failure(usize, Error);

impl Failure {
    fn ends_the_connection(&self) -> bool {
        match &self.1 {
            // A shutdown, a packet that is too large, a KILL, and a timeout.
            Error::Server(problem) => [1053, 1153, 1927, 4031].contains(&problem.code),
            _ => true,
        }
    }
}

/// A connection that has passed the handshake.
pub struct Connection {
    conn: Mutex<Conn>,
    /// Whether an answer is outstanding, perhaps for ever.
    is_broken: AtomicBool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl From<Failure> for SqlError {
    /// That of a statement before the COMMIT.
    fn from(Failure(_, error): Failure) -> Self {
        let Error::Server(problem) = error else {
            return Self::Failed(error.to_string());
        };
        let because = match problem.code {
            1020 | 1213 => Because::OfOthers,
            1205 => Because::Locked,
            1290 | 1792 | 1836 => Because::ReadOnly,
            1146 => Because::NoTable,
            _ => Because::Other,
        };
        Self::RolledBack {
            because,
            reason: problem.to_string(),
        }
    }
}

impl Connection {
    /// Connects to a server, and checks that the store may be used there.
    ///
    /// # Errors
    /// [`SqlError`] if it cannot be reached, or must not be used.
    pub async fn open(
        server: &str,
        settings: &Settings,
        credentials: &Credentials,
        usage: Use,
    ) -> Result<Session<Self>, SqlError> {
        let conn = Conn::new(options(server, settings, credentials)).await;
        let conn = conn.map_err(|error| SqlError::Failed(error.to_string()))?;
        let process = conn.id().into();
        let this = Self {
            conn: Mutex::new(conn),
            is_broken: AtomicBool::new(false),
        };
        let wait = (settings.timeout.as_secs() / 3).max(1);
        let session = format!(
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1,
                 completion_type = 0, sql_select_limit = 18446744073709551615, innodb_lock_wait_timeout = {wait},
                 lock_wait_timeout = {wait}, wait_timeout = 31536000"
        );
        let isolation = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned();
        // The settings of the session come first: a limit of rows is one of SHOW, too.
        let script = [
            session,
            isolation,
            VARIABLES.to_owned(),
            CLOCK.into(),
            OTHER_ENGINES.into(),
        ];
        let said = this.run(&script).await?;
        let variables = said[2].rows.iter();
        let variables: HashMap<String, String> = variables
            .map(|row| Ok((get(row, 0)?, get(row, 1)?)))
            .collect::<Result<_, SqlError>>()?;
        let of = |at: usize| -> Result<i64, SqlError> { get(said[at].rows.first().ok_or_else(missing)?, 0) };
        if let Some(problem) = problem(&variables, of(3)? == 1, of(4)? == 0) {
            return Err(SqlError::Failed(problem.into()));
        }
        Ok(Session {
            connection: this,
            usage,
            process,
            origin: Origin {
                system: system(&variables),
                ..Origin::default()
            },
        })
    }

    /// Whether a script was not answered.
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Runs statements in one round trip, each of them in a transaction of its own.
    ///
    /// # Errors
    /// [`SqlError::RolledBack`] if the first one that failed had no effect; after others that is unknown.
    ///
    /// # Cancellation safety
    /// The statements run on, and the connection is broken.
    pub async fn run(&self, script: &[String]) -> Result<Vec<Outcome>, SqlError> {
        Ok(self.send(script).await?)
    }

    /// Runs statements as one transaction, in one round trip.
    ///
    /// # Errors
    /// [`SqlError::RolledBack`] if it had no effect; after others that is unknown.
    ///
    /// # Cancellation safety
    /// The statements run on, and the connection is broken.
    pub async fn transaction(&self, mut script: Vec<String>) -> Result<Vec<Outcome>, SqlError> {
        script.insert(0, "BEGIN".into());
        script.push("COMMIT".into());
        let Failure(done, error) = match self.send(&script).await {
            Ok(mut outcomes) => {
                outcomes.remove(0);
                return Ok(outcomes);
            }
            Err(failure) => failure,
        };
        // The error may be of the statement behind the last one whose rows were read.
        if done + 2 >= script.len() && !matches!(&error, Error::Server(problem) if problem.code == 1213) {
            self.is_broken.store(true, Ordering::Release);
            return Err(SqlError::Failed(error.to_string()));
        }
        // A wait for a lock that was too long takes back only its statement.
        if matches!(error, Error::Server(_)) {
            let rolled_back = self.send(&["ROLLBACK".into()]).await;
            self.is_broken.store(rolled_back.is_err(), Ordering::Release);
        }
        Err(Failure(done, error).into())
    }

    async fn send(&self, script: &[String]) -> Result<Vec<Outcome>, Failure> {
        let mut conn = self.conn.lock().await;
        self.is_broken.store(true, Ordering::Release);
        let sent = send(&mut conn, script).await;
        let is_broken = sent.as_ref().is_err_and(Failure::ends_the_connection);
        self.is_broken.store(is_broken, Ordering::Release);
        sent
    }
}

async fn send(conn: &mut Conn, script: &[String]) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes = Vec::with_capacity(script.len());
    let mut results = conn
        .query_iter(script.join(";\n"))
        .await
        .map_err(|error| Failure(0, error))?;
    while outcomes.len() < script.len() {
        let changed = results.affected_rows();
        let rows = results
            .collect()
            .await
            .map_err(|error| Failure(outcomes.len(), error))?;
        outcomes.push(Outcome { changed, rows });
    }
    Ok(outcomes)
}

/// What is wrong with a server.
fn problem(variables: &HashMap<String, String>, has_clock: bool, has_engine: bool) -> Option<&'static str> {
    let of = |name: &str| variables.get(name).map_or("", String::as_str);
    let is_on = |name: &str| !["", "OFF", "0"].contains(&of(name));
    let version = of("version");
    let mut numbers = version
        .split('.')
        .map(|number| number.parse::<u32>().unwrap_or_default());
    let number = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let oldest = if version.contains("MariaDB") { (10, 6) } else { (8, 0) };
    let problem = if number < oldest {
        "is older than MariaDB 10.6 or MySQL 8.0"
    } else if is_on("read_only") || is_on("super_read_only") {
        "is read-only"
    } else if of("innodb_flush_log_at_trx_commit") != "1" {
        "has another innodb_flush_log_at_trx_commit than 1: a crash would lose leases"
    } else if !["ON", "1", "DETECT_AND_RECOVER", "fast"].contains(&of("innodb_doublewrite")) {
        "has innodb_doublewrite OFF or DETECT_ONLY: a crash could damage leases"
    } else if is_on("log_bin") && of("sync_binlog") != "1" {
        "has another sync_binlog than 1: a crash would lose leases"
    } else if is_on("log_bin") && of("binlog_format") == "STATEMENT" {
        "has binlog_format = STATEMENT, which does not replicate the clock"
    } else if of("max_allowed_packet").parse::<usize>().unwrap_or_default() < PACKET {
        "has a max_allowed_packet below 16 MiB: a long queue would not fit"
    } else if !has_clock {
        "has sysdate-is-now: a statement that waits would use a time that is over"
    } else if !has_engine {
        "has tables of another engine than InnoDB"
    } else {
        return None;
    };
    Some(problem)
}

/// Which server it is: MySQL has a UUID, and replicas of MariaDB have different numbers.
fn system(variables: &HashMap<String, String>) -> i64 {
    let of = |name: &str| variables.get(name).map_or("", String::as_str);
    let uuid = u128::from_str_radix(&of("server_uuid").replace('-', ""), 16);
    match uuid {
        Ok(uuid) => ((uuid >> 64) ^ uuid) as i64,
        Err(_) => of("server_id").parse().unwrap_or_default(),
    }
}

fn options(server: &str, settings: &Settings, credentials: &Credentials) -> OptsBuilder {
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let (user, password) = match credentials.login.clone() {
        Some(login) => (Some(login.user), Some(login.password)),
        None => (None, None),
    };
    OptsBuilder::default()
        .ip_or_hostname(host.trim_start_matches('[').trim_end_matches(']'))
        .tcp_port(port.parse().unwrap_or(3306))
        .db_name(Some(&settings.database))
        .user(user)
        .pass(password)
        .ssl_opts(credentials.tls.clone().map(tls))
        .tcp_keepalive(Some(KEEPALIVE))
        .prefer_socket(false)
        // With these it asks the server for nothing before the handshake.
        .max_allowed_packet(Some(1 << 30))
        .wait_timeout(Some(28_800))
}

fn tls(tls: Tls) -> SslOpts {
    let identity = tls
        .identity
        .map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
    SslOpts::default()
        .with_disable_built_in_roots(true)
        .with_root_certs(vec![tls.authority.into()])
        .with_client_identity(identity)
        .with_danger_tls_hostname_override(tls.server_name)
}

/// A column of a row.
///
/// # Errors
/// [`SqlError`] if it has another type.
pub fn get<T: mysql_async::prelude::FromValue>(row: &Row, column: usize) -> Result<T, SqlError> {
    row.get_opt(column).and_then(Result::ok).ok_or_else(missing)
}

fn missing() -> SqlError {
    SqlError::Failed("an answer lacks a row or a column".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        let is_old = |version: &str| {
            let variables = HashMap::from([("version".to_owned(), version.to_owned())]);
            problem(&variables, true, true) == Some("is older than MariaDB 10.6 or MySQL 8.0")
        };
        for old in ["10.5.27-MariaDB", "5.7.44-log", ""] {
            assert!(is_old(old), "{old}");
        }
        for new in [
            "10.6.0-MariaDB",
            "10.11.19-MariaDB-0+deb12u1",
            "11.4.2-MariaDB",
            "8.0.11",
            "9.1.0",
        ] {
            assert!(!is_old(new), "{new}");
        }
    }

    #[test]
    fn a_doublewrite_that_only_detects_is_refused() {
        for (value, is_refused) in [
            ("DETECT_ONLY", true),
            ("OFF", true),
            ("DETECT_AND_RECOVER", false),
            ("ON", false),
        ] {
            let variables = [
                ("version", "8.0.30"),
                ("innodb_flush_log_at_trx_commit", "1"),
                ("innodb_doublewrite", value),
                ("max_allowed_packet", "16777216"),
            ];
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let problem = problem(&variables.into(), true, true);
            assert_eq!(problem.is_some(), is_refused, "{value}: {problem:?}");
        }
    }

    #[test]
    fn servers_are_told_apart_by_their_uuid_or_number() {
        let of = |name: &str, value: &str| system(&HashMap::from([(name.to_owned(), value.to_owned())]));
        let uuids = [
            "3e11fa47-71ca-11e1-9e33-c80aa9429562",
            "3e11fa47-71ca-11e1-9e33-c80aa9429563",
        ];
        assert_ne!(of("server_uuid", uuids[0]), of("server_uuid", uuids[1]));
        assert_ne!(of("server_id", "1"), of("server_id", "2"));
    }
}
