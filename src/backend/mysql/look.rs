//! What a server must be: its variables and its tables. They are looked at when a connection opens, each second, and
//! behind each script of statements, because an operator may change them while the server runs.

use std::collections::HashMap;

use super::client::answers::Outcome;
use super::rows::{get, missing};
use crate::backend::sql::error::SqlError;

/// The largest packet that a server must accept, for all of a script: a root takes 1 MiB, and twice that as text.
pub const PACKET: usize = 16 * 1024 * 1024;
/// What matters of a server. It does not know all of them.
const NAMES: [&str; 17] = [
    "version",
    "server_uuid",
    "server_id",
    "read_only",
    "super_read_only",
    "innodb_read_only",
    "innodb_flush_log_at_trx_commit",
    "innodb_flush_method",
    "innodb_doublewrite",
    "debug_no_sync",
    "log_bin",
    "sync_binlog",
    "binlog_format",
    "max_allowed_packet",
    "wsrep_on",
    "wsrep_provider",
    "group_replication_group_name",
];
/// The values of a variable that is off.
const OFF: [&str; 3] = ["", "OFF", "0"];
/// The tables of the store.
pub const TABLES: [&str; 4] = [
    "fencepost_store",
    "fencepost_lock",
    "fencepost_part",
    "fencepost_server",
];
/// Those that a commit rests on.
pub const COMMITTED: [&str; 3] = ["fencepost_store", "fencepost_lock", "fencepost_part"];
/// Whether the log is written with which MySQL undoes a crash. MariaDB, and a MySQL before 8.0.21, return nothing: it is always
/// written there.
pub const REDO_LOG: &str = "SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'";

/// The statement that asks for all of them.
pub fn variables() -> String {
    let names = NAMES.map(|name| format!("'{name}'")).join(", ");
    format!("SHOW VARIABLES WHERE variable_name IN ({names})")
}

/// The variables of a server.
#[derive(Debug)]
pub struct Variables {
    values: HashMap<&'static str, String>,
}

impl Variables {
    /// What [`variables`] has returned.
    ///
    /// # Errors
    /// [`SqlError`] if it has not.
    pub fn of(outcome: &Outcome) -> Result<Self, SqlError> {
        let mut values = HashMap::new();
        for row in &outcome.rows {
            let name: String = get(row, 0)?;
            if let Some(name) = NAMES.into_iter().find(|known| *known == name) {
                values.insert(name, get(row, 1)?);
            }
        }
        Ok(Self { values })
    }

    /// Which server it is: MySQL has a UUID, and replicas of MariaDB have different numbers.
    pub fn system(&self) -> i64 {
        let of = |name: &str| self.values.get(name).map_or("", String::as_str);
        let uuid = u128::from_str_radix(&of("server_uuid").replace('-', ""), 16);
        match uuid {
            Ok(uuid) => ((uuid >> 64) ^ uuid) as i64,
            Err(_) => of("server_id").parse().unwrap_or_default(),
        }
    }

    /// The look behind a script of a server that says this of its redo log.
    pub fn look(&self, redo_log: &Outcome) -> Look {
        let mut names: Vec<_> = self.values.keys().copied().collect();
        names.sort_unstable();
        let columns: Vec<_> = names.iter().map(|name| format!("@@{name}")).collect();
        let mut statements = vec![format!("SELECT {}", columns.join(", "))];
        statements.extend(redo_log.rows.first().map(|_| REDO_LOG.to_owned()));
        Look { names, statements }
    }

    /// Checks that the store may be used there.
    ///
    /// # Errors
    /// [`SqlError::Failed`] that says why not.
    pub fn check(&self) -> Result<(), SqlError> {
        problem(&|name| self.values.get(name).map_or("", String::as_str)).map_or(Ok(()), refuse)
    }
}

/// What is looked at behind a script: the same variables again, in one row, and the redo log where it can be disabled.
#[derive(Debug)]
pub struct Look {
    names: Vec<&'static str>,
    /// The statements that ask for it. Each returns a row.
    pub statements: Vec<String>,
}

impl Look {
    /// Checks that the store may still be used there.
    ///
    /// # Errors
    /// [`SqlError::Failed`] that says why not.
    pub fn check(&self, outcomes: &[Outcome]) -> Result<(), SqlError> {
        let (variables, redo_log) = outcomes.split_first().ok_or_else(missing)?;
        for redo_log in redo_log {
            redo_log.rows.first().ok_or_else(missing)?;
            check_redo_log(redo_log)?;
        }
        let row = variables.rows.first().ok_or_else(missing)?;
        let values = self.names.iter().enumerate().map(|(at, name)| {
            let value: Option<String> = get(row, at)?;
            Ok((*name, value.unwrap_or_default()))
        });
        let values = values.collect::<Result<_, SqlError>>()?;
        Variables { values }.check()
    }
}

/// The statement that shows how a table was made, as this session sees it.
pub fn table(name: &str) -> String {
    format!("SHOW CREATE TABLE {name}")
}

/// Checks that a table keeps what was committed: a session may see a view or a temporary table in its place.
///
/// # Errors
/// [`SqlError::Failed`] if it does not.
pub fn check_table(outcome: &Outcome) -> Result<(), SqlError> {
    let row = outcome.rows.first().ok_or_else(missing)?;
    let (name, made): (String, String) = (get(row, 0)?, get(row, 1)?);
    let engine = made
        .starts_with("CREATE TABLE ")
        .then(|| made.rsplit_once("\n) ENGINE="))
        .flatten();
    let engine = engine.and_then(|(_, options)| options.split_whitespace().next());
    match engine {
        Some("InnoDB") => Ok(()),
        Some(engine) => refuse(&format!(
            "has the table {name} in the engine {engine}: a crash would lose leases"
        )),
        None => refuse(&format!(
            "has a view or a temporary table as {name}: a crash would lose leases"
        )),
    }
}

/// Checks that the log is written with which a crash is undone, where it can be disabled.
///
/// # Errors
/// [`SqlError::Failed`] if it is not.
pub fn check_redo_log(outcome: &Outcome) -> Result<(), SqlError> {
    let enabled = outcome.rows.first().map(|row| get::<String>(row, 1)).transpose()?;
    match enabled.is_none_or(|enabled| enabled == "ON") {
        true => Ok(()),
        false => refuse("has its redo log disabled: a crash would lose leases"),
    }
}

fn refuse(problem: &str) -> Result<(), SqlError> {
    Err(SqlError::Failed(problem.into()))
}

/// What is wrong with a server that has these variables.
fn problem<'a>(of: &dyn Fn(&str) -> &'a str) -> Option<&'static str> {
    let is_on = |name: &str| !OFF.contains(&of(name));
    let version = of("version");
    let mut numbers = version
        .split('.')
        .map(|number| number.parse::<u32>().unwrap_or_default());
    let number = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let oldest = if version.contains("MariaDB") { (10, 6) } else { (8, 0) };
    let problem = if number < oldest {
        "is older than MariaDB 10.6 or MySQL 8.0"
    } else if is_on("wsrep_on") || !["", "none"].contains(&of("wsrep_provider")) {
        "is a node of a Galera cluster (wsrep_on, wsrep_provider): it undoes commits that it has answered"
    } else if is_on("group_replication_group_name") {
        "is a member of Group Replication (group_replication_group_name), which no test covers"
    } else if is_on("read_only") || is_on("super_read_only") || is_on("innodb_read_only") {
        "is read-only"
    } else if of("innodb_flush_log_at_trx_commit") != "1" {
        "has another innodb_flush_log_at_trx_commit than 1: a crash would lose leases"
    } else if ["nosync", "littlesync"].contains(&of("innodb_flush_method")) || is_on("debug_no_sync") {
        "has innodb_flush_method nosync or littlesync, or debug_no_sync: a crash would lose leases"
    } else if !["ON", "1", "DETECT_AND_RECOVER", "fast"].contains(&of("innodb_doublewrite")) {
        "has innodb_doublewrite OFF or DETECT_ONLY: a crash could damage leases"
    } else if is_on("log_bin") && of("sync_binlog") != "1" {
        "has another sync_binlog than 1: a crash would lose leases"
    } else if is_on("log_bin") && of("binlog_format") == "STATEMENT" {
        "has binlog_format = STATEMENT, which does not replicate the clock"
    } else if of("max_allowed_packet").parse::<usize>().unwrap_or_default() < PACKET {
        "has a max_allowed_packet below 16 MiB: a long queue would not fit"
    } else {
        return None;
    };
    Some(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a MySQL 8.0.30 that has these variables, and the usual ones.
    fn problem_of(variables: &[(&str, &str)]) -> Option<&'static str> {
        let usual = [
            ("version", "8.0.30"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("innodb_doublewrite", "ON"),
            ("max_allowed_packet", "16777216"),
        ];
        let find = |name: &str| variables.iter().chain(&usual).find(|(known, _)| *known == name);
        problem(&|name| find(name).map_or("", |(_, value)| *value))
    }

    #[test]
    fn old_servers_are_refused() {
        for (version, is_old) in [
            ("10.5.27-MariaDB", true),
            ("5.7.44-log", true),
            ("", true),
            ("10.6.0-MariaDB", false),
            ("10.11.19-MariaDB-0+deb12u1", false),
            ("11.4.2-MariaDB", false),
            ("8.0.11", false),
            ("9.1.0", false),
        ] {
            let problem = problem_of(&[("version", version)]);
            assert_eq!(problem.is_some(), is_old, "{version}: {problem:?}");
        }
    }

    #[test]
    fn settings_that_can_lose_commits_are_refused() {
        for (name, value, is_refused) in [
            ("innodb_doublewrite", "DETECT_ONLY", true),
            ("innodb_doublewrite", "OFF", true),
            ("innodb_doublewrite", "DETECT_AND_RECOVER", false),
            ("innodb_flush_method", "nosync", true),
            ("innodb_flush_method", "littlesync", true),
            ("innodb_flush_method", "O_DIRECT", false),
            ("debug_no_sync", "ON", true),
            ("debug_no_sync", "0", false),
            ("wsrep_on", "ON", true),
            ("wsrep_provider", "/usr/lib/galera/libgalera_smm.so", true),
            ("wsrep_provider", "none", false),
            (
                "group_replication_group_name",
                "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
                true,
            ),
            ("group_replication_group_name", "", false),
            ("innodb_read_only", "ON", true),
            ("super_read_only", "1", true),
        ] {
            let problem = problem_of(&[(name, value)]);
            assert_eq!(problem.is_some(), is_refused, "{name} = {value}: {problem:?}");
        }
    }

    #[test]
    fn servers_are_told_apart_by_their_uuid_or_number() {
        let of = |name, value: &str| {
            let values = HashMap::from([(name, value.to_owned())]);
            Variables { values }.system()
        };
        let uuids = [
            "3e11fa47-71ca-11e1-9e33-c80aa9429562",
            "3e11fa47-71ca-11e1-9e33-c80aa9429563",
        ];
        assert_ne!(of("server_uuid", uuids[0]), of("server_uuid", uuids[1]));
        assert_ne!(of("server_id", "1"), of("server_id", "2"));
    }
}
