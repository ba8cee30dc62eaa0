//! What the statements are given, and what they return.

use std::collections::HashSet;
use std::ops::Range;

use async_trait::async_trait;
use mysql_async::Row as Found;

use super::connection::{Connection, Outcome, PACKET, get};
use super::statements;
use crate::backend::record::store::{Root, Stamp, Version};
use crate::backend::sql::dialect::{self, Origin, Page, Row, ServerCheck, Stored};
use crate::backend::sql::error::SqlError;
use crate::backend::sql::rows::{ReadRow, Written, version_of};

/// What the server says once it is read-only.
const READ_ONLY: &str = "the server became read-only";

fn written(row: &Found, time: usize) -> Result<Written, SqlError> {
    Ok(Written {
        time: get(row, time)?,
        ahead: get(row, time + 1)?,
    })
}

/// The row of the store, if there is one; its third column says whether the server became read-only.
fn store(outcome: &Outcome) -> Result<Option<&Found>, SqlError> {
    let Some(row) = outcome.rows.first() else {
        return Ok(None);
    };
    match get::<String>(row, 2)?.as_str() {
        "0" | "OFF" => Ok(Some(row)),
        _ => Err(SqlError::Failed(READ_ONLY.into())),
    }
}

#[async_trait]
impl dialect::Connection for Connection {
    fn is_closed(&self) -> bool {
        self.is_broken()
    }

    async fn create_tables(&self) -> Result<(), SqlError> {
        let tables = statements::TABLES.map(str::to_owned);
        self.run(&tables).await.map(drop)
    }

    async fn enter(&self, origin: Origin, last: Origin, _: bool) -> Result<Option<Stored>, SqlError> {
        let system = origin.system;
        // At least that of the last one, and more at another server.
        let least = last.timeline + i64::from(last.timeline > 0 && last.system != system);
        let entered = self.run(&statements::enter(system, least)).await?;
        let Some(row) = entered[1].rows.first() else {
            return Ok(None);
        };
        let (since, now): (Option<i64>, i64) = (get(row, 1)?, get(row, 2)?);
        Ok(Some(Stored {
            format: get(row, 0)?,
            origin: Origin {
                system,
                timeline: get(row, 3)?,
            },
            quarantine: since.map(|since| (since, now)),
            all_confirm: false,
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

    async fn write(&self, rows: &[Row<'_>]) -> Result<Vec<(usize, Written)>, SqlError> {
        let (mut script, mut places) = (Vec::new(), Vec::new());
        for row in rows {
            places.push(script.len());
            script.push(statements::commit(row));
            script.extend(statements::parts(row));
        }
        script.push(statements::written(rows));
        let stamps = script.len() - 1;
        let outcomes = self.transaction(script).await?;
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
        let outcomes = self.transaction(statements::locked(ids)).await?;
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
        self.run(&script).await.map(drop)
    }

    async fn read(&self, rows: &[(&[u8], Option<Version>)]) -> Result<Vec<ReadRow>, SqlError> {
        let mut script: Vec<_> = rows.iter().map(|(id, known)| statements::read(id, *known)).collect();
        script.push(statements::store());
        let mut outcomes = self.run(&script).await?;
        let Some(last) = outcomes.pop() else {
            return Ok(Vec::new());
        };
        let Some(row) = store(&last)? else {
            return Ok(Vec::new());
        };
        let (now, floor): (i64, i64) = (get(row, 0)?, get(row, 1)?);
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

    async fn parts(&self, id: &[u8], parts: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>, SqlError> {
        let outcomes = self.run(&[statements::read_parts(id, parts.start, parts.end)]).await?;
        let part = |row: &Found| Ok((get::<i64>(row, 0)?.cast_unsigned(), get(row, 1)?));
        outcomes[0].rows.iter().map(part).collect()
    }

    async fn page(&self, page: &Page) -> Result<Vec<(Vec<u8>, Root, Stamp)>, SqlError> {
        let outcomes = self.run(&[statements::page(page)]).await?;
        let root = |row: &Found| {
            let written = written(row, 3)?;
            let root = Root {
                version: version_of(get(row, 2)?)?,
                stamp: written.stamp(),
                body: get(row, 5)?,
            };
            Ok((get(row, 0)?, root, written.now(get(row, 1)?)))
        };
        outcomes[0].rows.iter().map(root).collect()
    }

    async fn remove(&self, rows: &[(Vec<u8>, i64)], floor: i64) -> Result<(), SqlError> {
        self.transaction(statements::remove(rows, floor)).await.map(drop)
    }

    async fn beat(&self, namespace: &[u8], server: i64) -> Result<Vec<(i64, i64)>, SqlError> {
        let outcomes = self.run(&statements::beat(namespace, server)).await?;
        let counters = outcomes[2].rows.iter();
        counters.map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
    }

    async fn confirm(&self) -> Result<(), SqlError> {
        self.run(&[statements::confirm()]).await.map(drop)
    }

    async fn admit(&self) -> Result<(), SqlError> {
        self.run(&[statements::ADMIT.into()]).await.map(drop)
    }

    async fn check_server(&self, _: Origin, stuck: &[i64]) -> Result<Option<ServerCheck>, SqlError> {
        let outcomes = self.run(&statements::check_server(stuck)).await?;
        let Some(row) = store(&outcomes[0])? else {
            return Ok(None);
        };
        let running = outcomes.get(1).map_or(&[][..], |outcome| &outcome.rows);
        Ok(Some(ServerCheck {
            origin: Origin {
                system: get::<Option<i64>>(row, 3)?.unwrap_or_default(),
                timeline: get(row, 4)?,
            },
            blocked: None,
            since: get(row, 0)?,
            now: get(row, 1)?,
            running: running.iter().map(|row| get(row, 0)).collect::<Result<_, _>>()?,
            warnings: Vec::new(),
        }))
    }
}
