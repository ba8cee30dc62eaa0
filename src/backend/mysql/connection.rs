//! One connection to the primary: the handshake, and then scripts of statements.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Mutex;

use super::client::answers::Outcome;
use super::client::{Client, ClientError};
use super::look::{Look, REDO_LOG, Variables, check_redo_log, variables};
use super::rows::{get, missing};
use super::session;
use crate::backend::sql::dialect::{Origin, Session, Use};
use crate::backend::sql::error::{Because, SqlError};
use crate::backend::sql::settings::{Credentials, Settings};

/// Whether SYSDATE() is the time at which it is evaluated, and not that at which the statement began.
const CLOCK: &str = "SELECT SLEEP(0.001) = 0 AND SYSDATE(6) > NOW(6)";

/// A script that failed, with the number of its statements that succeeded.
struct Failure(usize, ClientError);

impl Failure {
    fn ends_the_connection(&self) -> bool {
        match &self.1 {
            // A shutdown, a packet that is too large, a KILL, and a timeout.
            ClientError::Server { code, .. } => [1053, 1153, 1927, 4031].contains(code),
            _ => true,
        }
    }
}

/// A connection that has passed the handshake.
pub struct Connection {
    client: Mutex<Client>,
    look: Look,
    /// Which tables the store was entered with.
    pub(super) tables: OnceLock<i64>,
    /// Whether an answer is outstanding, perhaps for ever, or the server must not be used any more.
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
        let ClientError::Server { code, .. } = &error else {
            return Self::Failed(error.to_string());
        };
        let because = match code {
            1020 | 1213 => Because::OfOthers,
            1205 => Because::Locked,
            1290 | 1792 | 1836 => Because::ReadOnly,
            1146 => Because::NoTable,
            _ => Because::Other,
        };
        Self::RolledBack {
            because,
            reason: error.to_string(),
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
        let client = Client::connect(server, &settings.database, credentials).await;
        let mut client = client.map_err(|error| SqlError::Failed(error.to_string()))?;
        let mut script = session::statements(client.is_mariadb(), settings.timeout);
        script.extend([REDO_LOG.into(), variables(), CLOCK.into()]);
        let said = client.run(&script, 1).await;
        let mut said = said.map_err(|(done, error)| SqlError::from(Failure(done, error)))?;
        let clock = said.pop().ok_or_else(missing)?;
        let variables = Variables::of(&said.pop().ok_or_else(missing)?)?;
        variables.check()?;
        let redo_log = said.pop().ok_or_else(missing)?;
        check_redo_log(&redo_log)?;
        if get::<i64>(clock.rows.first().ok_or_else(missing)?, 0)? != 1 {
            let problem = "has sysdate-is-now: a statement that waits would use a time that is over";
            return Err(SqlError::Failed(problem.into()));
        }
        Ok(Session {
            usage,
            process: client.session().into(),
            origin: Origin {
                system: variables.system(),
                ..Origin::default()
            },
            connection: Self {
                client: Mutex::new(client),
                look: variables.look(&redo_log),
                tables: OnceLock::new(),
                is_broken: AtomicBool::new(false),
            },
        })
    }

    /// Whether a script was not answered, or the server must not be used any more.
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Runs statements in one round trip, each of them in a transaction of its own, and looks at the server behind them.
    /// They return at most so many rows together.
    ///
    /// # Errors
    /// [`SqlError::RolledBack`] if the first one that failed had no effect; after others that is unknown.
    ///
    /// # Cancellation safety
    /// The statements run on, and the connection is broken.
    pub async fn run(&self, mut script: Vec<String>, rows: usize) -> Result<Vec<Outcome>, SqlError> {
        script.extend_from_slice(&self.look.statements);
        let outcomes = self.send(&script, rows).await?;
        self.looked(outcomes)
    }

    /// Runs statements as one transaction, in one round trip, and looks at the server behind it: a commit is answered only
    /// if the server still keeps commits. They return at most so many rows together.
    ///
    /// # Errors
    /// [`SqlError::RolledBack`] if it had no effect; after others that is unknown.
    ///
    /// # Cancellation safety
    /// The statements run on, and the connection is broken.
    pub async fn transaction(&self, mut script: Vec<String>, rows: usize) -> Result<Vec<Outcome>, SqlError> {
        script.insert(0, "BEGIN".into());
        let commit = script.len();
        script.push("COMMIT".into());
        script.extend_from_slice(&self.look.statements);
        let Failure(done, error) = match self.send(&script, rows).await {
            Ok(outcomes) => {
                let mut outcomes = self.looked(outcomes)?;
                outcomes.remove(0);
                return Ok(outcomes);
            }
            Err(failure) => failure,
        };
        let is_rolled_back =
            done < commit || matches!(&error, ClientError::Server { code: 1213, .. } if done == commit);
        if !is_rolled_back {
            return Err(self.give_up(SqlError::Failed(error.to_string())));
        }
        // A wait for a lock that was too long takes back only its statement.
        if matches!(error, ClientError::Server { .. }) {
            let rolled_back = self.send(&["ROLLBACK".into()], 0).await;
            self.is_broken.store(rolled_back.is_err(), Ordering::Release);
        }
        Err(Failure(done, error).into())
    }

    /// Closes the connection for this reason.
    pub fn give_up(&self, problem: SqlError) -> SqlError {
        self.is_broken.store(true, Ordering::Release);
        problem
    }

    /// What a script has returned, without the look behind it.
    fn looked(&self, mut outcomes: Vec<Outcome>) -> Result<Vec<Outcome>, SqlError> {
        let own = outcomes.len().checked_sub(self.look.statements.len());
        let look = outcomes.split_off(own.ok_or_else(missing)?);
        self.look.check(&look).map_err(|problem| self.give_up(problem))?;
        Ok(outcomes)
    }

    async fn send(&self, script: &[String], rows: usize) -> Result<Vec<Outcome>, Failure> {
        let mut client = self.client.lock().await;
        self.is_broken.store(true, Ordering::Release);
        // And those of the look.
        let sent = client
            .run(script, rows.saturating_add(self.look.statements.len()))
            .await
            .map_err(|(done, error)| Failure(done, error));
        let is_broken = sent.as_ref().is_err_and(Failure::ends_the_connection);
        self.is_broken.store(is_broken, Ordering::Release);
        sent
    }
}
