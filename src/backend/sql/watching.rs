//! The connection that listens, and checks the database now and then.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, timeout};

use super::dialect::{Connection, Dialect, Session, Use};
use super::error::{NEW_TABLES, SqlError};
use super::pool::Pool;
use crate::backend::Health;
use crate::backend::clock::StoreClock;
use crate::supervisor::supervise_and;

/// How often the database is looked at.
const PROBE: Duration = Duration::from_secs(1);
/// The pause before the database is tried again.
const PAUSE: Duration = Duration::from_millis(500);

impl<D: Dialect> Pool<D> {
    /// Listens, and watches the database, in a task that never ends by itself.
    pub fn start_watching(self: &Arc<Self>) -> JoinHandle<()> {
        let report = |pool: &Arc<Self>, problem: &str| pool.report(Some(problem.to_owned()));
        supervise_and("sql: watch", Arc::clone(self), report, |pool| {
            Arc::clone(pool).watch().boxed()
        })
    }

    async fn watch(self: Arc<Self>) {
        let clock = StoreClock::default();
        loop {
            let problem = match self.connect(Use::Soft).await {
                Ok(session) => {
                    let problem = self.watch_over(session, &clock).await;
                    self.drop_free();
                    problem
                }
                // The server may serve the connections that it has.
                Err(problem) => problem,
            };
            self.abort_stuck(|_| false);
            *self.cause.lock() = None;
            self.report(Some(problem));
            sleep(PAUSE).await;
        }
    }

    /// Returns what is wrong once the connection has failed.
    async fn watch_over(self: &Arc<Self>, session: Session<D::Connection>, clock: &StoreClock) -> String {
        let limit = self.settings.timeout;
        let checks = async {
            let mut probe = interval(PROBE);
            loop {
                probe.tick().await;
                match timeout(limit, self.check_server(&session, clock)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return format!("{} did not answer within {limit:?}", D::NAME),
                }
            }
        };
        tokio::select! {
            problem = self.dialect.listen(&session.connection, &self.settings) => problem,
            problem = checks => problem,
        }
    }

    async fn check_server(
        self: &Arc<Self>,
        session: &Session<D::Connection>,
        clock: &StoreClock,
    ) -> Result<(), SqlError> {
        let stuck: Vec<i64> = self.stuck.lock().iter().map(|(process, _)| *process).collect();
        let refuse = |problem: &str| Err(SqlError::Failed(problem.into()));
        let (last, notes) = (self.written.last(), self.known.lock().notes);
        let Some(check) = session
            .connection
            .check_server(session.origin, &stuck, last.as_ref())
            .await?
        else {
            return refuse("has an empty fencepost_store");
        };
        clock.shows(D::NAME, u64::try_from(check.now).unwrap_or_default());
        let quarantine = check.since.map(|since| (since, check.now));
        if !self.known.lock().note_check(check.origin, quarantine, notes) {
            return refuse(match check.origin.tables == session.origin.tables {
                true => "another server became the primary",
                false => NEW_TABLES,
            });
        }
        self.agree(check.terms.as_ref())?;
        self.warn(check.warnings);
        // One that came during this check was not asked about.
        self.abort_stuck(|process| !stuck.contains(&process) || check.running.contains(&process));
        self.cause.lock().clone_from(&check.blocked);
        if check.blocked.is_some() {
            self.report(None);
            return Ok(());
        }
        // Only now: a table that somebody has locked would keep the cause from being told.
        self.share_longest_ttl(&session.connection).await?;
        let health = self.health.borrow().clone();
        match health {
            // Only a commit shows that commits succeed again.
            Health::Unavailable { .. } => {
                let pool = Arc::clone(self);
                tokio::spawn(async move { pool.try_commit().await });
            }
            Health::Serving | Health::Quarantined { .. } => self.report(None),
        }
        Ok(())
    }

    /// Closes the connections of the stuck statements that no process runs any more.
    fn abort_stuck(&self, is_running: impl Fn(i64) -> bool) {
        self.stuck.lock().retain(|(process, task)| {
            let runs = !task.is_finished() && is_running(*process);
            if !runs {
                task.abort();
            }
            runs
        });
    }
}
