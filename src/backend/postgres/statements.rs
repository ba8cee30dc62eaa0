//! The tables, and every statement on them.

use std::sync::Arc;

use tokio_postgres::types::Type;

/// The clock of the database now, in microseconds since 1970. `now()` would be the start of the transaction, and one that
/// waits for a lock would use a time that is over.
const NOW: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

/// Whether nobody has a reservation. It ends when the clock goes back: the lock's clock would stand still before its end.
const FREE: &str = "(l.reserved_until > {now} + l.ahead AND {now} >= l.time) IS NOT TRUE";

/// A condition that is evaluated once, before a statement locks rows: its transaction waits for a lock only so long.
/// Behind a pooler there is no other way: the settings of a session would be those of another one, and a `SET LOCAL` would
/// be another statement. For the same reason it sets what a durable commit needs, and fails, with this name of a setting that it
/// is not, where a crash would lose the commit.
const LIMITED: &str = "\
(SELECT set_config('lock_timeout', CASE
        WHEN current_setting('fsync') <> 'on' THEN 'the server has fsync = off'
        WHEN current_setting('full_page_writes') <> 'on' THEN 'the server has full_page_writes = off'
        WHEN {weak} THEN 'a table is UNLOGGED' ELSE '{limit}' END, true)
    || set_config('synchronous_commit', 'on', true)) IS NOT NULL
    AND ";

/// The columns of a look. All tables that are missing are left out, as the handshake comes before they are created.
const CONDITIONS: &str = "\
pg_backend_pid()::bigint, current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
    current_setting('client_min_messages'), (date_part('epoch', pg_conf_load_time()) * 1000000)::bigint,
    {weak},
    {tables}::text";
/// Whether a crash empties a table.
const WEAK: &str =
    "EXISTS (SELECT FROM pg_class WHERE oid = ANY({tables}) AND (relkind <> 'r' OR relpersistence <> 'p'))";
/// How many columns these are.
pub const COLUMNS: usize = 9;

/// The tables.
const NAMES: [&str; 4] = ["lock", "part", "server", "store"];

/// What is created. `expected` to `latest` carry the conditions of a commit into ON CONFLICT, and are null once a root
/// was replaced. A lock's clock is `greatest(time, now) + ahead`: `ahead` grows by the time for which the database's
/// clock went back. No index but the primary keys, so that replacing a root touches none.
const TABLES: &str = "\
CREATE TABLE IF NOT EXISTS {lock} (
    id             bytea PRIMARY KEY,
    version        bigint NOT NULL,
    time           bigint NOT NULL,
    ahead          bigint NOT NULL,
    reserved_for   bigint,
    reserved_until bigint,
    next_for       bigint,
    next_period    bigint,
    expected       bigint,
    not_before     bigint,
    not_after      bigint,
    latest         bigint,
    body           bytea NOT NULL
) WITH (fillfactor = 50, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {lock} ALTER body SET STORAGE MAIN;
CREATE TABLE IF NOT EXISTS {part} (
    id     bytea NOT NULL,
    number bigint NOT NULL,
    body   bytea NOT NULL,
    PRIMARY KEY (id, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE IF NOT EXISTS {server} (
    namespace bytea NOT NULL,
    id        bigint NOT NULL,
    counter   bigint NOT NULL,
    time      bigint NOT NULL,
    PRIMARY KEY (namespace, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE TABLE IF NOT EXISTS {store} (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    format      integer NOT NULL,
    floor       bigint NOT NULL DEFAULT 0,
    system      bigint,
    timeline    bigint,
    since       bigint,
    all_confirm boolean,
    longest     bigint NOT NULL DEFAULT 0,
    tables      text,
    replication text,
    guarantee   text
);
INSERT INTO {store} (format) VALUES (1) ON CONFLICT DO NOTHING;
";

/// Each statement with the types of its parameters and its text.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident($($type:ident),*) = $text:expr;)*) => {
        /// A statement.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Statement {
            $($(#[$doc])* $name),*
        }

        impl Statement {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            fn template(self) -> &'static str {
                match self {
                    $(Self::$name => $text),*
                }
            }

            /// Whether it commits something that must be durable when it is answered.
            pub fn commits(self) -> bool {
                use Statement::{Admit, Confirm, Enter, Remove, Try, Write, WriteParts};
                matches!(self, Write | WriteParts | Remove | Confirm | Try | Enter | Admit)
            }

            /// The types of its parameters.
            pub fn types(self) -> &'static [Type] {
                match self {
                    $(Self::$name => &[$(Type::$type),*]),*
                }
            }
        }
    };
}

statements! {
    /// Commits roots that put and delete no parts. The rows must be sorted by id: locks are then taken in this order, so
    /// that batches do not deadlock. It must not be sorted here, because the guards of a first write are evaluated as
    /// its row is inserted, and not before the batch has waited for the locks of others.
    Write(
        BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY,
        BYTEA_ARRAY
    ) = "\
INSERT INTO {lock} AS l
    (id, version, time, ahead, reserved_for, expected, not_before, not_after, latest, body)
SELECT i.id, i.version, {now}, 0, i.server, i.expected, i.not_before, i.not_after, i.latest, i.body
FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::bytea[])
    AS i(id, expected, version, not_before, not_after, latest, server, floor, body)
WHERE {limited}(i.expected IS NULL) = ((SELECT true FROM {lock} o WHERE o.id = i.id) IS NULL)
    AND (i.expected IS NOT NULL OR (
        {now} >= i.not_before AND {now} < i.not_after AND {now} <= i.latest
        AND (SELECT s.floor FROM {store} s) <= i.floor))
ON CONFLICT (id) DO UPDATE SET version = excluded.version,
    (time, ahead) = (SELECT c.now, l.ahead + greatest(0, l.time - c.now) FROM (SELECT {now} AS now) c),
    reserved_for = nullif(l.next_for, excluded.reserved_for), reserved_until =
        CASE WHEN l.next_for <> excluded.reserved_for THEN greatest(l.time, {now}) + l.ahead + l.next_period END,
    next_for = NULL, next_period = NULL, expected = NULL, not_before = NULL, not_after = NULL, latest = NULL,
    body = excluded.body
WHERE l.version = excluded.expected
    AND greatest(l.time, {now}) + l.ahead >= excluded.not_before
    AND greatest(l.time, {now}) + l.ahead < excluded.not_after
    AND {now} <= excluded.latest
    AND (l.reserved_for = excluded.reserved_for OR {free})
RETURNING l.id, l.time, l.ahead, 1 / (l.expected IS NULL)::integer";
    /// The same with parts, which are written only where the root was.
    WriteParts(
        BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY,
        BYTEA_ARRAY, BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, BYTEA_ARRAY, INT8_ARRAY, BYTEA_ARRAY
    ) = "\
WITH applied AS ({write}),
gone AS (
    DELETE FROM {part} p USING unnest($10::bytea[], $11::bigint[], $12::bigint[]) AS d(id, first, after)
    WHERE p.id = d.id AND p.number >= d.first AND p.number < d.after AND d.id IN (SELECT id FROM applied)),
put AS (
    INSERT INTO {part} (id, number, body)
    SELECT p.id, p.number, p.body FROM unnest($13::bytea[], $14::bigint[], $15::bytea[]) AS p(id, number, body)
    WHERE p.id IN (SELECT id FROM applied)
    ON CONFLICT (id, number) DO UPDATE SET body = excluded.body)
SELECT * FROM applied";
    /// Reserves rows that were refused because of their version, or lets their servers follow those that have reservations.
    Reserve(BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY) = "\
UPDATE {lock} l SET
    reserved_for = CASE WHEN {free} THEN r.server ELSE l.reserved_for END,
    reserved_until = CASE WHEN {free} THEN greatest(l.time, {now}) + l.ahead + r.period ELSE l.reserved_until END,
    next_for = CASE WHEN {free} THEN l.next_for ELSE r.server END,
    next_period = CASE WHEN {free} THEN l.next_period ELSE r.period END
FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[]) AS r(id, expected, server, period)
WHERE {limited}l.id = r.id
    AND CASE WHEN {free} THEN l.version IS DISTINCT FROM r.expected
        ELSE l.reserved_for <> r.server AND l.next_for IS NULL END";
    /// Those of these rows that transactions have locked.
    Locked(BYTEA_ARRAY) = "\
WITH free AS (SELECT id FROM {lock} WHERE id = ANY($1) FOR NO KEY UPDATE SKIP LOCKED)
SELECT id FROM {lock} WHERE id = ANY($1) AND id NOT IN (SELECT id FROM free)";
    /// Reads roots.
    Read(BYTEA_ARRAY, INT8_ARRAY) = "\
SELECT {now}, s.floor, l.version, l.time, l.ahead, CASE WHEN {now} >= l.time THEN l.reserved_for END,
    l.reserved_until,
    CASE WHEN l.version IS DISTINCT FROM r.known THEN l.body END, pg_is_in_recovery()
FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS r(id, known, n)
CROSS JOIN {store} s
LEFT JOIN LATERAL (SELECT * FROM {lock} o WHERE o.id = r.id LIMIT 1) l ON true ORDER BY r.n";
    /// Reads parts of a root.
    Parts(BYTEA, INT8, INT8) = "\
SELECT number, body FROM {part} WHERE id = $1 AND number >= $2 AND number < $3 ORDER BY number";
    /// Lists roots, those that were not written for a period if there is one.
    Page(BYTEA, BYTEA, BYTEA, INT8, INT8) = "\
SELECT id, {now}, version, time, ahead, body FROM {lock}
WHERE id >= $1 AND id > $2 AND id < $3 AND ($5 = 0 OR time < {now} - $5) ORDER BY id LIMIT $4";
    /// Raises the floor and removes roots.
    Remove(BYTEA_ARRAY, INT8_ARRAY, INT8) = "\
WITH raised AS (UPDATE {store} SET floor = greatest(floor, $3)),
gone AS (
    DELETE FROM {lock} l USING unnest($1::bytea[], $2::bigint[]) AS r(id, version)
    WHERE {limited}l.id = r.id AND l.version = r.version RETURNING l.id)
DELETE FROM {part} p USING gone WHERE p.id = gone.id";
    /// Counts a beat.
    Beat(BYTEA, INT8) = "\
WITH stale AS (DELETE FROM {server} WHERE namespace = $1 AND time < {now} - 3600000000 AND id <> $2),
own AS (
    INSERT INTO {server} AS s (namespace, id, counter, time) SELECT $1, $2, {now}, {now} WHERE {limited}true
    ON CONFLICT (namespace, id) DO UPDATE SET counter = s.counter + 1, time = excluded.time RETURNING id, counter)
SELECT id, counter FROM own UNION ALL SELECT id, counter FROM {server} WHERE namespace = $1 AND id <> $2";
    /// Removes a counter.
    Leave(BYTEA, INT8) = "DELETE FROM {server} WHERE {limited}namespace = $1 AND id = $2";
    /// Sends messages.
    Notify(TEXT_ARRAY, TEXT_ARRAY) = "SELECT pg_notify(n.channel, n.payload) FROM unnest($1::text[], $2::text[]) AS n(channel, payload)";
    /// A commit that changes nothing. Its answer says that those before it are as durable. It locks no row, on which others
    /// would wait until the standby has it.
    Confirm() = "SELECT pg_logical_emit_message(true, 'fencepost', '')::text";
    /// A commit that changes nothing, and needs what other commits need.
    Try() = "\
WITH locks AS (DELETE FROM {lock} WHERE false), parts AS (DELETE FROM {part} WHERE false)
UPDATE {store} SET floor = floor WHERE {limited}true";
    /// What the server is set to.
    Look() = "SELECT {conditions}";
    /// Whether a process is seen to wait for standbys, looked for again and again for about half a second at most: the function
    /// shows the moment at which it is called.
    Waits(INT4) = "\
SELECT EXISTS (SELECT FROM generate_series(1, 50000) n, LATERAL pg_stat_get_activity($1 + 0 * n) a
    WHERE a.wait_event_type = 'IPC' AND a.wait_event = 'SyncRep')";
    /// Ends the wait of a process.
    Cancel(INT4) = "SELECT pg_cancel_backend($1)";
    /// As [`Self::Look`], and what a server says of itself before anything else. A session of its own, if it is one, loses
    /// the limits of time that a role or database sets and that not each version knows.
    Handshake(BOOL) = "\
SELECT {conditions}, current_setting('server_version_num')::bigint, pg_is_in_recovery(),
    current_setting('transaction_read_only') = 'on', current_setting('transaction_isolation'),
    current_setting('plan_cache_mode'), (SELECT system_identifier FROM pg_control_system()),
    CASE WHEN pg_is_in_recovery() THEN 0
        ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END,
    (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND c.relname !~ '^fencepost_' AND n.nspname !~ '^(pg_|information_schema$)'),
    (SELECT count(set_config(t.name, '0', false)) FROM unnest(ARRAY['idle_session_timeout', 'transaction_timeout']) AS t(name)
     WHERE $1 AND current_setting(t.name, true) IS NOT NULL)";
    /// What keeps commits from succeeding: another process that has locked a table, or standbys that do not answer.
    Blocked() = "\
SELECT l.pid::bigint, format('process %s has locked the table %s (%s)', l.pid, l.relation::regclass, l.mode)
FROM pg_locks l
WHERE l.locktype = 'relation' AND l.relation = ANY({tables}) AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.granted AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND l.pid <> pg_backend_pid()
UNION ALL
SELECT 0, format('no standby is connected, and synchronous_standby_names = %L', current_setting('synchronous_standby_names'))
WHERE current_setting('synchronous_standby_names') <> '' AND NOT EXISTS (SELECT FROM pg_stat_replication)
UNION ALL
SELECT 0, format('commits wait for the standbys of synchronous_standby_names = %L', current_setting('synchronous_standby_names'))
FROM pg_stat_activity a
WHERE a.wait_event = 'SyncRep' AND a.usename = current_user AND clock_timestamp() - a.query_start > interval '500 ms'
LIMIT 1";
    /// Notes which database the store is in ($1, $2), whether all standbys confirm what is committed there ($7, which rises only
    /// by a commit that they confirm, $8), and when the quarantine began: with empty tables in the place of those that this
    /// server knew ($4), with another database, unless a standby was promoted that has all ($6) and no quarantine runs, and if
    /// only this server has seen another one ($5) or another table of the store ($9), if a table is another one than was noted,
    /// and if something is missing that this server wrote ($12). One that is spared has no beginning, so that another server
    /// may still begin it. Changes nothing in a store that was opened with another replication ($10) or guarantee ($11).
    Enter(INT8, INT8, INT4, BOOL, BOOL, BOOL, BOOL, BOOL, INT8, TEXT, TEXT, BOOL) = "\
UPDATE {store} SET system = $1, timeline = $2, tables = {tables}::text, all_confirm = $7 AND ($8 OR all_confirm IS TRUE),
    replication = $10, guarantee = $11,
    since = CASE
        WHEN $12 THEN {now}
        WHEN system IS NULL THEN CASE WHEN $4 THEN {now} END
        WHEN (system, timeline) IS DISTINCT FROM ($1, $2) AND (since > {now} - longest
                OR NOT ($6 AND system = $1 AND all_confirm IS TRUE))
            OR tables <> {tables}::text THEN {now}
        WHEN (system, timeline) IS DISTINCT FROM ($1, $2) THEN NULL
        WHEN ($5 OR $9 NOT IN (0, tableoid::bigint)) AND since IS NULL THEN {now}
        ELSE since END
WHERE {limited}format = $3 AND (replication IS NULL OR (replication, guarantee) = ($10, $11))
    AND ($12 OR replication IS NULL OR (system, timeline, tables, all_confirm)
            IS DISTINCT FROM ($1, $2, {tables}::text, $7 AND ($8 OR all_confirm IS TRUE))
        OR ($5 OR $9 NOT IN (0, tableoid::bigint)) AND since IS NULL)";
    /// The format, the beginning of the quarantine, whether all standbys confirm, and which table this is.
    Store() = "SELECT format, since, {now}, all_confirm IS TRUE, tableoid::bigint, replication, guarantee FROM {store}";
    /// The beginning of the quarantine, how large the table is for its rows, and the session with the oldest snapshot or
    /// transaction, which any role may see. A worker of autovacuum, which has no role, holds nothing back.
    Probe(TEXT, INT8_ARRAY) = "\
SELECT s.since, {now}, pg_stat_get_live_tuples($1::text::regclass), pg_stat_get_dead_tuples($1::text::regclass),
    pg_relation_size($1::text::regclass),
    ARRAY(SELECT a.pid::bigint FROM pg_stat_activity a WHERE a.pid = ANY($2) AND a.state = 'active'),
    o.pid::bigint, o.xid::text::bigint, s.replication, s.guarantee
FROM {store} s LEFT JOIN LATERAL (
    SELECT a.pid, x.xid FROM pg_stat_activity a, unnest(ARRAY[a.backend_xmin, a.backend_xid]) AS x(xid)
    WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND a.pid <> pg_backend_pid() AND x.xid IS NOT NULL
    ORDER BY age(x.xid) DESC LIMIT 1) o ON true";
    /// Raises the longest TTL that any server may have granted, and returns it.
    RaiseLongestTtl(INT8) = "\
WITH raised AS (UPDATE {store} SET longest = $1 WHERE {limited}longest < $1)
SELECT greatest(longest, $1) FROM {store}";
    /// Ends the quarantine.
    /// Sets no null, which would say that nobody has noted the promotion: a server that was cut off would begin it anew.
    Admit() = "UPDATE {store} SET since = 0 WHERE {limited}true";
}

/// The texts of the statements, on the tables of one schema.
#[derive(Debug, Clone)]
pub struct Texts {
    /// What creates the tables.
    pub tables: String,
    /// The name of the table of roots.
    pub lock: String,
    statements: Arc<[String]>,
}

impl Texts {
    /// For the tables of this schema. With a limit each statement sets for how many milliseconds it waits for a lock.
    pub fn of(schema: &str, limit: Option<u128>) -> Self {
        let limited = limit.map_or_else(String::new, |limit| LIMITED.replace("{limit}", &limit.to_string()));
        let table = |name: &str| format!("\"{schema}\".fencepost_{name}");
        let tables = NAMES
            .map(|name| format!("to_regclass('{}')::oid", table(name)))
            .join(", ");
        let tables = format!("ARRAY[{tables}]");
        let fill = |text: &str| {
            let mut text = text
                .replace("{write}", Statement::Write.template())
                .replace("{conditions}", CONDITIONS)
                .replace("{limited}", &limited)
                .replace("{weak}", WEAK)
                .replace("{tables}", &tables)
                .replace("{free}", FREE)
                .replace("{now}", NOW);
            for name in NAMES {
                text = text.replace(&format!("{{{name}}}"), &table(name));
            }
            text
        };
        Self {
            tables: fill(TABLES),
            lock: table("lock"),
            statements: Statement::ALL
                .iter()
                .map(|statement| fill(statement.template()))
                .collect(),
        }
    }

    /// The text of a statement.
    pub fn get(&self, statement: Statement) -> &str {
        &self.statements[statement as usize]
    }
}
