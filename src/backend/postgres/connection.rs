//! One connection to the primary: TLS, the login, the handshake, and then statements.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row};
use tokio_util::sync::CancellationToken;

use super::Postgres;
use super::messages::Inboxes;
use super::statements::{Statement, Texts};
use crate::backend::sql::dialect::{Origin, Session, Use};
use crate::backend::sql::error::{Because, SqlError};
use crate::backend::sql::settings::{Credentials, Replication, Settings};
use crate::backend::tls_stream::{Duplex, encrypt};

/// What asks a server for TLS, before anything else is sent.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// The oldest version that has all that is used, as the server writes it.
const OLDEST: i64 = 140_000;

/// Of statements that may succeed at once: another one deleted a row (see [`Statement::Write`]), or waited for it too.
const PASSING: [SqlState; 3] = [
    SqlState::DIVISION_BY_ZERO,
    SqlState::T_R_DEADLOCK_DETECTED,
    SqlState::T_R_SERIALIZATION_FAILURE,
];

/// Where PostgreSQL warns that the numbers of transactions run out, which says nothing of the commit.
const NUMBERING: [&str; 2] = ["GetNewTransactionId", "GetNewMultiXactId"];

/// What a server says of itself. No statement comes before it.
const HANDSHAKE: &str = "\
SELECT current_setting('server_version_num')::bigint, pg_is_in_recovery(), pg_backend_pid(),
    current_setting('transaction_read_only') = 'on', current_setting('fsync') = 'on',
    current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names') <> '', current_setting('transaction_isolation'),
    (SELECT system_identifier FROM pg_control_system()),
    CASE WHEN pg_is_in_recovery() THEN 0
        ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END,
    (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND c.relname !~ '^fencepost_' AND n.nspname !~ '^(pg_|information_schema$)')";

fn with_cause(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

impl From<tokio_postgres::Error> for SqlError {
    fn from(error: tokio_postgres::Error) -> Self {
        // FATAL and PANIC end the connection, perhaps after the commit.
        let problem = error
            .as_db_error()
            .filter(|problem| problem.parsed_severity() == Some(Severity::Error));
        let Some(problem) = problem else {
            return Self::Failed(with_cause(&error));
        };
        let because = match problem.code() {
            code if PASSING.contains(code) => Because::OfOthers,
            &SqlState::LOCK_NOT_AVAILABLE => Because::Locked,
            &SqlState::READ_ONLY_SQL_TRANSACTION => Because::ReadOnly,
            &SqlState::UNDEFINED_TABLE => Because::NoTable,
            _ => Because::Other,
        };
        Self::RolledBack {
            because,
            reason: problem.to_string(),
        }
    }
}

impl From<io::Error> for SqlError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A row of an answer that does not have the columns that it must have is a bug.
pub type Rows = Result<Vec<Row>, SqlError>;

/// A connection that has passed the handshake.
pub struct Connection {
    client: Client,
    pub(super) texts: Texts,
    /// Absent if statements are not prepared, because a pooler runs each on another session.
    prepared: Option<Vec<OnceCell<tokio_postgres::Statement>>>,
    warnings: Arc<AtomicU64>,
    reader: AbortHandle,
    /// Cancelled when it has ended.
    pub(super) closed: CancellationToken,
    /// The process with the oldest snapshot, and its transaction, as the last check found them; and when they were first
    /// found, by the database's clock.
    pub(super) oldest: Mutex<Option<((i64, i64), i64)>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Drop for Connection {
    /// Closes the socket, also if the server does not answer. A statement is never cancelled: a commit whose wait for a
    /// standby is cancelled counts as done.
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Connection {
    /// Connects to a server, and checks that the store may be used there.
    ///
    /// # Errors
    /// [`SqlError`] if it cannot be reached, or must not be used.
    pub async fn open(
        dialect: &Postgres,
        server: &str,
        settings: &Settings,
        credentials: &Credentials,
        usage: Use,
    ) -> Result<Session<Self>, SqlError> {
        let stream = connect(server, credentials).await?;
        let config = config(settings, credentials, usage);
        let (client, connection) = config.connect_raw(stream, NoTls).await?;
        let (warnings, closed) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let counted = (settings.replication == Replication::Synchronous).then(|| Arc::clone(&warnings));
        let (end, inboxes) = (closed.clone().drop_guard(), Arc::clone(&dialect.inboxes));
        let reader = tokio::spawn(async move {
            read(connection, counted, &inboxes).await;
            drop(end);
        });
        let this = Self {
            client,
            texts: dialect.texts.clone(),
            prepared: (!settings.pooler).then(|| Statement::ALL.iter().map(|_| OnceCell::new()).collect()),
            warnings,
            reader: reader.abort_handle(),
            closed,
            oldest: Mutex::default(),
        };
        let (process, origin) = this.check(dialect, settings, usage).await?;
        Ok(Session {
            connection: this,
            usage,
            process,
            origin,
        })
    }

    /// Runs a statement.
    ///
    /// # Errors
    /// [`SqlError::RolledBack`] if it had no effect; after others that is unknown.
    ///
    /// # Cancellation safety
    /// The statement runs on.
    pub async fn query(&self, statement: Statement, values: &[&(dyn ToSql + Sync)]) -> Rows {
        let (text, types) = (self.texts.get(statement), statement.types());
        let before = self.warnings.load(Ordering::Acquire);
        let rows = match &self.prepared {
            Some(prepared) => {
                let prepare = || self.client.prepare_typed(text, types);
                let prepared = prepared[statement as usize].get_or_try_init(prepare).await?;
                self.client.query(prepared, values).await?
            }
            None => {
                let typed: Vec<_> = values.iter().copied().zip(types.iter().cloned()).collect();
                self.client.query_typed(text, &typed).await?
            }
        };
        // The reader has counted a warning before it hands on the answer behind it.
        match self.warnings.load(Ordering::Acquire) - before {
            0 => Ok(rows),
            count => Err(SqlError::Failed(format!(
                "the standby may lack the commit: {count} warnings of the server"
            ))),
        }
    }

    /// Runs statements without parameters.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn batch(&self, text: &str) -> Result<(), SqlError> {
        Ok(self.client.batch_execute(text).await?)
    }

    /// Checks what the server says of itself, and returns the process that serves this connection, and its database.
    async fn check(&self, dialect: &Postgres, settings: &Settings, usage: Use) -> Result<(i64, Origin), SqlError> {
        let row = self.client.query_typed_one(HANDSHAKE, &[]).await?;
        let is = |column: usize| row.try_get::<_, bool>(column);
        let (commit, isolation): (String, String) = (row.try_get(6)?, row.try_get(8)?);
        let problem = if row.try_get::<_, i64>(0)? < OLDEST {
            "is older than PostgreSQL 14"
        } else if is(1)? {
            "is a standby"
        } else if is(3)? {
            "is read-only"
        } else if !is(4)? {
            "has fsync = off: a crash would lose leases"
        } else if !is(5)? {
            "has full_page_writes = off: a crash could damage leases"
        } else if usage == Use::Hard && !["on", "remote_apply"].contains(&commit.as_str()) {
            "has another synchronous_commit than on or remote_apply: a crash would lose leases"
        } else if settings.replication == Replication::Synchronous && !is(7)? {
            "has no synchronous_standby_names, and replication is \"synchronous\""
        } else if isolation != "read committed" {
            "has another default_transaction_isolation than read committed"
        } else {
            let origin = Origin {
                system: row.try_get(9)?,
                timeline: row.try_get(10)?,
            };
            let others: i64 = row.try_get(11)?;
            if others > 0 && !dialect.is_shared.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    others,
                    "the database has tables of others: a transaction that stays open in it makes all statements slow; see \
                     docs/postgres.md"
                );
            }
            return Ok((row.try_get::<_, i32>(2)?.into(), origin));
        };
        Err(SqlError::Failed(problem.into()))
    }
}

async fn connect(server: &str, credentials: &Credentials) -> io::Result<Box<dyn Duplex>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = &credentials.tls else {
        return Ok(Box::new(stream));
    };
    stream.write_all(&SSL_REQUEST).await?;
    match stream.read_u8().await? {
        b'S' => encrypt(stream, server, tls).await,
        _ => Err(io::Error::other("the server offers no TLS")),
    }
}

/// For how many milliseconds a statement waits for a lock.
pub fn lock_timeout(settings: &Settings) -> u128 {
    settings.timeout.as_millis() / 3
}

fn config(settings: &Settings, credentials: &Credentials, usage: Use) -> Config {
    let mut config = Config::new();
    config
        .dbname(&settings.database)
        .application_name("fencepost")
        .ssl_mode(SslMode::Disable);
    if let Some(login) = &credentials.login {
        config.user(&login.user).password(&login.password);
    }
    if !settings.pooler {
        let commit = if usage == Use::Soft { "off" } else { "on" };
        let lock_timeout = lock_timeout(settings);
        // A plan must take the rows by their keys, in order, also while the statistics of the tables are missing; and a
        // plan for each execution takes longer than the execution.
        config.options(format!(
            "-c synchronous_commit={commit} -c lock_timeout={lock_timeout} -c enable_seqscan=off -c jit=off \
             -c plan_cache_mode=force_generic_plan \
             -c default_transaction_isolation=read\\ committed"
        ));
    }
    config
}

/// Reads what the server sends until the connection ends.
async fn read<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    warnings: Option<Arc<AtomicU64>>,
    inboxes: &Inboxes,
) where
    S: Duplex,
    T: Duplex,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        match message {
            AsyncMessage::Notice(notice) if notice.parsed_severity() == Some(Severity::Warning) => {
                tracing::warn!(%notice, "PostgreSQL warns");
                // All others may say that a wait for the standby was cancelled.
                let is_of_numbers = notice.routine().is_some_and(|routine| NUMBERING.contains(&routine));
                if let Some(warnings) = warnings.as_ref().filter(|_| !is_of_numbers) {
                    warnings.fetch_add(1, Ordering::Release);
                }
            }
            AsyncMessage::Notification(message) => inboxes.deliver(message.channel(), message.payload()),
            _ => {}
        }
    }
}
