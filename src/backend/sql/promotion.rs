//! Whether a standby that was promoted has all that was committed.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::dialect::{Connection, Dialect, Origin, Session};
use super::error::{Because, SqlError};
use super::pool::Pool;
use super::settings::Replication;
use crate::backend::record::store::{LockTime, Stamp};

/// How many batches are remembered: more than all connections have in flight.
const BATCHES: usize = 32;
/// For how long. A lock that nobody uses is removed later.
const REMEMBERED: Duration = Duration::from_secs(300);

/// One root of each of the last batches, by its id, with the lock's clock when it was written. A standby has what was
/// committed before, if it has the last one of each connection.
#[derive(Debug, Default)]
pub struct LastWritten(Mutex<VecDeque<(Vec<u8>, LockTime, Instant)>>);

impl LastWritten {
    /// Notes a root of a batch.
    pub fn note(&self, id: &[u8], stamp: Stamp) {
        let mut written = self.0.lock();
        written.truncate(BATCHES - 1);
        written.push_front((id.to_vec(), stamp.clock, Instant::now()));
    }

    fn recent(&self) -> Vec<(Vec<u8>, LockTime)> {
        let written = self.0.lock();
        let recent = written.iter().filter(|(_, _, at)| at.elapsed() < REMEMBERED);
        recent.map(|(id, clock, _)| (id.clone(), *clock)).collect()
    }
}

impl<D: Dialect> Pool<D> {
    /// Whether no quarantine follows if another database is found than the last one: only if each standby that may be promoted
    /// has each commit there, and none of those is missing that this server remembers.
    pub(super) async fn spares(&self, session: &Session<D::Connection>, last: Origin) -> Result<bool, SqlError> {
        if self.settings.replication != Replication::Synchronous {
            return Ok(false);
        }
        // A server that starts knows what the database has noted.
        let is_spared = !session.origin.was_elsewhere(last)
            || self.all_confirm.load(Ordering::Acquire) && !self.lacks_written(session).await?;
        Ok(is_spared)
    }

    async fn lacks_written(&self, session: &Session<D::Connection>) -> Result<bool, SqlError> {
        let written = self.written.recent();
        let rows: Vec<_> = written.iter().map(|(id, _)| (id.as_slice(), None)).collect();
        let found = match session.connection.read(&rows).await {
            Err(error) if error.because() == Some(Because::NoTable) => return Ok(true),
            found => found?,
        };
        let is_older = |(row, (_, clock)): (&super::rows::ReadRow, &(Vec<u8>, LockTime))| {
            row.root.is_none_or(|(_, root)| root.stamp().clock < *clock)
        };
        Ok(found.len() != written.len() || found.iter().zip(&written).any(is_older))
    }
}
