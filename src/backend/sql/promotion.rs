//! Whether a database still has all that was committed, after a promotion or a loss.

use super::dialect::{Connection, Dialect, Origin, Session};
use super::error::{Because, SqlError};
use super::known::Known;
use super::pool::Pool;
use super::settings::Replication;
use super::written::Lacks;

impl<D: Dialect> Pool<D> {
    /// Whether no quarantine follows if another database is found than the last one: only if each standby that may be promoted
    /// had each commit as this server saw it, and none of those is missing that it remembers. A server that starts has seen
    /// nothing, whatever its data directory says: the promoted standby may lack that others did not confirm any more.
    pub(super) fn spares(&self, known: &Known, lacks: Lacks) -> bool {
        let has_seen = known.origin != Origin::default() && known.all_confirm;
        self.settings.replication == Replication::Synchronous && has_seen && lacks == Lacks::Nothing
    }

    /// Whether something is missing that this server wrote lately: an older copy of the data is there, whatever has put it
    /// there.
    pub(super) async fn lacks(&self, session: &Session<D::Connection>) -> Result<Lacks, SqlError> {
        let written = self.written.recent();
        if written.is_empty() {
            return Ok(Lacks::Nothing);
        }
        let rows: Vec<_> = written
            .iter()
            .map(|wrote| (wrote.id.as_slice(), Some(wrote.version)))
            .collect();
        match session.connection.read(&rows).await {
            Err(error) if error.because() == Some(Because::NoTable) => Ok(Lacks::Lost),
            found => Ok(Lacks::of(&written, &found?)),
        }
    }
}
