//! A batch of commits and reads of many locks: one statement that commits, and one that reads roots and those that were
//! refused.

use std::sync::Arc;

use parking_lot::Mutex;

use super::dialect::{Connection, Dialect, Row, Use};
use super::error::{Because, SqlError};
use super::pool::{Pool, Working};
use super::written::Wrote;
use crate::backend::BackendError;
use crate::backend::failure::{broken, not_sent, unavailable};
use crate::backend::record::store::{Commit, Committed, Found, FoundRoot, Version};

/// How often a statement is sent again that was rolled back because of others.
const ATTEMPTS: usize = 3;
/// What the caller is told whose row stays locked.
const LOCKED: &str = "the row of the lock is locked by a transaction";

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

/// A read of the request at this place.
type Read<'a> = (usize, (&'a [u8], Option<Version>));

/// A batch on one connection.
struct Batch<'a, D: Dialect> {
    pool: &'a Arc<Pool<D>>,
    session: &'a Working<D>,
    requests: &'a [Request],
    answers: &'a Answers,
}

/// Executes a batch, over the connection whose commits wait for no disk if `is_soft`.
pub async fn execute<D: Dialect>(
    pool: Arc<Pool<D>>,
    is_soft: bool,
    requests: Vec<Request>,
) -> Vec<Result<Answer, BackendError>> {
    let answers: Arc<Answers> = Arc::new(Mutex::new(requests.iter().map(|_| None).collect()));
    let requests = Arc::new(requests);
    let run = |session: Working<D>| {
        let (pool, requests, answers) = (Arc::clone(&pool), Arc::clone(&requests), Arc::clone(&answers));
        async move {
            let batch = Batch {
                pool: &pool,
                session: &session,
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
        .unwrap_or_else(|| unavailable(format_args!("{} returned no row for a step", D::NAME)));
    // They stay, because statements that were not awaited may still fill some in.
    let mut answers = answers.lock();
    let answers = answers
        .iter_mut()
        .map(|answer| answer.take().unwrap_or_else(|| Err(failure.clone())));
    answers.collect()
}

impl<D: Dialect> Batch<'_, D> {
    async fn run(&self) -> Result<(), SqlError> {
        let (mut commits, mut reads): (Vec<Row<'_>>, Vec<Read<'_>>) = (Vec::new(), Vec::new());
        // Not before there is a connection: it may be the first one to a standby that was promoted.
        let quarantine = self.pool.may_grant().err();
        for (at, request) in self.requests.iter().enumerate() {
            match (request, &quarantine) {
                (Request::Commit(_, commit), Some(error)) if commit.grants => self.answer(at, Err(error.clone())),
                (Request::Commit(id, commit), _) => commits.push(Row { at, id, commit }),
                (Request::Read(id, known), _) => reads.push((at, (id, *known))),
            }
        }
        commits.sort_by_key(|row| row.id);
        while !commits.is_empty() {
            // A statement changes a row once: a second commit of it, such as one that is sent again, comes after it.
            let (mut once, mut again): (Vec<Row<'_>>, Vec<Row<'_>>) = (Vec::new(), Vec::new());
            for row in commits {
                match once.last().is_none_or(|last| last.id != row.id) {
                    true => once.push(row),
                    false => again.push(row),
                }
            }
            let mut rest = once.as_slice();
            while !rest.is_empty() {
                let (rows, behind) = rest.split_at(self.session.connection.fitting(rest));
                reads.extend(self.write(rows).await?);
                rest = behind;
            }
            commits = again;
        }
        match reads.as_slice() {
            [] => Ok(()),
            reads => self.read(reads).await,
        }
    }

    fn answer(&self, at: usize, answer: Result<Answer, BackendError>) {
        self.answers.lock()[at] = Some(answer);
    }

    /// Commits these, and returns those that were refused.
    async fn write<'a>(&self, rows: &[Row<'a>]) -> Result<Vec<Read<'a>>, SqlError> {
        let connection = &self.session.connection;
        let (mut rows, mut attempt) = (rows.to_vec(), 1);
        let written = loop {
            let written = connection.write(&rows, self.pool.written.last().as_ref()).await;
            match written.as_ref().err().and_then(SqlError::because) {
                Some(Because::OfOthers) if attempt < ATTEMPTS => attempt += 1,
                Some(Because::Locked) if rows.len() == 1 => {
                    self.answer(rows[0].at, Err(not_sent(LOCKED)));
                    return Ok(Vec::new());
                }
                Some(Because::Locked) if attempt < ATTEMPTS => {
                    // There is time to wait once more.
                    attempt = ATTEMPTS;
                    let ids: Vec<&[u8]> = rows.iter().map(|row| row.id).collect();
                    let locked = connection.locked(&ids).await?;
                    if locked.is_empty() {
                        // It is a row that others have inserted, or a part.
                        let mut refused = Vec::new();
                        for row in rows.chunks(1) {
                            refused.extend(Box::pin(self.write(row)).await?);
                        }
                        return Ok(refused);
                    }
                    for row in rows.extract_if(.., |row| locked.contains(row.id)) {
                        self.answer(row.at, Err(not_sent(LOCKED)));
                    }
                    if rows.is_empty() {
                        return Ok(Vec::new());
                    }
                }
                _ => break written?,
            }
        };
        if !written.is_empty() {
            // No read says so: a database may be read-only.
            self.pool.report(None);
        }
        // A crash may lose what a soft session writes.
        if let Some((index, written)) = written.first().filter(|_| self.session.usage == Use::Hard) {
            let row = &rows[*index];
            self.pool.written.note(Wrote {
                id: row.id.to_vec(),
                version: row.commit.version,
                stamp: written.stamp(),
            });
        }
        let mut refused: Vec<_> = rows.iter().copied().map(Some).collect();
        let mut messages = Vec::new();
        for (index, written) in written {
            let (Row { at, commit, .. }, stamp) = (rows[index], written.stamp());
            refused[index] = None;
            self.answer(at, Ok(Answer::Committed(Committed::Applied(stamp))));
            let own = commit.messages.iter().cloned();
            messages.extend(own.map(|message| (commit.lock.clone(), stamp, message)));
        }
        self.pool.notify(messages);
        let refused: Vec<_> = refused.into_iter().flatten().collect();
        self.reserve(&refused).await;
        let known = |row: Row<'a>| (row.at, (row.id, row.commit.expected));
        Ok(refused.into_iter().map(known).collect())
    }

    /// Reserves rows for those who asked for it. A failure costs a round.
    async fn reserve(&self, refused: &[Row<'_>]) {
        let asking = refused.iter().filter(|row| row.commit.reserve.is_some());
        let asking: Vec<_> = asking.copied().collect();
        if asking.is_empty() {
            return;
        }
        let rows = asking.as_slice();
        let reserved = match self.pool.has_soft {
            true => {
                let reserve = |soft: Working<D>| async move { soft.connection.reserve(rows).await };
                self.pool.run_soft(reserve).await
            }
            false => self.session.connection.reserve(rows).await.map_err(unavailable),
        };
        if let Err(error) = reserved {
            tracing::debug!(%error, "a reservation failed");
        }
    }

    async fn read(&self, reads: &[Read<'_>]) -> Result<(), SqlError> {
        let rows: Vec<_> = reads.iter().map(|(_, row)| *row).collect();
        let found = self.session.connection.read(&rows).await?;
        let found = found
            .into_iter()
            .zip(reads)
            .map(|(row, read @ (_, (_, known)))| (row.found(*known), read));
        let (new, known): (Vec<_>, Vec<_>) =
            found.partition(|(found, _)| matches!(found, Ok(found) if matches!(found.root, FoundRoot::Root(_))));
        let answer = |(found, (at, _)): (Result<Found, SqlError>, &Read<'_>)| {
            let answer = |found| match &self.requests[*at] {
                Request::Commit(..) => Answer::Committed(Committed::Refused(found)),
                Request::Read(..) => Answer::Found(found),
            };
            // A root that cannot be read concerns its own lock alone.
            self.answer(*at, found.map(answer).map_err(broken));
        };
        // What this server knows was confirmed when it wrote or read it.
        known.into_iter().for_each(answer);
        if !new.is_empty() {
            self.pool.confirm(self.session).await?;
            new.into_iter().for_each(answer);
        }
        Ok(())
    }
}
