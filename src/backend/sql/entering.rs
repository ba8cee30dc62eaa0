//! How a connection enters the store: whether it is the one that was used before, and what it was opened with.

use std::sync::Arc;

use super::dialect::{Connection, Dialect, Entry, FORMAT, Origin, Session, Stored};
use super::error::{Because, SqlError};
use super::known::Known;
use super::pool::Pool;
use super::settings::Terms;
use super::written::Lacks;

impl<D: Dialect> Pool<D> {
    /// Enters the store, and creates its tables if they are missing.
    pub(super) async fn enter(&self, session: &Session<D::Connection>, known: &Known) -> Result<Stored, SqlError> {
        let refuse = |problem: String| Err(SqlError::Failed(problem));
        let (connection, origin) = (&session.connection, session.origin);
        let lacks = self.lacks(session).await?;
        let entry = Entry {
            origin,
            last: known.origin,
            is_spared: self.spares(known, lacks),
            is_missing: lacks == Lacks::Lost,
            terms: self.settings.terms(),
        };
        // A standby that was promoted may lack even the tables, or that they are in use.
        let mut entered = connection.enter(&entry).await;
        if entered.as_ref().err().and_then(SqlError::because) == Some(Because::NoTable) {
            if !self.settings.create_tables {
                let page = format_args!("docs/{}.md", D::KIND);
                return refuse(format!("lacks the tables, and create_tables is false: see {page}"));
            }
            connection.create_tables().await?;
            entered = connection.enter(&entry).await;
        }
        match entered? {
            Some(stored) if stored.format == FORMAT => {
                self.agree(stored.terms.as_ref())?;
                if entry.is_missing {
                    self.written.clear();
                }
                Ok(stored)
            }
            Some(stored) => refuse(format!(
                "has tables of format {}, and this release knows {FORMAT}",
                stored.format
            )),
            None => refuse("has an empty fencepost_store".into()),
        }
    }

    /// Checks that the store was opened with what this server has.
    ///
    /// # Errors
    /// [`SqlError::Failed`] with both.
    pub(super) fn agree(&self, kept: Option<&Terms>) -> Result<(), SqlError> {
        let problem = kept.and_then(|kept| self.settings.terms().problem(kept));
        problem.map_or(Ok(()), |problem| Err(SqlError::Failed(problem)))
    }

    /// Records the database before a connection to it is used, and waits for the disk for two seconds at most.
    pub(super) async fn record(&self, origin: Origin) {
        // Until it is written, other connections to it wait here, too.
        let _recording = self.recording.lock().await;
        let before = std::mem::replace(&mut *self.recorded.lock(), origin);
        if before == origin {
            return;
        }
        if let Err(error) = self.settings.last_used.write(Arc::clone(&self.recorded)).await {
            // It is not tried again: a disk that hangs keeps a thread for each try.
            tracing::info!(
                %error,
                "the database cannot be recorded in the data directory: tables that are created anew while this server does \
                 not run will not be noticed"
            );
        }
    }
}
