//! What a server must be set to so that its commits are durable. It is looked at behind each commit, on the connection of the
//! commit, because an administrator or a failover manager changes it while the server runs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join;
use tokio::time::sleep;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connection::{Connection, Rows};
use super::statements::Statement;
use crate::backend::sql::dialect::Use;
use crate::backend::sql::error::SqlError;
use crate::backend::sql::settings::Replication;

/// The columns of a look. All tables that are missing are left out, as the handshake comes before they are created.
pub const FACTS: &str = "\
pg_backend_pid()::bigint, current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
    current_setting('client_min_messages'), (date_part('epoch', pg_conf_load_time()) * 1000000)::bigint, {now},
    EXISTS (SELECT FROM pg_class WHERE oid = ANY({tables}) AND (relkind <> 'r' OR relpersistence <> 'p')),
    coalesce(to_regclass('{store}')::oid::bigint, 0)";
/// How many columns these are.
pub const COLUMNS: usize = 10;

/// For how many microseconds a configuration must have been in use before a commit shows anything: the processes that make
/// commits wait for standbys read it on their own, a moment before or after a session does.
pub const SETTLED: i64 = 250_000;

/// What a server says of itself.
#[derive(Debug)]
pub struct Facts {
    /// The process that serves the connection.
    pub process: i64,
    has_fsync: bool,
    has_full_pages: bool,
    commit: String,
    /// The standbys that must have a commit.
    pub standbys: String,
    messages: String,
    /// When the configuration was read last, by the database's clock in microseconds.
    pub loaded: i64,
    /// The database's clock.
    pub now: i64,
    has_weak_table: bool,
    /// Which table the row of the store is in; 0: none.
    pub table: i64,
}

impl Facts {
    /// The first columns of a row.
    pub fn of(row: &Row) -> Result<Self, SqlError> {
        Ok(Self {
            process: row.try_get(0)?,
            has_fsync: row.try_get(1)?,
            has_full_pages: row.try_get(2)?,
            commit: row.try_get(3)?,
            standbys: row.try_get(4)?,
            messages: row.try_get(5)?,
            loaded: row.try_get(6)?,
            now: row.try_get(7)?,
            has_weak_table: row.try_get(8)?,
            table: row.try_get(9)?,
        })
    }

    /// Why a commit would not be durable.
    pub fn problem(&self, usage: Use, replication: Replication) -> Option<&'static str> {
        let is_synchronous = replication == Replication::Synchronous;
        let problem = if !self.has_fsync {
            "has fsync = off: a crash would lose leases"
        } else if !self.has_full_pages {
            "has full_page_writes = off: a crash could damage leases"
        } else if usage == Use::Hard && !["on", "remote_apply"].contains(&self.commit.as_str()) {
            "has another synchronous_commit than on or remote_apply: a crash would lose leases"
        } else if is_synchronous && self.standbys.is_empty() {
            "has no synchronous_standby_names, and replication is \"synchronous\""
        } else if is_synchronous && ["error", "fatal", "panic"].contains(&self.messages.as_str()) {
            "has a client_min_messages that hides the warning of a commit which no standby has"
        } else if self.has_weak_table {
            "has a table of the store that a crash empties (UNLOGGED), or that is no table: ALTER TABLE ... SET LOGGED"
        } else {
            return None;
        };
        Some(problem)
    }
}

/// What a server is asked for that may be a pooler.
pub const POOLER: &str = "is it a pooler? Then set pooler = true";

/// What the commits of a connection rest on.
#[derive(Debug)]
pub struct Rules {
    /// How it is used.
    pub usage: Use,
    /// What is promoted.
    pub replication: Replication,
    /// Whether each statement runs on one session, and the server is looked at behind each commit.
    pub has_session: bool,
    /// The process that serves it.
    pub process: i64,
    /// The standbys that must have a commit.
    pub standbys: String,
    /// Whether these are all that may be promoted.
    pub all_confirm: bool,
}

impl Rules {
    /// Why what was committed before this look would not be durable, or may be lost: the tables were these.
    fn problem(&self, facts: &Facts, table: i64) -> Option<String> {
        let problem = match facts.problem(self.usage, self.replication) {
            Some(problem) => problem,
            None if facts.table != table => "had its tables replaced",
            None if !self.has_session => return None,
            None if facts.process != self.process => {
                return Some(format!("runs statements on several sessions: {POOLER}"));
            }
            None if self.replication == Replication::Synchronous && facts.standbys != self.standbys => {
                "had its synchronous_standby_names changed"
            }
            None => return None,
        };
        Some(problem.to_owned())
    }
}

impl Connection {
    /// Commits, and looks in the same round trip at what the commit rests on. What is not proved has an unknown effect.
    pub(super) async fn commit(&self, statement: Statement, values: &[&(dyn ToSql + Sync)]) -> Rows {
        let unproved = |error: SqlError| SqlError::Failed(error.to_string());
        let before = self.warnings.load(Ordering::Acquire);
        let (rows, mut facts) = self.run_and_look(statement, values).await;
        let rows = rows?;
        loop {
            let loaded = self.accept(facts.map_err(unproved)?, before).await?;
            let Some(loaded) = loaded else { return Ok(rows) };
            // Whatever the configuration was in between: these standbys have all that was committed before.
            let (confirmed, again) = self.run_and_look(Statement::Confirm, &[]).await;
            confirmed.map_err(unproved)?;
            if again.as_ref().is_ok_and(|again| again.loaded == loaded) {
                self.loaded.store(loaded, Ordering::Release);
            }
            facts = again;
        }
    }

    async fn run_and_look(
        &self,
        statement: Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> (Rows, Result<Facts, SqlError>) {
        let prepared = match self.prepared(Statement::Look).await {
            Ok(_) => self.prepared(statement).await,
            failed => failed,
        };
        if let Err(error) = prepared {
            return (Err(error), Err(SqlError::Failed("nothing was committed".into())));
        }
        // The look is sent behind the statement, and begins when that is committed.
        join(self.run(statement, values), self.facts()).await
    }

    async fn facts(&self) -> Result<Facts, SqlError> {
        let rows = self.run(Statement::Look, &[]).await?;
        let row = rows
            .first()
            .ok_or_else(|| SqlError::Failed("a look has no row".into()))?;
        Facts::of(row)
    }

    /// Looks at the server, apart from any commit.
    ///
    /// # Errors
    /// [`SqlError::Failed`] if commits would not be durable.
    pub(super) async fn look(&self) -> Result<(), SqlError> {
        self.refuse(&self.facts().await?)
    }

    fn refuse(&self, facts: &Facts) -> Result<(), SqlError> {
        // The first look after the tables were created tells which they are.
        let known = self
            .table
            .compare_exchange(0, facts.table, Ordering::AcqRel, Ordering::Acquire);
        match self.rules.problem(facts, known.err().unwrap_or(facts.table)) {
            Some(problem) => Err(SqlError::Failed(problem)),
            None => Ok(()),
        }
    }

    /// Whether the look behind a commit proves it. If the configuration was read in between, returns when: only a further
    /// commit proves it.
    async fn accept(&self, facts: Facts, before: u64) -> Result<Option<i64>, SqlError> {
        self.refuse(&facts)?;
        if self.rules.replication != Replication::Synchronous {
            return Ok(None);
        }
        // The reader has counted a warning before it hands on the answer behind it.
        let warnings = self.warnings.load(Ordering::Acquire) - before;
        if warnings > 0 {
            let problem = format!("the standby may lack the commit: {warnings} warnings of the server");
            return Err(SqlError::Failed(problem));
        }
        if facts.loaded == self.loaded.load(Ordering::Acquire) {
            return Ok(None);
        }
        let unsettled = (facts.loaded + SETTLED - facts.now).clamp(0, SETTLED);
        sleep(Duration::from_micros(unsettled.unsigned_abs())).await;
        Ok(Some(facts.loaded))
    }

    /// What keeps commits from succeeding, and which process that is, if it is one.
    pub(super) async fn blocker(&self) -> Result<Option<(i64, String)>, SqlError> {
        let rows = self.run(Statement::Blocked, &[]).await?;
        let blocker = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.first().map(blocker).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            process: 7,
            has_fsync: true,
            has_full_pages: true,
            commit: "on".into(),
            standbys: "one".into(),
            messages: "warning".into(),
            loaded: 1,
            now: 2,
            has_weak_table: false,
            table: 16_384,
        }
    }

    // G173
    #[test]
    fn each_fact_that_a_commit_rests_on_is_looked_at() {
        let rules = |replication, has_session| Rules {
            usage: Use::Hard,
            replication,
            has_session,
            process: 7,
            standbys: "one".into(),
            all_confirm: true,
        };
        let (single, synchronous) = (rules(Replication::Single, true), rules(Replication::Synchronous, true));
        let pooler = rules(Replication::Single, false);
        for rules in [&single, &synchronous, &pooler] {
            assert_eq!(rules.problem(&facts(), 16_384), None);
        }
        /// What differs, what is then told, and whether that concerns a server of which nothing is promoted, and a pooler.
        type Case = (fn(&mut Facts), &'static str, bool, bool);
        let cases: [Case; 9] = [
            (|facts| facts.has_fsync = false, "fsync", true, true),
            (|facts| facts.has_full_pages = false, "full_page_writes", true, true),
            (|facts| facts.commit = "local".into(), "synchronous_commit", true, true),
            (
                |facts| facts.standbys = String::new(),
                "no synchronous_standby_names",
                false,
                false,
            ),
            (
                |facts| facts.messages = "error".into(),
                "client_min_messages",
                false,
                false,
            ),
            (|facts| facts.has_weak_table = true, "UNLOGGED", true, true),
            (|facts| facts.table = 16_400, "tables replaced", true, true),
            (|facts| facts.process = 8, "several sessions", true, false),
            (
                |facts| facts.standbys = "two".into(),
                "synchronous_standby_names changed",
                false,
                false,
            ),
        ];
        for (differ, problem, single_too, pooler_too) in cases {
            let mut other = facts();
            differ(&mut other);
            for (rules, is_told) in [(&synchronous, true), (&single, single_too), (&pooler, pooler_too)] {
                let told = rules.problem(&other, 16_384);
                assert_eq!(told.is_some_and(|told| told.contains(problem)), is_told, "{problem}");
            }
        }
    }
}
