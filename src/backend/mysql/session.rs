//! The settings of a session: all that the statements rely on, whatever the server gives its sessions.

use std::time::Duration;

/// The largest number of rows.
const ALL: u64 = u64::MAX;

/// The statements that a session begins with. Those of the limits come first: they bind these statements, too.
pub fn statements(is_mariadb: bool, timeout: Duration) -> Vec<String> {
    let wait = (timeout.as_secs() / 3).max(1);
    let limits = match is_mariadb {
        true => {
            "max_statement_time = 0, max_session_mem_used = 9223372036854775807, tmp_disk_table_size = 18446744073709551615,
             idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0,
             max_sort_length = 1048576, in_predicate_conversion_threshold = 0, big_tables = 0, sql_buffer_result = 0"
        }
        false => "max_execution_time = 0",
    };
    let own = format!(
        "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_select_limit = {ALL}, max_join_size = {ALL},
         sql_big_selects = 1, sql_safe_updates = 0, sql_auto_is_null = 0, time_zone = '+00:00', autocommit = 1,
         completion_type = 0, foreign_key_checks = 1, unique_checks = 1, innodb_lock_wait_timeout = {wait},
         lock_wait_timeout = {wait}, wait_timeout = 31536000, net_read_timeout = 30, net_write_timeout = 60"
    );
    [
        format!("SET SESSION {limits}"),
        "SET NAMES utf8mb4".into(),
        format!("SET SESSION {own}"),
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE".into(),
        // Of init_connect: what it has begun or locked would be a part of what the store commits.
        "BEGIN".into(),
        "ROLLBACK".into(),
    ]
    .into()
}
