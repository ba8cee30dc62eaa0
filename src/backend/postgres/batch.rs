//! A batch of commits and reads of many locks: one statement that commits, and one that reads roots and those that were
//! refused.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::connection::{Connection, ConnectionError};
use super::messages::{channel, encode};
use super::pool::Pool;
use super::statements::{MAX_ROWS, Statement};
use crate::backend::BackendError;
use crate::backend::failure::{not_sent, unavailable};
use crate::backend::record::store::{
    Commit, Committed, Found, FoundRoot, LockTime, Root, ServerId, Stamp, StoreTime, Version,
};

/// How often a statement is sent again that was rolled back because of others.
const ATTEMPTS: usize = 3;

/// A step on the row with this id.
#[derive(Debug)]
pub enum Request {
    /// A commit.
    Commit(Vec<u8>, Commit),
    /// A read, unless the root is at this version.
    Read(Vec<u8>, Option<Version>),
}

/// What a step found.
#[derive(Debug)]
pub enum Answer {
    /// Of a commit.
    Committed(Committed),
    /// Of a read.
    Found(Found),
}

/// The answers of a batch. They are filled in one by one, so that a failure takes back none of them.
type Answers = Mutex<Vec<Option<Result<Answer, BackendError>>>>;

/// A parameter of a statement.
type Value<'a> = &'a (dyn ToSql + Sync);

/// A batch on one connection.
struct Batch<'a> {
    pool: &'a Arc<Pool>,
    connection: &'a Connection,
    requests: &'a [Request],
    answers: &'a Answers,
}

/// Executes a batch, over the connection whose commits wait for no disk if `is_soft`.
pub async fn execute(pool: Arc<Pool>, is_soft: bool, requests: Vec<Request>) -> Vec<Result<Answer, BackendError>> {
    let answers: Arc<Answers> = Arc::new(Mutex::new(requests.iter().map(|_| None).collect()));
    let requests = Arc::new(requests);
    let run = |connection: Arc<Connection>| {
        let (pool, requests, answers) = (Arc::clone(&pool), Arc::clone(&requests), Arc::clone(&answers));
        async move {
            let batch = Batch {
                pool: &pool,
                connection: &connection,
                requests: &requests,
                answers: &answers,
            };
            batch.run().await
        }
    };
    let result = match is_soft {
        true => pool.run_soft(run).await,
        false => pool.run(run).await,
    };
    let failure = result
        .err()
        .unwrap_or_else(|| unavailable("PostgreSQL returned no row for a step"));
    let answers = std::mem::take(&mut *answers.lock());
    answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(|| Err(failure.clone())))
        .collect()
}

impl Batch<'_> {
    async fn run(&self) -> Result<(), ConnectionError> {
        let mut commits: Vec<(usize, &[u8], &Commit)> = Vec::new();
        let mut reads: Vec<(usize, &[u8], Option<Version>)> = Vec::new();
        // Not before there is a connection: it may be the first one to a standby that was promoted.
        let quarantine = self.pool.may_grant().err();
        for (at, request) in self.requests.iter().enumerate() {
            match (request, &quarantine) {
                (Request::Commit(_, commit), Some(error)) if commit.grants => self.answer(at, Err(error.clone())),
                (Request::Commit(id, commit), _) => commits.push((at, id, commit)),
                (Request::Read(id, known), _) => reads.push((at, id, *known)),
            }
        }
        commits.sort_by_key(|(_, id, _)| *id);
        while !commits.is_empty() {
            // A statement changes a row once: a second commit of it, such as one that is sent again, comes after it.
            let (mut once, mut again): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
            for commit in commits {
                let is_first = once
                    .last()
                    .is_none_or(|(_, id, _): &(usize, &[u8], &Commit)| *id != commit.1);
                if is_first {
                    once.push(commit)
                } else {
                    again.push(commit)
                }
            }
            for rows in once.chunks(MAX_ROWS) {
                reads.extend(self.write(rows).await?);
            }
            commits = again;
        }
        for rows in reads.chunks(MAX_ROWS) {
            self.read(rows).await?;
        }
        Ok(())
    }

    fn answer(&self, at: usize, answer: Result<Answer, BackendError>) {
        self.answers.lock()[at] = Some(answer);
    }

    /// Commits these, and returns those that were refused.
    async fn write<'a>(
        &self,
        rows: &[(usize, &'a [u8], &Commit)],
    ) -> Result<Vec<(usize, &'a [u8], Option<Version>)>, ConnectionError> {
        let (mut rows, mut attempt) = (rows.to_vec(), 1);
        let written = loop {
            match self.send(&rows).await {
                Err(error) if attempt < ATTEMPTS && may_succeed(&error) => attempt += 1,
                Err(error) if attempt < ATTEMPTS && error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    // There is time to wait once more.
                    attempt = ATTEMPTS;
                    let locked = self.locked(&rows).await?;
                    for (at, ..) in rows.extract_if(.., |(_, id, _)| locked.contains(*id)) {
                        self.answer(at, Err(not_sent(&error)));
                    }
                    if rows.is_empty() {
                        return Ok(Vec::new());
                    }
                }
                written => break written?,
            }
        };
        let mut applied = vec![false; rows.len()];
        let mut messages = (Vec::new(), Vec::new());
        for row in &written {
            let id: &[u8] = row.try_get(0)?;
            let Ok(index) = rows.binary_search_by_key(&id, |(_, id, _)| *id) else {
                continue;
            };
            let (at, _, commit) = rows[index];
            let stamp = stamp(row.try_get(1)?, row.try_get(2)?);
            applied[index] = true;
            self.answer(at, Ok(Answer::Committed(Committed::Applied(stamp))));
            for message in &commit.messages {
                messages.0.push(channel(message.to));
                messages.1.push(encode(&commit.lock, stamp, message));
            }
        }
        if !messages.0.is_empty() {
            self.pool.notify(messages);
        }
        let refused: Vec<_> = rows
            .iter()
            .zip(&applied)
            .filter(|(_, applied)| !**applied)
            .map(|(row, _)| *row)
            .collect();
        self.reserve(&refused).await;
        let known = |(at, id, commit): (usize, &'a [u8], &Commit)| (at, id, commit.expected);
        Ok(refused.into_iter().map(known).collect())
    }

    /// The ids of the rows that transactions of others have locked.
    async fn locked(&self, rows: &[(usize, &[u8], &Commit)]) -> Result<HashSet<Vec<u8>>, ConnectionError> {
        let ids: Vec<&[u8]> = rows.iter().map(|(_, id, _)| *id).collect();
        let locked = self.connection.query(Statement::Locked, &[&ids]).await?;
        let ids = locked.iter().map(|row| Ok(row.try_get(0)?));
        ids.collect()
    }

    async fn send(&self, rows: &[(usize, &[u8], &Commit)]) -> Result<Vec<Row>, ConnectionError> {
        let column = |value: fn(&Commit) -> u64| -> Vec<i64> {
            rows.iter().map(|(_, _, commit)| number(value(commit))).collect()
        };
        let ids: Vec<&[u8]> = rows.iter().map(|(_, id, _)| *id).collect();
        let expected: Vec<Option<i64>> = rows.iter().map(|(_, _, commit)| commit.expected.map(version)).collect();
        let versions: Vec<i64> = rows.iter().map(|(_, _, commit)| version(commit.version)).collect();
        let not_before = column(|commit| commit.not_before.0);
        let not_after = column(|commit| commit.not_after.0);
        let latest = column(|commit| commit.latest.0);
        let servers = column(|commit| commit.server.0.get());
        let floors = column(|commit| commit.floor);
        let bodies: Vec<&[u8]> = rows.iter().map(|(_, _, commit)| commit.body.as_slice()).collect();
        if rows
            .iter()
            .all(|(_, _, commit)| commit.put.is_empty() && commit.delete.is_empty())
        {
            let values: [Value<'_>; 9] = [
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
            return self.connection.query(Statement::Write, &values).await;
        }
        let deletes = rows.iter().filter(|(_, _, commit)| !commit.delete.is_empty());
        let (gone, (first, after)): (Vec<_>, (Vec<_>, Vec<_>)) = deletes
            .map(|(_, id, commit)| (*id, (number(commit.delete.start), number(commit.delete.end))))
            .unzip();
        let puts = rows
            .iter()
            .flat_map(|(_, id, commit)| commit.put.iter().map(move |(part, body)| (*id, part, body)));
        let (put, (parts, contents)): (Vec<_>, (Vec<_>, Vec<_>)) = puts
            .map(|(id, part, body)| (id, (number(*part), body.as_slice())))
            .unzip();
        let values: [Value<'_>; 15] = [
            &ids,
            &expected,
            &versions,
            &not_before,
            &not_after,
            &latest,
            &servers,
            &floors,
            &bodies,
            &gone,
            &first,
            &after,
            &put,
            &parts,
            &contents,
        ];
        self.connection.query(Statement::WriteParts, &values).await
    }

    /// Reserves rows for those who asked for it. A failure costs a round.
    async fn reserve(&self, refused: &[(usize, &[u8], &Commit)]) {
        let asking: Vec<_> = refused
            .iter()
            .filter(|(_, _, commit)| commit.reserve.is_some())
            .collect();
        if asking.is_empty() {
            return;
        }
        let ids: Vec<&[u8]> = asking.iter().map(|(_, id, _)| *id).collect();
        let expected: Vec<Option<i64>> = asking
            .iter()
            .map(|(_, _, commit)| commit.expected.map(version))
            .collect();
        let servers: Vec<i64> = asking
            .iter()
            .map(|(_, _, commit)| number(commit.server.0.get()))
            .collect();
        let periods = asking
            .iter()
            .map(|(_, _, commit)| commit.reserve.unwrap_or_default().as_micros());
        let periods: Vec<i64> = periods
            .map(|period| i64::try_from(period).unwrap_or(i64::MAX))
            .collect();
        let values: [Value<'_>; 4] = [&ids, &expected, &servers, &periods];
        let reserved = match self.pool.settings.pooler {
            true => self
                .connection
                .query(Statement::Reserve, &values)
                .await
                .map_err(unavailable),
            false => {
                let reserve =
                    |connection: Arc<Connection>| async move { connection.query(Statement::Reserve, &values).await };
                self.pool.run_soft(reserve).await
            }
        };
        if let Err(error) = reserved {
            tracing::debug!(%error, "a reservation failed");
        }
    }

    async fn read(&self, rows: &[(usize, &[u8], Option<Version>)]) -> Result<(), ConnectionError> {
        let ids: Vec<&[u8]> = rows.iter().map(|(_, id, _)| *id).collect();
        let known: Vec<Option<i64>> = rows.iter().map(|(_, _, known)| known.map(version)).collect();
        let found = self.connection.query(Statement::Read, &[&ids, &known]).await?;
        self.pool.confirm(self.connection).await?;
        for row in &found {
            if row.try_get(9)? {
                return Err(ConnectionError::Refused("the server became a standby".into()));
            }
            let ordinal = usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or_default();
            let Some((at, _, known)) = ordinal.checked_sub(1).and_then(|index| rows.get(index)) else {
                continue;
            };
            let found = found_in(row, *known)?;
            let answer = match &self.requests[*at] {
                Request::Commit(..) => Answer::Committed(Committed::Refused(found)),
                Request::Read(..) => Answer::Found(found),
            };
            self.answer(*at, Ok(answer));
        }
        Ok(())
    }
}

/// Whether a statement may succeed that was rolled back because another one deleted its row, or waited for it too.
fn may_succeed(error: &ConnectionError) -> bool {
    let passing = [
        SqlState::DIVISION_BY_ZERO,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    error.code().is_some_and(|code| passing.contains(code))
}

fn found_in(row: &Row, known: Option<Version>) -> Result<Found, ConnectionError> {
    let (now, floor) = (time(row.try_get(1)?), row.try_get::<_, i64>(2)?);
    let Some(found) = row.try_get::<_, Option<i64>>(3)? else {
        return Ok(Found {
            now: Stamp {
                clock: LockTime(now),
                time: StoreTime(now),
            },
            root: FoundRoot::Absent,
            reserved: None,
            floor: time(floor),
        });
    };
    let (written, ahead) = (row.try_get::<_, i64>(4)?, row.try_get::<_, i64>(5)?);
    let reserved: (Option<i64>, Option<i64>) = (row.try_get(6)?, row.try_get(7)?);
    let version = version_of(found)?;
    Ok(Found {
        now: stamp_now(now, written, ahead),
        root: match row.try_get(8)? {
            _ if known == Some(version) => FoundRoot::Known,
            body => FoundRoot::Root(Root {
                version,
                stamp: stamp(written, ahead),
                body: Option::unwrap_or_default(body),
            }),
        },
        reserved: reserved.0.zip(reserved.1).and_then(|(server, until)| {
            let server = ServerId(u64::try_from(server).ok()?.try_into().ok()?);
            Some((server, LockTime(time(until))))
        }),
        floor: time(floor),
    })
}

/// A root of a list, and the clocks now.
///
/// # Errors
/// [`ConnectionError`] for a row that this store did not write.
pub fn listed(row: &Row) -> Result<(Root, Stamp), ConnectionError> {
    let (now, written, ahead) = (time(row.try_get(1)?), row.try_get(3)?, row.try_get(4)?);
    let root = Root {
        version: version_of(row.try_get(2)?)?,
        stamp: stamp(written, ahead),
        body: row.try_get(5)?,
    };
    Ok((root, stamp_now(now, written, ahead)))
}

/// The stamp of a root.
fn stamp(written: i64, ahead: i64) -> Stamp {
    Stamp {
        clock: LockTime(time(written.saturating_add(ahead))),
        time: StoreTime(time(written)),
    }
}

/// The clocks of a root now.
fn stamp_now(now: u64, written: i64, ahead: i64) -> Stamp {
    Stamp {
        clock: LockTime(now.max(time(written)).saturating_add(time(ahead))),
        time: StoreTime(now),
    }
}

fn time(micros: i64) -> u64 {
    u64::try_from(micros).unwrap_or_default()
}

/// A number as the database has it.
pub fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A version as the database has it.
pub fn version(version: Version) -> i64 {
    number(version.0.get())
}

fn version_of(version: i64) -> Result<Version, ConnectionError> {
    let version = u64::try_from(version).ok().and_then(|version| version.try_into().ok());
    version
        .map(Version)
        .ok_or_else(|| ConnectionError::Refused("a root has the version 0".into()))
}
