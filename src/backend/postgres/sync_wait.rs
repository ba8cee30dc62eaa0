//! A commit that is seen to wait for standbys. That a session has read which standbys are named does not show it.
//!
//! PostgreSQL lets commits wait once its checkpointer has read the names, which it does not do during an immediate checkpoint.
//! The WAL senders decide by the names that they have read whose confirmation ends a wait. Each process reads the files on
//! its own. An idle session reads them as late as its next statement, when they may be newer than what the others have. A
//! new session has the names that the postmaster had read before it told all processes.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};

use super::connection::{Connection, Opening, refused};
use super::look::OTHER_STANDBYS;
use super::statements::Statement;
use super::stream::connect;
use crate::backend::sql::error::SqlError;

/// How long the last commit may take once one was seen to wait. Then its wait is cancelled: a session that waits for a standby
/// does not notice that its client is gone.
const GRACE: Duration = Duration::from_millis(200);
/// What a new session is asked.
const NEW: &str = "SELECT pg_backend_pid(), current_setting('synchronous_standby_names')";

impl Connection {
    /// Sees a commit of a new session wait for the standbys that this one goes by.
    ///
    /// # Errors
    /// [`SqlError`] if the new session goes by others, or none of its commits is seen to wait.
    ///
    /// # Cancellation safety
    /// The new session ends, once a standby has its last commit.
    pub(super) async fn see_commits_wait(&self) -> Result<(), SqlError> {
        let Opening {
            server,
            credentials,
            config,
        } = &self.opening;
        let stream = connect(server, credentials).await?;
        let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(refused)?;
        tokio::select! {
            seen = self.see_wait(&client) => seen,
            ended = connection => Err(ended.map_or_else(SqlError::from, |()| SqlError::Failed("ended a session".into()))),
        }
    }

    async fn see_wait(&self, new: &Client) -> Result<(), SqlError> {
        let refuse = |problem: &str| Err(SqlError::Failed(problem.into()));
        let row = new.query_typed_one(NEW, &[]).await?;
        let (process, standbys): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        if standbys != self.rules.standbys {
            return refuse(OTHER_STANDBYS);
        }
        let is_seen = AtomicBool::new(false);
        let mut commits = pin!(async {
            while !is_seen.load(Ordering::Relaxed) {
                new.query_typed(self.texts.get(Statement::Confirm), &[]).await?;
            }
            Ok::<_, SqlError>(())
        });
        let of: [&(dyn ToSql + Sync); 1] = [&process];
        let rows = tokio::select! {
            rows = self.run(Statement::Waits, &of) => rows?,
            ended = &mut commits => return ended,
        };
        let waits: bool = rows.first().map_or(Ok(false), |row| row.try_get(0))?;
        if !waits {
            return refuse("has synchronous_standby_names, and no commit is seen to wait for them yet");
        }
        is_seen.store(true, Ordering::Relaxed);
        if timeout(GRACE, commits).await.is_err() {
            self.run(Statement::Cancel, &of).await?;
        }
        Ok(())
    }
}
