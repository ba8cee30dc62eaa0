//! What is changed at a server while the store serves, and what a server gives its sessions.

use fencepost::backend::Health;

use crate::contract::empty;
use crate::harness::{records, settings, unready};
use crate::record_contract;
use crate::record_steps::{applied, first, healthy, next, serves};
use crate::servers::{MariaDb, NAME, available};
use crate::tables::is_refused;

/// What makes each of the changes, what makes it undone, and the words that name it.
const CHANGES: [(&str, &str, &str); 7] = [
    (
        "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        "innodb_flush_log_at_trx_commit",
    ),
    (
        "SET GLOBAL sync_binlog = 0",
        "SET GLOBAL sync_binlog = 1",
        "sync_binlog",
    ),
    ("SET GLOBAL read_only = ON", "SET GLOBAL read_only = OFF", "read-only"),
    (
        "ALTER TABLE fencepost_lock ENGINE = MyISAM",
        "ALTER TABLE fencepost_lock ENGINE = InnoDB",
        "fencepost_lock in the engine MyISAM",
    ),
    (
        "ALTER TABLE fencepost_part ENGINE = Aria",
        "ALTER TABLE fencepost_part ENGINE = InnoDB",
        "fencepost_part in the engine Aria",
    ),
    (
        "ALTER TABLE fencepost_store ENGINE = MEMORY",
        "ALTER TABLE fencepost_store ENGINE = InnoDB",
        "fencepost_store in the engine MEMORY",
    ),
    (
        "RENAME TABLE fencepost_lock TO hidden; ALTER TABLE hidden ENGINE = MyISAM; \
         CREATE VIEW fencepost_lock AS SELECT * FROM hidden",
        "DROP VIEW fencepost_lock; ALTER TABLE hidden ENGINE = InnoDB; RENAME TABLE hidden TO fencepost_lock",
        "a view or a temporary table as fencepost_lock",
    ),
];

// G128, G178
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_is_answered_once_the_server_may_lose_it() {
    common::skip_unless!(available());
    let server = MariaDb::started(&["log-bin", "sync-binlog=1", "binlog-format=ROW"]);
    server.sql(&format!("GRANT READ_ONLY ADMIN ON *.* TO {NAME}@'127.0.0.1'"));
    let records = records(settings(&server)).await;
    let mut version = {
        let one = first("a");
        applied(records.commit(one.clone()).await);
        one.version
    };
    for (change, undo, words) in CHANGES {
        server.sql(change);
        let says = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains(words));
        let two = next("a", version);
        let refused = records.commit(two.clone()).await.expect_err(change);
        assert!(refused.to_string().contains(words), "{change}: {refused}");
        healthy(&*records, says).await;
        server.sql(undo);
        serves(&*records).await;
        // Whether it took effect was not known.
        records.commit(two.clone()).await.expect("it serves");
        version = two.version;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_table_in_the_place_of_a_table_is_refused() {
    common::skip_unless!(available());
    let server = MariaDb::started(&[
        "init-connect=CREATE TEMPORARY TABLE fencepost.fencepost_server (namespace varbinary(64), id bigint, \
         counter bigint, time bigint) ENGINE = MEMORY",
    ]);
    let words = "a view or a temporary table as fencepost_server";
    is_refused(settings(&server), words).await;
    // No connection serves before it was looked at.
    let refused = unready(settings(&server))
        .commit(first("a"))
        .await
        .expect_err("a refusal");
    assert!(refused.to_string().contains(words), "{refused}");
}

/// Settings of a session, each of which would break a statement of the store, or change what it does.
const HOSTILE: &str =
    "SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH',
    sql_safe_updates = 1, sql_select_limit = 1, max_join_size = 1, sql_big_selects = 0, sql_auto_is_null = 1,
    autocommit = 0, completion_type = 'CHAIN', tx_read_only = 1, tx_isolation = 'SERIALIZABLE', lock_wait_timeout = 1,
    innodb_lock_wait_timeout = 1, foreign_key_checks = 0, unique_checks = 0, time_zone = '+13:00', timestamp = 86400,
    big_tables = 1, sql_buffer_result = 1, group_concat_max_len = 4, sql_quote_show_create = 0, wait_timeout = 1,
    interactive_timeout = 1, idle_transaction_timeout = 1, idle_write_transaction_timeout = 1,
    idle_readonly_transaction_timeout = 1, net_read_timeout = 1, net_write_timeout = 1, max_sort_length = 64,
    tmp_table_size = 1024, max_heap_table_size = 16384, tmp_disk_table_size = 1024, join_buffer_size = 128,
    sort_buffer_size = 1024, max_error_count = 0, max_recursive_iterations = 0, in_predicate_conversion_threshold = 2,
    eq_range_index_dive_limit = 1, old_mode = 'NO_PROGRESS_INFO', low_priority_updates = 1, sql_warnings = 1,
    default_storage_engine = 'MyISAM', default_tmp_storage_engine = 'MEMORY', default_week_format = 7,
    div_precision_increment = 0, character_set_client = 'latin1', character_set_connection = 'utf16',
    collation_connection = 'utf16_bin', character_set_results = 'utf16', lc_time_names = 'de_DE',
    lc_messages = 'de_DE', innodb_strict_mode = 0, innodb_table_locks = 0, check_constraint_checks = 0,
    explicit_defaults_for_timestamp = 0, optimizer_switch = 'index_merge=off,mrr=on,semijoin=off',
    updatable_views_with_limit = 'NO', system_versioning_alter_history = 'KEEP', keep_files_on_create = 1,
    alter_algorithm = 'COPY', use_stat_tables = 'PREFERABLY', standard_compliant_cte = 0, query_alloc_block_size = 1024,
    range_alloc_block_size = 4096, transaction_alloc_block_size = 1024, profiling = 1,
    max_session_mem_used = 1000000, max_statement_time = 0.000001";

// G149
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_settings_of_the_server_do_not_change_what_statements_do() {
    common::skip_unless!(available());
    // A session of a user without SUPER begins so, in a transaction that nothing ends.
    let hostile = HOSTILE.split_whitespace().collect::<Vec<_>>().join(" ");
    let server = MariaDb::started(&[&format!("init-connect={hostile}; BEGIN")]);
    record_contract::all_but_messages(async || empty(&server).await).await;
}
