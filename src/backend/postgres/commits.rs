//! Commits that are proved before they are answered, and what keeps them from succeeding.

use std::sync::atomic::Ordering;

use futures::future::join;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connection::{Connection, Rows};
use super::look::Conditions;
use super::statements::Statement;
use crate::backend::sql::error::SqlError;
use crate::backend::sql::settings::Replication;

impl Connection {
    /// Commits, and looks in the same round trip at what the commit rests on. What is not proved has an unknown effect.
    pub(super) async fn commit(&self, statement: Statement, values: &[&(dyn ToSql + Sync)]) -> Rows {
        let unproved = |error: SqlError| SqlError::Failed(error.to_string());
        let before = self.warnings.load(Ordering::Acquire);
        let (rows, mut conditions) = self.run_and_look(statement, values).await;
        let rows = rows?;
        loop {
            let loaded = self
                .accept(conditions.map_err(unproved)?, before)
                .await
                .map_err(unproved)?;
            let Some(loaded) = loaded else { return Ok(rows) };
            // Whatever the configuration was in between: these standbys have all that was committed before.
            let (confirmed, again) = self.run_and_look(Statement::Confirm, &[]).await;
            confirmed.map_err(unproved)?;
            if again.as_ref().is_ok_and(|again| again.loaded == loaded) {
                self.loaded.store(loaded, Ordering::Release);
            }
            conditions = again;
        }
    }

    async fn run_and_look(
        &self,
        statement: Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> (Rows, Result<Conditions, SqlError>) {
        let prepared = match self.prepared(Statement::Look).await {
            Ok(_) => self.prepared(statement).await,
            failed => failed,
        };
        if let Err(error) = prepared {
            return (Err(error), Err(SqlError::Failed("nothing was committed".into())));
        }
        // The look is sent behind the statement, and begins when that is committed.
        join(self.run(statement, values), self.conditions()).await
    }

    async fn conditions(&self) -> Result<Conditions, SqlError> {
        let rows = self.run(Statement::Look, &[]).await?;
        let row = rows
            .first()
            .ok_or_else(|| SqlError::Failed("a look has no row".into()))?;
        Conditions::of(row)
    }

    /// Looks at the server, apart from any commit.
    ///
    /// # Errors
    /// [`SqlError::Failed`] if commits would not be durable.
    pub(super) async fn look(&self) -> Result<(), SqlError> {
        self.refuse(&self.conditions().await?)
    }

    fn refuse(&self, conditions: &Conditions) -> Result<(), SqlError> {
        // The first look after the tables were created tells which they are.
        let tables = self.tables.get_or_init(|| conditions.tables.clone());
        match self.rules.problem(conditions, tables) {
            Some(problem) => Err(SqlError::Failed(problem)),
            None => Ok(()),
        }
    }

    /// Whether the look behind a commit proves it. If the configuration was read in between, returns when: only a further
    /// commit proves it.
    async fn accept(&self, conditions: Conditions, before: u64) -> Result<Option<i64>, SqlError> {
        self.refuse(&conditions)?;
        if self.rules.replication != Replication::Synchronous {
            return Ok(None);
        }
        // The reader has counted a warning before it hands on the answer behind it.
        let warnings = self.warnings.load(Ordering::Acquire) - before;
        if warnings > 0 {
            let problem = format!("the standby may lack the commit: {warnings} warnings of the server");
            return Err(SqlError::Failed(problem));
        }
        if conditions.loaded == self.loaded.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.see_commits_wait().await?;
        Ok(Some(conditions.loaded))
    }

    /// What keeps commits from succeeding, and which process that is, if it is one.
    pub(super) async fn blocker(&self) -> Result<Option<(i64, String)>, SqlError> {
        let rows = self.run(Statement::Blocked, &[]).await?;
        let blocker = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.first().map(blocker).transpose()
    }
}
