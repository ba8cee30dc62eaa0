//! What a server must be set to so that its commits are durable. It is looked at behind each commit, on the connection of the
//! commit, because an administrator or a failover manager changes it while the server runs.

use tokio_postgres::Row;

use crate::backend::sql::dialect::Use;
use crate::backend::sql::error::SqlError;
use crate::backend::sql::settings::Replication;

/// What a server says of itself.
#[derive(Debug)]
pub struct Conditions {
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
    has_weak_table: bool,
    /// Which tables these are. NULL stands for one that is missing.
    pub tables: String,
}

impl Conditions {
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
            has_weak_table: row.try_get(7)?,
            tables: row.try_get(8)?,
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

/// What is wrong with a server whose commits may not be on the standbys that a connection goes by.
pub const OTHER_STANDBYS: &str = "had its synchronous_standby_names changed";

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
    pub fn problem(&self, conditions: &Conditions, tables: &str) -> Option<String> {
        let problem = match conditions.problem(self.usage, self.replication) {
            Some(problem) => problem,
            None if conditions.tables != tables => "had its tables replaced",
            None if !self.has_session => return None,
            None if conditions.process != self.process => {
                return Some(format!("runs statements on several sessions: {POOLER}"));
            }
            None if self.replication == Replication::Synchronous && conditions.standbys != self.standbys => {
                OTHER_STANDBYS
            }
            None => return None,
        };
        Some(problem.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "{1,2,3,4}";

    fn conditions() -> Conditions {
        Conditions {
            process: 7,
            has_fsync: true,
            has_full_pages: true,
            commit: "on".into(),
            standbys: "one".into(),
            messages: "warning".into(),
            loaded: 1,
            has_weak_table: false,
            tables: TABLES.into(),
        }
    }

    // G173
    #[test]
    fn each_condition_that_a_commit_rests_on_is_looked_at() {
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
            assert_eq!(rules.problem(&conditions(), TABLES), None);
        }
        /// What differs, what is then told, and whether that concerns a server of which nothing is promoted, and a pooler.
        type Case = (fn(&mut Conditions), &'static str, bool, bool);
        let cases: [Case; 9] = [
            (|conditions| conditions.has_fsync = false, "fsync", true, true),
            (
                |conditions| conditions.has_full_pages = false,
                "full_page_writes",
                true,
                true,
            ),
            (
                |conditions| conditions.commit = "local".into(),
                "synchronous_commit",
                true,
                true,
            ),
            (
                |conditions| conditions.standbys = String::new(),
                "no synchronous_standby_names",
                false,
                false,
            ),
            (
                |conditions| conditions.messages = "error".into(),
                "client_min_messages",
                false,
                false,
            ),
            (|conditions| conditions.has_weak_table = true, "UNLOGGED", true, true),
            (
                |conditions| conditions.tables = "{1,2,3,5}".into(),
                "tables replaced",
                true,
                true,
            ),
            (|conditions| conditions.process = 8, "several sessions", true, false),
            (
                |conditions| conditions.standbys = "two".into(),
                "synchronous_standby_names changed",
                false,
                false,
            ),
        ];
        for (differ, problem, single_too, pooler_too) in cases {
            let mut other = conditions();
            differ(&mut other);
            for (rules, is_told) in [(&synchronous, true), (&single, single_too), (&pooler, pooler_too)] {
                let told = rules.problem(&other, TABLES);
                assert_eq!(told.is_some_and(|told| told.contains(problem)), is_told, "{problem}");
            }
        }
    }
}
