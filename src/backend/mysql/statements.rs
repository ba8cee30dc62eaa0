//! The tables, and each statement on them. Values are written into the text: numbers, and bytes as hexadecimal digits.

use std::fmt::Write as _;

use crate::backend::record::store::{Commit, Version};
use crate::backend::sql::dialect::{Entry, FORMAT, Page, Row};
use crate::backend::sql::rows::{number, version};
use crate::backend::sql::settings::Terms;
use crate::backend::sql::written::Wrote;

/// The clock of the database now, in microseconds since 1970. NOW() would be the start of the statement, and one that
/// waits for a lock would use a time that is over.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// What is created. A lock's clock is `GREATEST(time, now) + ahead`: `ahead` grows by the time for which the database's
/// clock went back since `replaced`, the time of the root that the last commit replaced. The store comes last: where it
/// is, the others are.
pub const TABLES: [&str; 5] = [
    "\
CREATE TABLE IF NOT EXISTS fencepost_lock (
    id             varbinary(576) NOT NULL PRIMARY KEY,
    version        bigint NOT NULL,
    replaced       bigint NOT NULL,
    time           bigint NOT NULL,
    ahead          bigint NOT NULL,
    reserved_for   bigint,
    reserved_until bigint,
    next_for       bigint,
    next_period    bigint,
    body           mediumblob NOT NULL
) ENGINE = InnoDB",
    "\
CREATE TABLE IF NOT EXISTS fencepost_part (
    id     varbinary(576) NOT NULL,
    number bigint NOT NULL,
    body   mediumblob NOT NULL,
    PRIMARY KEY (id, number)
) ENGINE = InnoDB",
    "\
CREATE TABLE IF NOT EXISTS fencepost_server (
    namespace varbinary(64) NOT NULL,
    id        bigint NOT NULL,
    counter   bigint NOT NULL,
    time      bigint NOT NULL,
    PRIMARY KEY (namespace, id)
) ENGINE = InnoDB",
    "\
CREATE TABLE IF NOT EXISTS fencepost_store (
    one         tinyint NOT NULL PRIMARY KEY,
    format      integer NOT NULL,
    floor       bigint NOT NULL,
    server      bigint,
    epoch       bigint NOT NULL DEFAULT 0,
    since       bigint,
    longest     bigint NOT NULL DEFAULT 0,
    confirmed   bigint,
    id          bigint NOT NULL DEFAULT 0,
    replication varchar(16),
    guarantee   varchar(16)
) ENGINE = InnoDB",
    "INSERT IGNORE INTO fencepost_store (one, format, floor) VALUES (1, 1, 0)",
];

/// Whether the table of locks is the one with which the store was entered. It has the id of the store as the version of a row
/// that is no lock's: all others begin with the name of their namespace.
const IS_MARKED: &str =
    "EXISTS (SELECT 1 FROM fencepost_lock marker WHERE marker.id = '' AND marker.version = fencepost_store.id)";

/// Which tables the store has; 0 while it was not entered with them.
fn tables() -> String {
    format!("IF({IS_MARKED}, id, 0)")
}

/// Whether the database has what this server wrote last.
fn has(last: Option<&Wrote>) -> String {
    last.map_or_else(
        || "1".into(),
        |last| {
            format!(
                "{NOW} >= {} OR EXISTS (SELECT 1 FROM fencepost_lock last WHERE last.id = {} AND last.time + last.ahead >= {})",
                number(last.kept_until().0),
                hex(&last.id),
                number(last.stamp.clock.0)
            )
        },
    )
}

/// Which tables the store has, and whether they have what this server wrote last.
pub fn look(last: Option<&Wrote>) -> String {
    format!("SELECT {}, {} FROM fencepost_store", tables(), has(last))
}

/// Bytes.
fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)]));
    let mut text = String::with_capacity(2 * bytes.len() + 3);
    text.push_str("x'");
    text.extend(bytes.iter().flat_map(digits));
    text.push('\'');
    text
}

/// A list of bytes.
fn list<'a>(ids: impl Iterator<Item = &'a [u8]>) -> String {
    ids.map(hex).collect::<Vec<_>>().join(", ")
}

/// A version that may be absent.
fn optional(at: Option<Version>) -> String {
    at.map_or_else(|| "NULL".into(), |at| version(at).to_string())
}

/// About how many bytes the statements of a commit have.
pub fn size(row: &Row<'_>) -> usize {
    let part = |(_, body): &(u64, Vec<u8>)| 2 * (row.id.len() + body.len()) + 512;
    2_048 + 6 * row.id.len() + 2 * row.commit.body.len() + row.commit.put.iter().map(part).sum::<usize>()
}

/// Commits a root. Its row is changed if that took effect. The guards of a first write are evaluated before it waits for
/// another one of its row; its floor is that of the moment at which it has seen no root, so that it cannot miss a
/// removal.
pub fn commit(row: &Row<'_>) -> String {
    let Commit {
        version: to,
        not_before,
        not_after,
        latest,
        floor,
        server,
        ..
    } = row.commit;
    let (id, to, body) = (hex(row.id), version(*to), hex(&row.commit.body));
    let (not_before, not_after, latest) = (number(not_before.0), number(not_after.0), number(latest.0));
    match row.commit.expected.map(version) {
        None => format!(
            "INSERT INTO fencepost_lock (id, version, replaced, time, ahead, body)
             SELECT {id}, {to}, 0, {NOW}, 0, {body} FROM fencepost_store
             WHERE {NOW} >= {not_before} AND {NOW} < {not_after} AND {NOW} <= {latest} AND floor <= {floor}
                 AND NOT EXISTS (SELECT 1 FROM fencepost_lock WHERE id = {id})
             ON DUPLICATE KEY UPDATE replaced = fencepost_lock.replaced",
            floor = number(*floor)
        ),
        Some(expected) => format!(
            "UPDATE fencepost_lock SET replaced = time, time = {NOW}, ahead = ahead + GREATEST(0, replaced - time),
                 version = {to}, reserved_for = NULLIF(next_for, {server}),
                 reserved_until = IF(next_for <> {server}, time + ahead + next_period, NULL),
                 next_for = NULL, next_period = NULL, body = {body}
             WHERE id = {id} AND version = {expected}
                 AND GREATEST(time, {NOW}) + ahead >= {not_before} AND GREATEST(time, {NOW}) + ahead < {not_after}
                 AND {NOW} <= {latest}
                 AND (reserved_for = {server} OR {})",
            free(),
            server = number(server.0.get())
        ),
    }
}

/// Writes and deletes the parts of the commit before it, if it took effect.
pub fn parts(row: &Row<'_>) -> Vec<String> {
    let (id, commit) = (hex(row.id), row.commit);
    let (first, after) = (number(commit.delete.start), number(commit.delete.end));
    let mut script = Vec::new();
    if !commit.delete.is_empty() {
        script.push(format!(
            "DELETE FROM fencepost_part WHERE id = {id} AND number >= {first} AND number < {after} AND @applied = 1"
        ));
    }
    script.extend(commit.put.iter().map(|(part, body)| {
        format!(
            "INSERT INTO fencepost_part (id, number, body) SELECT {id}, {}, {} FROM DUAL WHERE @applied = 1
             ON DUPLICATE KEY UPDATE body = VALUES(body)",
            number(*part),
            hex(body)
        )
    }));
    if !script.is_empty() {
        script.insert(0, APPLIED.into());
    }
    script
}

/// Notes whether the statement before it changed a row.
const APPLIED: &str = "SET @applied = ROW_COUNT()";

/// When these roots were written.
pub fn written(rows: &[Row<'_>]) -> String {
    let ids = list(rows.iter().map(|row| row.id));
    format!("SELECT id, time, ahead FROM fencepost_lock WHERE id IN ({ids})")
}

/// Those of these rows that nobody has locked, and all of them.
pub fn locked(ids: &[&[u8]]) -> Vec<String> {
    let all = format!(
        "SELECT id FROM fencepost_lock WHERE id IN ({})",
        list(ids.iter().copied())
    );
    vec![format!("{all} FOR UPDATE SKIP LOCKED"), all]
}

/// Whether nobody has a reservation. It ends when the clock goes back: the lock's clock would stand still before its end.
fn free() -> String {
    format!("(reserved_until > {NOW} + ahead AND {NOW} >= time) IS NOT TRUE")
}

/// Reserves a row that was refused because of its version, or lets the server follow the one that has a reservation. Columns
/// are set in this order, and the later ones decide whether the row is free.
pub fn reserve(row: &Row<'_>) -> String {
    let period = i64::try_from(row.commit.reserve.unwrap_or_default().as_micros()).unwrap_or(i64::MAX);
    format!(
        "UPDATE fencepost_lock SET next_for = IF({free}, next_for, {server}),
             next_period = IF({free}, next_period, {period}), reserved_for = IF({free}, {server}, reserved_for),
             reserved_until = IF({free}, GREATEST(time, {NOW}) + ahead + {period}, reserved_until)
         WHERE id = {id} AND IF({free}, NOT version <=> {expected}, reserved_for <> {server} AND next_for IS NULL)",
        free = free(),
        server = number(row.commit.server.0.get()),
        id = hex(row.id),
        expected = optional(row.commit.expected)
    )
}

/// Reads a root.
pub fn read(id: &[u8], known: Option<Version>) -> String {
    format!(
        "SELECT {NOW}, version, time, ahead, IF({NOW} >= time, reserved_for, NULL), reserved_until,
             IF(version <=> {}, NULL, body) FROM fencepost_lock WHERE id = {}",
        optional(known),
        hex(id)
    )
}

/// The clock, the floor, and which tables the store has. It comes behind the roots: where one is absent, the floor of its
/// removal is there.
pub fn store() -> String {
    format!("SELECT {NOW}, floor, {} FROM fencepost_store", tables())
}

/// Reads parts of a root.
pub fn read_parts(id: &[u8], first: u64, after: u64) -> String {
    format!(
        "SELECT number, body FROM fencepost_part WHERE id = {} AND number >= {} AND number < {} ORDER BY number",
        hex(id),
        number(first),
        number(after)
    )
}

/// Lists so many roots behind this one.
pub fn page(page: &Page, after: &[u8], limit: i64) -> String {
    format!(
        "SELECT id, {NOW}, version, time, ahead, body FROM fencepost_lock
         WHERE id >= {} AND id > {} AND id < {} AND ({unused} = 0 OR time < {NOW} - {unused}) ORDER BY id LIMIT {limit}",
        hex(&page.first),
        hex(after),
        hex(&page.end),
        unused = page.unused_for
    )
}

/// Removes roots with their parts, and raises the floor.
pub fn remove(rows: &[(Vec<u8>, i64)], floor: i64) -> Vec<String> {
    let mut script = Vec::new();
    for (id, version) in rows {
        let id = hex(id);
        script.extend([
            format!("DELETE FROM fencepost_lock WHERE id = {id} AND version = {version}"),
            APPLIED.into(),
            format!("DELETE FROM fencepost_part WHERE id = {id} AND @applied = 1"),
        ]);
    }
    script.push(format!("UPDATE fencepost_store SET floor = GREATEST(floor, {floor})"));
    script
}

/// Counts a beat, and returns all counters. In separate transactions: servers that hold their own row would wait for each
/// other's.
pub fn beat(namespace: &[u8], server: i64) -> Vec<String> {
    let namespace = hex(namespace);
    vec![
        format!(
            "INSERT INTO fencepost_server (namespace, id, counter, time) VALUES ({namespace}, {server}, {NOW}, {NOW})
             ON DUPLICATE KEY UPDATE counter = counter + 1, time = VALUES(time)"
        ),
        format!(
            "DELETE FROM fencepost_server WHERE namespace = {namespace} AND time < {NOW} - 3600000000 AND id <> {server}"
        ),
        format!("SELECT id, counter FROM fencepost_server WHERE namespace = {namespace}"),
    ]
}

/// Removes a counter.
pub fn leave(namespace: &[u8], server: i64) -> String {
    let namespace = hex(namespace);
    format!("DELETE FROM fencepost_server WHERE namespace = {namespace} AND id = {server}")
}

/// What a server finds in the store that it enters.
struct Found {
    /// Whether this server may use the store.
    is_open: String,
    /// Whether another server has the store, or tables that were left for another one.
    has_moved: String,
    /// Whether tables are not those that were used here, or older. Another session has perhaps noted that since.
    is_other: String,
    /// Whether they are not those that this server knew.
    is_new: String,
}

impl Found {
    fn of(entry: &Entry) -> Self {
        let Entry { last, is_missing, .. } = entry;
        Self {
            is_open: format!(
                "format = {FORMAT} AND (replication IS NULL OR {})",
                terms(entry, " AND ")
            ),
            has_moved: format!("(NOT server <=> {} OR epoch < {})", entry.origin.system, least(entry)),
            is_other: format!(
                "({is_missing} AND id = {} OR server IS NOT NULL AND NOT {IS_MARKED})",
                last.tables
            ),
            is_new: format!("({} NOT IN (0, id) AND since IS NULL)", last.tables),
        }
    }

    /// Whether something is to be noted.
    fn is_to_note(&self) -> String {
        let Self {
            is_open,
            has_moved,
            is_other,
            is_new,
        } = self;
        format!("({is_open} AND ({has_moved} OR {is_other} OR {is_new} OR id = 0 OR replication IS NULL)) IS TRUE")
    }
}

fn terms(entry: &Entry, between: &str) -> String {
    let Terms { replication, guarantee } = &entry.terms;
    format!("replication = '{replication}'{between}guarantee = '{guarantee}'")
}

/// The lowest epoch: that of the last one, and more at another server.
fn least(entry: &Entry) -> i64 {
    let last = entry.last;
    last.timeline + i64::from(last.timeline > 0 && last.system != entry.origin.system)
}

/// The row of the store, and whether something is to be noted there.
pub fn entered(entry: &Entry) -> String {
    format!(
        "SELECT format, since, {NOW}, epoch, {}, replication, guarantee, {} FROM fencepost_store",
        tables(),
        Found::of(entry).is_to_note()
    )
}

/// Notes which server the store is on, and when a quarantine began. The epoch rises with each change of the server: one whose
/// tables have a lower one than `least` was left for another one since. Tables that are new, or older than before, get an
/// id that no session knows: `id`, which nobody has used. Columns are set in this order. The row is locked first, because
/// the statement that waits for it would look for the marker as it was before.
pub fn enter(entry: &Entry, id: i64) -> Vec<String> {
    let (found, server, least) = (Found::of(entry), entry.origin.system, least(entry));
    let Found {
        is_open,
        has_moved,
        is_other,
        is_new,
    } = &found;
    vec![
        "SELECT one FROM fencepost_store FOR UPDATE".into(),
        format!(
            "UPDATE fencepost_store SET
                 since = IF({is_other} OR {is_new} OR {has_moved} AND (server IS NOT NULL OR {least} > 0), {NOW}, since),
                 epoch = IF({has_moved}, GREATEST(epoch + 1, {least}), epoch),
                 id = IF(id = 0 OR {is_other}, {id}, id), server = {server}, {}
             WHERE {}",
            terms(entry, ", "),
            found.is_to_note()
        ),
        format!(
            "INSERT INTO fencepost_lock (id, version, replaced, time, ahead, body)
             SELECT '', id, 0, 0, 0, '' FROM fencepost_store WHERE {is_open} AND NOT {IS_MARKED}
             ON DUPLICATE KEY UPDATE version = VALUES(version)"
        ),
        entered(entry),
    ]
}

/// A commit that changes nothing else.
pub fn confirm() -> String {
    format!("UPDATE fencepost_store SET confirmed = {NOW}")
}

/// Raises the longest TTL that any server may have granted, and returns it.
pub fn raise_longest_ttl(ttl: i64) -> Vec<String> {
    vec![
        format!("UPDATE fencepost_store SET longest = {ttl} WHERE longest < {ttl}"),
        "SELECT longest FROM fencepost_store".into(),
    ]
}

/// Ends the quarantine.
/// Sets no null, which would say that nobody has noted the new tables: a server that knew others would begin it anew.
pub const ADMIT: &str = "UPDATE fencepost_store SET since = 0";

/// The quarantine, which server and tables the store is on, whether they have what this server wrote last, what the store was
/// opened with, and those of these sessions that still run something.
pub fn check_server(stuck: &[i64], last: Option<&Wrote>) -> Vec<String> {
    let mut script = vec![format!(
        "SELECT since, {NOW}, server, epoch, {}, {}, replication, guarantee FROM fencepost_store",
        tables(),
        has(last)
    )];
    if !stuck.is_empty() {
        let mut text = "SELECT id FROM information_schema.processlist WHERE command <> 'Sleep' AND id IN (0".to_owned();
        for process in stuck {
            let _ = write!(text, ", {process}");
        }
        script.push(text + ")");
    }
    script
}
