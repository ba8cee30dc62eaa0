//! One connection to the primary: TLS, the login, the handshake, and then statements.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row};

use super::messages::Inboxes;
use super::settings::{Credentials, Replication, Settings};
use super::statements::{ALL, FORMAT, Statement, Texts};
use crate::backend::tls_stream::{Duplex, encrypt};

/// What asks a server for TLS, before anything else is sent.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// The key of the lock under which the tables are created: "fencepos" in ASCII.
const CREATION: i64 = 0x6665_6e63_6570_6f73;
/// The oldest version that has all that is used, as the server writes it.
const OLDEST: i64 = 140_000;

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
        ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END";

/// How a connection is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// For commits that are durable when they are answered.
    Hard,
    /// For commits that may be lost in a crash.
    Soft,
}

/// Why a connection cannot be used, or a statement failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The server cannot be reached, or TLS failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The statement had no effect: the server has rolled it back.
    #[error("{0}")]
    RolledBack(Box<DbError>),
    /// The connection failed, or the server ended it.
    #[error("{}", with_cause(.0))]
    Lost(tokio_postgres::Error),
    /// The server is not used, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The commit succeeded at the primary, and the server warned of it.
    #[error("the standby may lack the commit: {0} warnings of the server")]
    Unconfirmed(u64),
}

fn with_cause(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

impl From<tokio_postgres::Error> for ConnectionError {
    fn from(error: tokio_postgres::Error) -> Self {
        // FATAL and PANIC end the connection, perhaps after the commit.
        match error.as_db_error() {
            Some(problem) if problem.parsed_severity() == Some(Severity::Error) => {
                Self::RolledBack(Box::new(problem.clone()))
            }
            _ => Self::Lost(error),
        }
    }
}

impl ConnectionError {
    /// The code of a statement that was rolled back.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Self::RolledBack(problem) => Some(problem.code()),
            _ => None,
        }
    }
}

/// A row of an answer that does not have the columns that it must have is a bug.
pub type Rows = Result<Vec<Row>, ConnectionError>;

/// A connection that has passed the handshake.
pub struct Connection {
    client: Client,
    texts: Texts,
    /// Absent if statements are not prepared, because a pooler runs each on another session.
    prepared: Option<Vec<OnceCell<tokio_postgres::Statement>>>,
    warnings: Arc<AtomicU64>,
    reader: JoinHandle<()>,
    /// How it is used.
    pub usage: Use,
    /// The process that serves it.
    pub process: i32,
    /// The database and its timeline.
    pub origin: Origin,
    /// When the quarantine of the store began, and the time of its clock, in microseconds.
    pub quarantine: Option<(i64, i64)>,
}

/// Which database a server has, and how often a standby was promoted in its past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The identifier of the cluster of databases.
    pub system: i64,
    /// The timeline.
    pub timeline: i64,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("process", &self.process)
            .finish_non_exhaustive()
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
    /// Connects to a server, and checks that the store may be used there. Notifications go to `inboxes`. `last` is
    /// the database that was used before, if any.
    ///
    /// # Errors
    /// [`ConnectionError`] if it cannot be reached, or must not be used.
    pub async fn open(
        server: &str,
        settings: &Settings,
        credentials: &Credentials,
        texts: &Texts,
        usage: Use,
        (inboxes, last): (Option<Arc<Inboxes>>, Origin),
    ) -> Result<Self, ConnectionError> {
        let stream = connect(server, credentials).await?;
        let config = config(settings, credentials, usage);
        let (client, connection) = config.connect_raw(stream, NoTls).await?;
        let warnings = Arc::new(AtomicU64::new(0));
        let counted = (settings.replication == Replication::Synchronous).then(|| Arc::clone(&warnings));
        let reader = tokio::spawn(read(connection, counted, inboxes));
        let prepared = (!settings.pooler).then(|| ALL.map(|_| OnceCell::new()).into());
        let mut this = Self {
            client,
            texts: texts.clone(),
            prepared,
            warnings,
            reader,
            usage,
            process: 0,
            origin: Origin::default(),
            quarantine: None,
        };
        this.check(settings, usage).await?;
        this.enter(settings, last).await?;
        Ok(this)
    }

    /// Runs a statement.
    ///
    /// # Errors
    /// [`ConnectionError::RolledBack`] if it had no effect; after others that is unknown.
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
            count => Err(ConnectionError::Unconfirmed(count)),
        }
    }

    /// Runs statements without parameters.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn batch(&self, text: &str) -> Result<(), ConnectionError> {
        Ok(self.client.batch_execute(text).await?)
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns when the connection has ended.
    ///
    /// # Cancellation safety
    /// Dropping it has no effect.
    pub async fn closed(&mut self) {
        let _ = (&mut self.reader).await;
    }

    async fn check(&mut self, settings: &Settings, usage: Use) -> Result<(), ConnectionError> {
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
            self.process = row.try_get(2)?;
            self.origin = Origin {
                system: row.try_get(9)?,
                timeline: row.try_get(10)?,
            };
            return Ok(());
        };
        Err(ConnectionError::Refused(problem.into()))
    }

    /// Enters the store, and creates its tables if they are missing.
    async fn enter(&mut self, settings: &Settings, last: Origin) -> Result<(), ConnectionError> {
        let Origin { system, timeline } = self.origin;
        // A standby that was promoted may lack even the tables, or that they are in use.
        let was_elsewhere = last != Origin::default() && last != self.origin;
        let mut entered = self
            .query(Statement::Enter, &[&system, &timeline, &FORMAT, &was_elsewhere])
            .await;
        if entered.as_ref().err().and_then(ConnectionError::code) == Some(&SqlState::UNDEFINED_TABLE) {
            if !settings.create_tables {
                let problem = "lacks the tables, and create_tables is false: see docs/postgres.md";
                return Err(ConnectionError::Refused(problem.into()));
            }
            let tables = &self.texts.tables;
            self.batch(&format!("SELECT pg_advisory_xact_lock({CREATION}); {tables}"))
                .await?;
            entered = self
                .query(Statement::Enter, &[&system, &timeline, &FORMAT, &was_elsewhere])
                .await;
        }
        entered?;
        let rows = self.query(Statement::Store, &[]).await?;
        let Some(row) = rows.first() else {
            return Err(ConnectionError::Refused("has an empty fencepost_store".into()));
        };
        let (format, since): (i32, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        if format != FORMAT {
            let problem = format!("has tables of format {format}, and this release knows {FORMAT}");
            return Err(ConnectionError::Refused(problem));
        }
        let now = row.try_get(2)?;
        self.quarantine = since.map(|since| (since, now));
        Ok(())
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
        let lock_timeout = settings.timeout.as_millis() / 3;
        // A plan must take the rows by their keys, in order, also while the statistics of the tables are missing.
        config.options(format!(
            "-c synchronous_commit={commit} -c lock_timeout={lock_timeout} -c enable_seqscan=off -c jit=off \
             -c default_transaction_isolation=read\\ committed"
        ));
    }
    config
}

/// Reads what the server sends until the connection ends.
async fn read<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    warnings: Option<Arc<AtomicU64>>,
    inboxes: Option<Arc<Inboxes>>,
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
            AsyncMessage::Notification(message) => {
                if let Some(inboxes) = &inboxes {
                    inboxes.deliver(message.channel(), message.payload());
                }
            }
            _ => {}
        }
    }
}
