//! What the statements are given, and what they return.

use std::collections::HashSet;
use std::ops::Range;

use async_trait::async_trait;

use super::client::answers::{Outcome, Row as Found};
use super::client::{ROW, SCRIPT};
use super::connection::Connection;
use super::look::PACKET;
use super::rows::{get, missing, terms, written};
use super::{look, statements};
use crate::backend::record::store::{Root, ServerId, Stamp, Version};
use crate::backend::sql::dialect::{self, Entry, Origin, Page, Row, ServerCheck, Stored};
use crate::backend::sql::error::{NEW_TABLES, OLDER, SqlError};
use crate::backend::sql::rows::{ReadRow, Written, number, root};
use crate::backend::sql::written::Wrote;

/// How many counters of other servers a beat reads at most.
const SERVERS: usize = 64;
/// How many roots are read in one script: the longest ones fit in what a server may send for it.
const ROWS: usize = 60;
const _: () = assert!((ROWS + 1) * ROW <= SCRIPT);

impl Connection {
    /// Reads so many roots as fit in one answer; none if there is no row of the store.
    async fn read_some(&self, rows: &[(&[u8], Option<Version>)]) -> Result<Vec<ReadRow>, SqlError> {
        let mut script: Vec<_> = rows.iter().map(|(id, known)| statements::read(id, *known)).collect();
        script.extend([statements::store(), look::table("fencepost_lock")]);
        let mut outcomes = self.run(script, rows.len() + 2).await?;
        let last = outcomes.split_off(rows.len());
        self.check_tables(&last[1..])?;
        let Some(row) = last[0].rows.first() else {
            return Ok(Vec::new());
        };
        let (now, floor): (i64, i64) = (get(row, 0)?, get(row, 1)?);
        self.check_known(get(row, 2)?)?;
        let found = outcomes.iter().map(|outcome| match outcome.rows.first() {
            None => Ok(ReadRow {
                now,
                floor,
                root: None,
                reserved: (None, None),
                body: None,
            }),
            Some(row) => Ok(ReadRow {
                now: get(row, 0)?,
                floor,
                root: Some((get(row, 1)?, written(row, 2)?)),
                reserved: (get(row, 4)?, get(row, 5)?),
                body: get(row, 6)?,
            }),
        });
        found.collect()
    }

    /// Checks tables of the store, whose statements are at the end of the script.
    fn check_tables(&self, outcomes: &[Outcome]) -> Result<(), SqlError> {
        let mut checked = outcomes.iter().map(look::check_table);
        checked.try_for_each(|checked| checked.map_err(|problem| self.give_up(problem)))
    }

    /// Checks that these are the tables with which the store was entered, once it was.
    fn check_known(&self, tables: i64) -> Result<(), SqlError> {
        match self.tables.get().is_none_or(|known| *known == tables) {
            true => Ok(()),
            false => Err(self.give_up(SqlError::Failed(NEW_TABLES.into()))),
        }
    }

    /// Checks that the database has what this server wrote last, as a look says.
    fn check_last(&self, has_it: i64) -> Result<(), SqlError> {
        match has_it {
            0 => Err(self.give_up(SqlError::Failed(OLDER.into()))),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl dialect::Connection for Connection {
    fn is_closed(&self) -> bool {
        self.is_broken()
    }

    async fn create_tables(&self) -> Result<(), SqlError> {
        let tables = statements::TABLES.map(str::to_owned);
        self.run(tables.into(), 0).await.map(drop)
    }

    async fn enter(&self, entry: &Entry) -> Result<Option<Stored>, SqlError> {
        let id = ServerId::random().map_err(|error| SqlError::Failed(error.to_string()))?;
        let mut entered = self.run(vec![statements::entered(entry)], 1).await?.swap_remove(0);
        if entered.rows.first().map(|row| get(row, 7)).transpose()? == Some(1_i64) {
            let script = statements::enter(entry, number(id.0.get()));
            let row = script.len() - 1;
            entered = self.transaction(script, 2).await?.swap_remove(row);
        }
        // Where the store is, the others are: one that is missing may have had leases.
        let tables = self.run(look::TABLES.map(look::table).into(), look::TABLES.len()).await;
        let tables = tables.map_err(|problem| SqlError::Failed(problem.to_string()))?;
        self.check_tables(&tables)?;
        let Some(row) = entered.rows.first() else {
            return Ok(None);
        };
        let (since, now): (Option<i64>, i64) = (get(row, 1)?, get(row, 2)?);
        let tables = get(row, 4)?;
        // Of a store that was opened with other terms nothing more is asked.
        let _ = self.tables.set(tables);
        Ok(Some(Stored {
            format: get(row, 0)?,
            origin: Origin {
                system: entry.origin.system,
                timeline: get(row, 3)?,
                tables,
            },
            quarantine: since.map(|since| (since, now)),
            all_confirm: false,
            terms: terms(row, 5)?,
        }))
    }

    fn fitting(&self, rows: &[Row<'_>]) -> usize {
        let mut bytes = 0;
        let fits = |row: &&Row<'_>| {
            bytes += statements::size(row);
            bytes < PACKET
        };
        rows.iter().take_while(fits).count().max(1)
    }

    async fn write(&self, rows: &[Row<'_>], last: Option<&Wrote>) -> Result<Vec<(usize, Written)>, SqlError> {
        let (mut script, mut places) = (Vec::new(), Vec::new());
        for row in rows {
            places.push(script.len());
            script.push(statements::commit(row));
            script.extend(statements::parts(row));
        }
        script.push(statements::written(rows));
        let stamps = script.len() - 1;
        // Nobody makes another table of it before the COMMIT.
        script.push(statements::look(last));
        script.extend(look::COMMITTED.map(look::table));
        let outcomes = self.transaction(script, rows.len() + 1 + look::COMMITTED.len()).await?;
        self.check_tables(&outcomes[stamps + 2..stamps + 2 + look::COMMITTED.len()])?;
        let looked = outcomes[stamps + 1].rows.first().ok_or_else(missing)?;
        self.check_known(get(looked, 0)?)?;
        self.check_last(get(looked, 1)?)?;
        let mut applied = Vec::new();
        for found in &outcomes[stamps].rows {
            let id: Vec<u8> = get(found, 0)?;
            let index = rows.binary_search_by_key(&id.as_slice(), |row| row.id);
            // A row that is at this version already was not changed by this commit.
            if let Ok(index) = index
                && outcomes[places[index]].changed > 0
            {
                applied.push((index, written(found, 1)?));
            }
        }
        Ok(applied)
    }

    async fn locked(&self, ids: &[&[u8]]) -> Result<HashSet<Vec<u8>>, SqlError> {
        let outcomes = self.transaction(statements::locked(ids), 2 * ids.len()).await?;
        let [free, all] = [0, 1].map(|at| {
            outcomes[at]
                .rows
                .iter()
                .map(|row| get(row, 0))
                .collect::<Result<HashSet<Vec<u8>>, _>>()
        });
        Ok(&all? - &free?)
    }

    async fn reserve(&self, rows: &[Row<'_>]) -> Result<(), SqlError> {
        let script: Vec<_> = rows.iter().map(statements::reserve).collect();
        self.run(script, 0).await.map(drop)
    }

    async fn read(&self, rows: &[(&[u8], Option<Version>)]) -> Result<Vec<ReadRow>, SqlError> {
        let mut found = Vec::with_capacity(rows.len());
        for rows in rows.chunks(ROWS) {
            let some = self.read_some(rows).await?;
            if some.is_empty() {
                return Ok(some);
            }
            found.extend(some);
        }
        Ok(found)
    }

    async fn parts(&self, id: &[u8], parts: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>, SqlError> {
        let rows = usize::try_from(parts.end.saturating_sub(parts.start)).unwrap_or(usize::MAX);
        let script = vec![statements::read_parts(id, parts.start, parts.end)];
        let outcomes = self.run(script, rows).await?;
        let part = |row: &Found| Ok((get::<i64>(row, 0)?.cast_unsigned(), get(row, 1)?));
        outcomes[0].rows.iter().map(part).collect()
    }

    async fn page(&self, page: &Page) -> Result<Vec<(Vec<u8>, Root, Stamp)>, SqlError> {
        let (mut listed, mut after) = (Vec::new(), page.after.clone());
        loop {
            let limit = (ROWS as i64).min(page.limit - listed.len() as i64);
            let script = vec![statements::page(page, &after, limit)];
            let outcomes = self.run(script, ROWS).await?;
            for row in &outcomes[0].rows {
                let written = written(row, 3)?;
                let root = root(get(row, 2)?, written, get(row, 5)?);
                after = get(row, 0)?;
                listed.push((after.clone(), root, written.now(get(row, 1)?)));
            }
            if (outcomes[0].rows.len() as i64) < limit || listed.len() as i64 >= page.limit {
                return Ok(listed);
            }
        }
    }

    async fn remove(&self, rows: &[(Vec<u8>, i64)], floor: i64) -> Result<(), SqlError> {
        self.transaction(statements::remove(rows, floor), 0).await.map(drop)
    }

    async fn beat(&self, namespace: &[u8], server: i64) -> Result<Vec<(i64, i64)>, SqlError> {
        let outcomes = self.run(statements::beat(namespace, server), SERVERS).await?;
        let counters = outcomes[2].rows.iter();
        counters.map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
    }

    async fn leave(&self, namespace: &[u8], server: i64) -> Result<(), SqlError> {
        let leave = statements::leave(namespace, server);
        self.run(vec![leave], 0).await.map(drop)
    }

    async fn confirm(&self) -> Result<(), SqlError> {
        self.run(vec![statements::confirm()], 0).await.map(drop)
    }

    async fn admit(&self) -> Result<(), SqlError> {
        self.run(vec![statements::ADMIT.into()], 0).await.map(drop)
    }

    async fn raise_longest_ttl(&self, ttl: i64) -> Result<i64, SqlError> {
        let outcomes = self.run(statements::raise_longest_ttl(ttl), 1).await?;
        get(outcomes[1].rows.first().ok_or_else(missing)?, 0)
    }

    async fn check_server(
        &self,
        _: Origin,
        stuck: &[i64],
        last: Option<&Wrote>,
    ) -> Result<Option<ServerCheck>, SqlError> {
        let mut script = statements::check_server(stuck, last);
        let own = script.len();
        script.extend(look::TABLES.map(look::table));
        let rows = script.len() + stuck.len();
        let mut outcomes = self.run(script, rows).await?;
        self.check_tables(&outcomes.split_off(own))?;
        let Some(row) = outcomes[0].rows.first() else {
            return Ok(None);
        };
        self.check_last(get(row, 5)?)?;
        let running = outcomes.get(1).map_or(&[][..], |outcome| &outcome.rows);
        Ok(Some(ServerCheck {
            origin: Origin {
                system: get::<Option<i64>>(row, 2)?.unwrap_or_default(),
                timeline: get(row, 3)?,
                tables: get(row, 4)?,
            },
            blocked: None,
            since: get(row, 0)?,
            now: get(row, 1)?,
            running: running.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?,
            warnings: Vec::new(),
            terms: terms(row, 6)?,
        }))
    }
}
