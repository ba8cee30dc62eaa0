//! Whether a standby that was promoted has all that was committed.

use std::sync::atomic::Ordering;

use super::dialect::{Connection, Dialect, Origin, Session};
use super::error::{Because, SqlError};
use super::pool::Pool;
use super::rows::ReadRow;
use super::settings::Replication;
use crate::backend::record::store::LockTime;

impl<D: Dialect> Pool<D> {
    /// Whether no quarantine follows if another database is found than the last one: only if each standby that may be promoted
    /// had each commit as this server saw it, and none of those is missing that it remembers. A server that starts has seen
    /// nothing: the promoted standby may lack that others did not confirm any more.
    pub(super) async fn spares(&self, session: &Session<D::Connection>, last: Origin) -> Result<bool, SqlError> {
        if self.settings.replication != Replication::Synchronous || last == Origin::default() {
            return Ok(false);
        }
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
        let is_older = |(row, (_, clock)): (&ReadRow, &(Vec<u8>, LockTime))| {
            row.root.is_none_or(|(_, root)| root.stamp().clock < *clock)
        };
        Ok(found.len() != written.len() || found.iter().zip(&written).any(is_older))
    }
}
