//! What the statements are given, and what they return.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tokio_postgres::types::ToSql;

use super::connection::Connection;
use super::messages::{channel, encode};
use super::statements::Statement;
use crate::backend::record::store::{Commit, Message, Root, Stamp, Version};
use crate::backend::sql::dialect::{self, Entry, FORMAT, Origin, Page, Row, ServerCheck, Stored, Use, Warning};
use crate::backend::sql::error::SqlError;
use crate::backend::sql::rows::{ReadRow, Written, number, root, version};
use crate::backend::sql::settings::Terms;
use crate::backend::sql::written::Wrote;
use crate::name::LockName;

/// The key of the lock under which the tables are created: "fencepos" in ASCII.
const CREATION: i64 = 0x6665_6e63_6570_6f73;
/// So many dead rows beyond ten for each living one are out of proportion.
const MANY_DEAD: i64 = 20_000;
/// What the log says of them.
const DEAD_ROWS: &str = "the table of locks has many dead rows, and statements become slow: an old transaction or \
                         replication slot keeps them; see docs/postgres.md";
/// For how many microseconds a snapshot may be the oldest one.
const OLD: i64 = 60_000_000;
/// What the log says of one that is older.
const OLD_SNAPSHOT: &str = "a transaction in the database keeps the rows that were replaced since it began, and statements \
                            become slow; see docs/postgres.md";

/// How many roots one answer has at most: so many of the largest size are no larger than an answer may be.
const ROWS: usize = 60;

/// A parameter of a statement.
type Value<'a> = &'a (dyn ToSql + Sync);

/// A value of each row.
fn column<T>(rows: &[Row<'_>], value: fn(&Commit) -> T) -> Vec<T> {
    rows.iter().map(|row| value(row.commit)).collect()
}

fn ids<'a>(rows: &[Row<'a>]) -> Vec<&'a [u8]> {
    rows.iter().map(|row| row.id).collect()
}

fn expected(commit: &Commit) -> Option<i64> {
    commit.expected.map(version)
}

fn server(commit: &Commit) -> i64 {
    number(commit.server.0.get())
}

/// What the store was opened with, from this column and the next one.
fn terms_of(row: &tokio_postgres::Row, replication: usize) -> Result<Option<Terms>, SqlError> {
    let kept: (Option<String>, Option<String>) = (row.try_get(replication)?, row.try_get(replication + 1)?);
    Ok(kept
        .0
        .zip(kept.1)
        .map(|(replication, guarantee)| Terms { replication, guarantee }))
}

#[async_trait]
impl dialect::Connection for Connection {
    fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    async fn create_tables(&self) -> Result<(), SqlError> {
        let tables = &self.texts.tables;
        self.batch(&format!("SELECT pg_advisory_xact_lock({CREATION}); {tables}"))
            .await
    }

    async fn enter(&self, entry: &Entry) -> Result<Option<Stored>, SqlError> {
        let Entry {
            origin,
            last,
            is_spared,
            is_missing,
            terms,
        } = entry;
        let (Origin { system, timeline, .. }, knew_tables) = (*origin, *last != Origin::default());
        let may_lack = origin.was_elsewhere(*last) && !is_spared;
        let values: [Value<'_>; 12] = [
            &system,
            &timeline,
            &FORMAT,
            &knew_tables,
            &may_lack,
            is_spared,
            &self.rules.all_confirm,
            &(self.rules.usage == Use::Hard),
            &last.tables,
            &terms.replication,
            &terms.guarantee,
            is_missing,
        ];
        self.query(Statement::Enter, &values).await?;
        let rows = self.query(Statement::Store, &[]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (since, now): (Option<i64>, i64) = (row.try_get(1)?, row.try_get(2)?);
        Ok(Some(Stored {
            format: row.try_get(0)?,
            origin: Origin {
                tables: row.try_get(4)?,
                ..*origin
            },
            quarantine: since.map(|since| (since, now)),
            all_confirm: row.try_get(3)?,
            terms: terms_of(row, 5)?,
        }))
    }

    /// The look behind each commit shows whether the tables are others.
    async fn write(&self, rows: &[Row<'_>], _: Option<&Wrote>) -> Result<Vec<(usize, Written)>, SqlError> {
        let (ids, expected, servers) = (ids(rows), column(rows, expected), column(rows, server));
        let versions = column(rows, |commit| version(commit.version));
        let not_before = column(rows, |commit| number(commit.not_before.0));
        let not_after = column(rows, |commit| number(commit.not_after.0));
        let latest = column(rows, |commit| number(commit.latest.0));
        let floors = column(rows, |commit| number(commit.floor));
        let bodies: Vec<&[u8]> = rows.iter().map(|row| row.commit.body.as_slice()).collect();
        let deletes = rows.iter().filter(|row| !row.commit.delete.is_empty());
        let range = |row: &Row<'_>| (number(row.commit.delete.start), number(row.commit.delete.end));
        let (gone, (first, after)): (Vec<_>, (Vec<_>, Vec<_>)) = deletes.map(|row| (row.id, range(row))).unzip();
        let puts = rows
            .iter()
            .flat_map(|row| row.commit.put.iter().map(|(part, body)| (row.id, part, body)));
        let (put, (parts, contents)): (Vec<_>, (Vec<_>, Vec<_>)) = puts
            .map(|(id, part, body)| (id, (number(*part), body.as_slice())))
            .unzip();
        let mut values: Vec<Value<'_>> = vec![
            &ids,
            &expected,
            &versions,
            &not_before,
            &not_after,
            &latest,
            &servers,
            &floors,
            &bodies,
        ];
        let mut statement = Statement::Write;
        if !gone.is_empty() || !put.is_empty() {
            statement = Statement::WriteParts;
            values.extend([&gone as Value<'_>, &first, &after, &put, &parts, &contents]);
        }
        let mut applied = Vec::new();
        for row in self.query(statement, &values).await? {
            let id: &[u8] = row.try_get(0)?;
            let written = Written {
                time: row.try_get(1)?,
                ahead: row.try_get(2)?,
            };
            applied.extend(ids.binary_search(&id).ok().map(|index| (index, written)));
        }
        Ok(applied)
    }

    async fn locked(&self, ids: &[&[u8]]) -> Result<HashSet<Vec<u8>>, SqlError> {
        let locked = self.query(Statement::Locked, &[&ids]).await?;
        locked.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn reserve(&self, rows: &[Row<'_>]) -> Result<(), SqlError> {
        let (expected, servers) = (column(rows, expected), column(rows, server));
        let periods = column(rows, |commit| {
            i64::try_from(commit.reserve.unwrap_or_default().as_micros()).unwrap_or(i64::MAX)
        });
        let values: [Value<'_>; 4] = [&ids(rows), &expected, &servers, &periods];
        self.query(Statement::Reserve, &values).await.map(drop)
    }

    async fn read(&self, rows: &[(&[u8], Option<Version>)]) -> Result<Vec<ReadRow>, SqlError> {
        let mut found = Vec::with_capacity(rows.len());
        for rows in rows.chunks(ROWS) {
            let (ids, known): (Vec<&[u8]>, Vec<_>) = rows.iter().map(|(id, known)| (*id, known.map(version))).unzip();
            found.extend(self.query(Statement::Read, &[&ids, &known]).await?);
        }
        let row = |row: &tokio_postgres::Row| {
            if row.try_get(8)? {
                return Err(SqlError::Failed("the server became a standby".into()));
            }
            let root = match row.try_get::<_, Option<i64>>(2)? {
                Some(version) => Some((
                    version,
                    Written {
                        time: row.try_get(3)?,
                        ahead: row.try_get(4)?,
                    },
                )),
                None => None,
            };
            Ok(ReadRow {
                now: row.try_get(0)?,
                floor: row.try_get(1)?,
                root,
                reserved: (row.try_get(5)?, row.try_get(6)?),
                body: row.try_get(7)?,
            })
        };
        found.iter().map(row).collect()
    }

    async fn parts(&self, id: &[u8], parts: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>, SqlError> {
        let (first, after) = (number(parts.start), number(parts.end));
        let rows = self.query(Statement::Parts, &[&id, &first, &after]).await?;
        let part = |row: &tokio_postgres::Row| Ok((row.try_get::<_, i64>(0)?.cast_unsigned(), row.try_get(1)?));
        rows.iter().map(part).collect()
    }

    async fn page(&self, page: &Page) -> Result<Vec<(Vec<u8>, Root, Stamp)>, SqlError> {
        let (mut rows, mut after) = (Vec::new(), page.after.clone());
        loop {
            let size = (ROWS as i64).min(page.limit - rows.len() as i64);
            let values: [Value<'_>; 5] = [&page.first, &after, &page.end, &size, &page.unused_for];
            let some = self.query(Statement::Page, &values).await?;
            let is_last = (some.len() as i64) < size;
            rows.extend(some);
            match rows.last() {
                Some(last) if !is_last && (rows.len() as i64) < page.limit => after = last.try_get(0)?,
                _ => break,
            }
        }
        let root = |row: &tokio_postgres::Row| {
            let written = Written {
                time: row.try_get(3)?,
                ahead: row.try_get(4)?,
            };
            let root = root(row.try_get(2)?, written, row.try_get(5)?);
            Ok((row.try_get(0)?, root, written.now(row.try_get(1)?)))
        };
        rows.iter().map(root).collect()
    }

    async fn remove(&self, rows: &[(Vec<u8>, i64)], floor: i64) -> Result<(), SqlError> {
        let (ids, versions): (Vec<&[u8]>, Vec<_>) = rows.iter().map(|(id, at)| (id.as_slice(), *at)).unzip();
        let removed = self.query(Statement::Remove, &[&ids, &versions, &floor]).await;
        removed.map(drop)
    }

    async fn beat(&self, namespace: &[u8], server: i64) -> Result<Vec<(i64, i64)>, SqlError> {
        let rows = self.query(Statement::Beat, &[&namespace, &server]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    async fn leave(&self, namespace: &[u8], server: i64) -> Result<(), SqlError> {
        self.query(Statement::Leave, &[&namespace, &server]).await.map(drop)
    }

    async fn confirm(&self) -> Result<(), SqlError> {
        self.query(Statement::Confirm, &[]).await.map(drop)
    }

    async fn try_commit(&self) -> Result<(), SqlError> {
        self.query(Statement::Try, &[]).await.map(drop)
    }

    async fn admit(&self) -> Result<(), SqlError> {
        self.query(Statement::Admit, &[]).await.map(drop)
    }

    async fn raise_longest_ttl(&self, ttl: i64) -> Result<i64, SqlError> {
        let rows = self.query(Statement::RaiseLongestTtl, &[&ttl]).await?;
        let none = || SqlError::Failed("has an empty fencepost_store".into());
        Ok(rows.first().ok_or_else(none)?.try_get(0)?)
    }

    async fn check_server(
        &self,
        origin: Origin,
        stuck: &[i64],
        _: Option<&Wrote>,
    ) -> Result<Option<ServerCheck>, SqlError> {
        self.look().await?;
        let blocker = self.blocker().await?;
        let rows = self.query(Statement::Probe, &[&self.texts.lock, &stuck]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (living, dead, bytes): (i64, i64, i64) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
        let now: i64 = row.try_get(1)?;
        let oldest = row.try_get::<_, Option<i64>>(6)?.zip(row.try_get::<_, Option<i64>>(7)?);
        let mut known = self.oldest.lock();
        let same = known.filter(|(known, _)| Some(*known) == oldest);
        *known = oldest.map(|oldest| (oldest, same.map_or(now, |(_, since)| since)));
        let mut warnings = Vec::new();
        if let Some(((process, _), since)) = known.filter(|(_, since)| now - since >= OLD) {
            let figures = format!("process {process}, for {} s", (now - since) / 1_000_000);
            warnings.push(Warning {
                what: OLD_SNAPSHOT,
                figures,
            });
        }
        if dead > MANY_DEAD + 10 * living {
            let figures = format!("{living} living, {dead} dead, {bytes} bytes");
            warnings.push(Warning {
                what: DEAD_ROWS,
                figures,
            });
        }
        // A table is often locked for a moment.
        let process = blocker.as_ref().map_or(0, |(process, _)| *process);
        let known = self.blocker.swap(process, Ordering::Relaxed);
        Ok(Some(ServerCheck {
            origin,
            blocked: blocker.filter(|_| process == known).map(|(_, reason)| reason),
            since: row.try_get(0)?,
            now,
            running: row.try_get(5)?,
            warnings,
            terms: terms_of(row, 8)?,
        }))
    }

    async fn notify(&self, messages: &[(LockName, Stamp, Message)]) -> Result<(), SqlError> {
        let message = |(lock, stamp, message): &_| -> (String, String) {
            let message: &Message = message;
            (channel(message.to), encode(lock, *stamp, message))
        };
        let (channels, payloads): (Vec<_>, Vec<_>) = messages.iter().map(message).unzip();
        self.query(Statement::Notify, &[&channels, &payloads]).await.map(drop)
    }
}
