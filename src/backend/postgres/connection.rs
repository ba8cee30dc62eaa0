//! One connection to the primary: TLS, the login, the handshake, and then statements.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row};
use tokio_util::sync::CancellationToken;

use super::Postgres;
use super::look::{Conditions, POOLER, Rules};
use super::messages::Inboxes;
use super::notices::Notices;
use super::standbys::all_confirm;
use super::statements::{COLUMNS, Statement, Texts};
use super::stream::connect;
use crate::backend::sql::dialect::{Origin, Session, Use};
use crate::backend::sql::error::{Because, SqlError};
use crate::backend::sql::settings::{Credentials, Replication, Settings};
use crate::backend::tls_stream::Duplex;

/// How statements are planned.
const PLANS: &str = "force_generic_plan";
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

/// How a pooler refuses the settings of a session.
const NO_SETTINGS: &str = "unsupported startup parameter";

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

/// How a session is opened.
pub(super) struct Opening {
    pub(super) server: String,
    pub(super) credentials: Credentials,
    pub(super) config: Config,
}

/// A connection that has passed the handshake.
pub struct Connection {
    client: Client,
    /// How another session of the server is opened.
    pub(super) opening: Opening,
    pub(super) rules: Rules,
    /// When the server's configuration was read that all commits since were made with; 0: a confirmed commit tells.
    pub(super) loaded: AtomicI64,
    /// The tables, once all of them are there.
    pub(super) tables: OnceLock<String>,
    /// The process that blocked commits when the last check was made; 0: none.
    pub(super) blocker: AtomicI64,
    pub(super) texts: Texts,
    /// Absent if statements are not prepared, because a pooler runs each on another session.
    prepared: Option<Vec<OnceCell<tokio_postgres::Statement>>>,
    pub(super) warnings: Arc<AtomicU64>,
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
        let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(refused)?;
        let (warnings, closed) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let (end, inboxes, notices) = (
            closed.clone().drop_guard(),
            Arc::clone(&dialect.inboxes),
            Arc::clone(&dialect.notices),
        );
        let counted = Arc::clone(&warnings);
        let reader = tokio::spawn(async move {
            read(connection, &counted, &inboxes, &notices).await;
            drop(end);
        });
        let has_session = !settings.pooler;
        let mut this = Self {
            client,
            opening: Opening {
                server: server.to_owned(),
                credentials: credentials.clone(),
                config,
            },
            rules: Rules {
                usage,
                replication: settings.replication,
                has_session,
                process: 0,
                standbys: String::new(),
                all_confirm: false,
            },
            loaded: AtomicI64::new(0),
            tables: OnceLock::new(),
            blocker: AtomicI64::new(0),
            texts: dialect.texts.clone(),
            prepared: has_session.then(|| Statement::ALL.iter().map(|_| OnceCell::new()).collect()),
            warnings,
            reader: reader.abort_handle(),
            closed,
            oldest: Mutex::default(),
        };
        let origin = this.check(dialect).await?;
        Ok(Session {
            usage,
            process: this.rules.process,
            origin,
            connection: this,
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
        let Rules { usage, has_session, .. } = self.rules;
        let result = match usage == Use::Hard && has_session && statement.commits() {
            true => self.commit(statement, values).await,
            false => self.run(statement, values).await,
        };
        match result {
            Err(error) if error.because() == Some(Because::Locked) => Err(match self.blocker().await? {
                Some((_, reason)) => SqlError::RolledBack {
                    because: Because::Other,
                    reason,
                },
                None => error,
            }),
            result => result,
        }
    }

    /// As [`Self::query`], without a look.
    pub(super) async fn run(&self, statement: Statement, values: &[&(dyn ToSql + Sync)]) -> Rows {
        match &self.prepared {
            Some(_) => {
                let prepared = self.prepared(statement).await?;
                Ok(self.client.query(prepared, values).await?)
            }
            None => {
                let typed: Vec<_> = values.iter().copied().zip(statement.types().iter().cloned()).collect();
                Ok(self.client.query_typed(self.texts.get(statement), &typed).await?)
            }
        }
    }

    /// Prepares a statement, unless it is.
    pub(super) async fn prepared(&self, statement: Statement) -> Result<&tokio_postgres::Statement, SqlError> {
        let prepared = self.prepared.as_ref().map(|all| &all[statement as usize]);
        let prepared = prepared.ok_or_else(|| SqlError::Failed("a pooler prepares nothing".into()))?;
        let prepare = || self.client.prepare_typed(self.texts.get(statement), statement.types());
        Ok(prepared.get_or_try_init(prepare).await?)
    }

    /// Runs statements without parameters.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn batch(&self, text: &str) -> Result<(), SqlError> {
        Ok(self.client.batch_execute(text).await?)
    }

    /// Checks what the server says of itself, and returns its database.
    async fn check(&mut self, dialect: &Postgres) -> Result<Origin, SqlError> {
        let Rules {
            usage,
            replication,
            has_session,
            ..
        } = self.rules;
        let handshake = self.texts.get(Statement::Handshake);
        let row = self
            .client
            .query_typed_one(handshake, &[(&has_session, Type::BOOL)])
            .await?;
        let conditions = Conditions::of(&row)?;
        let (isolation, plans): (String, String) = (row.try_get(COLUMNS + 3)?, row.try_get(COLUMNS + 4)?);
        let is = |column: usize| row.try_get::<_, bool>(COLUMNS + column);
        let problem = if row.try_get::<_, i64>(COLUMNS)? < OLDEST {
            "is older than PostgreSQL 14"
        } else if is(1)? {
            "is a standby"
        } else if is(2)? {
            "is read-only"
        } else if has_session && plans != PLANS {
            return Err(SqlError::Failed(format!("ignores the settings of a session: {POOLER}")));
        } else if let Some(problem) = conditions.problem(usage, replication) {
            problem
        } else if isolation != "read committed" {
            "has another default_transaction_isolation than read committed"
        } else {
            let origin = Origin {
                system: row.try_get(COLUMNS + 5)?,
                timeline: row.try_get(COLUMNS + 6)?,
                tables: 0,
            };
            let others: i64 = row.try_get(COLUMNS + 7)?;
            if others > 0 && !dialect.is_shared.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    others,
                    "the database has tables of others: a transaction that stays open in it makes all statements slow; see \
                     docs/postgres.md"
                );
            }
            if !conditions.tables.contains("NULL") {
                self.tables = conditions.tables.into();
            }
            self.rules.process = conditions.process;
            self.rules.all_confirm = replication == Replication::Synchronous && all_confirm(&conditions.standbys);
            self.rules.standbys = conditions.standbys;
            if replication == Replication::Synchronous && usage == Use::Hard {
                self.see_commits_wait().await?;
                self.loaded = AtomicI64::new(conditions.loaded);
            }
            return Ok(origin);
        };
        Err(SqlError::Failed(problem.into()))
    }
}

/// Why a server accepts no connection.
pub(super) fn refused(error: tokio_postgres::Error) -> SqlError {
    let problem = with_cause(&error);
    match problem.contains(NO_SETTINGS) {
        true => SqlError::Failed(format!("{problem}: {POOLER}")),
        false => SqlError::Failed(problem),
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
        // All that a role or a database may set otherwise, and that statements rely on. A plan must take the rows by their
        // keys, in order, also while the statistics of the tables are missing; and a plan for each execution takes longer
        // than the execution.
        config.options(format!(
            "-c synchronous_commit={commit} -c lock_timeout={lock_timeout} -c statement_timeout=0 \
             -c idle_in_transaction_session_timeout=0 -c client_min_messages=warning -c exit_on_error=off \
             -c search_path=pg_catalog -c default_tablespace= -c enable_seqscan=off -c enable_indexscan=on \
             -c enable_nestloop=on -c jit=off -c plan_cache_mode={PLANS} -c default_transaction_isolation=read\\ committed"
        ));
    }
    config
}

/// Reads what the server sends until the connection ends.
async fn read<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    warnings: &AtomicU64,
    inboxes: &Inboxes,
    notices: &Notices,
) where
    S: Duplex,
    T: Duplex,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        match message {
            AsyncMessage::Notice(notice) if notice.parsed_severity() == Some(Severity::Warning) => {
                notices.warn(&notice);
                // All others may say that a wait for the standby was cancelled.
                if !notice.routine().is_some_and(|routine| NUMBERING.contains(&routine)) {
                    warnings.fetch_add(1, Ordering::Release);
                }
            }
            AsyncMessage::Notification(message) => inboxes.deliver(message.channel(), message.payload()),
            _ => {}
        }
    }
}
