//! The connection that listens, and looks at the database now and then.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{interval, sleep, timeout};

use super::connection::{Connection, ConnectionError, Use};
use super::pool::Pool;
use super::statements::Statement;
use crate::backend::Health;

/// How often the database is looked at.
const PROBE: Duration = Duration::from_secs(1);
/// The pause before the database is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// So many dead rows beyond ten for each living one are out of proportion.
const MANY_DEAD: i64 = 20_000;

impl Pool {
    /// Listens, and watches the database, until it is dropped.
    pub async fn watch(self: Arc<Self>) {
        loop {
            let problem = match self.connect(Use::Soft, Some(Arc::clone(&self.inboxes))).await {
                Ok(connection) => self.watch_over(connection).await,
                Err(problem) => problem,
            };
            self.abort_stuck(&[]);
            self.report(Some(problem));
            sleep(PAUSE).await;
        }
    }

    /// Returns what is wrong once the connection has failed.
    async fn watch_over(self: &Arc<Self>, mut connection: Connection) -> String {
        let mut probe = interval(PROBE);
        let (mut has_listened, mut is_new_connection, mut was_large) = (self.settings.pooler, true, false);
        loop {
            if !has_listened {
                let listened = timeout(self.settings.timeout, connection.batch(&self.inboxes.listen())).await;
                if !matches!(listened, Ok(Ok(()))) {
                    return "PostgreSQL does not accept LISTEN".into();
                }
                has_listened = true;
                self.inboxes.listened(is_new_connection);
                is_new_connection = false;
            }
            tokio::select! {
                () = connection.closed() => return "the connection to PostgreSQL was lost".into(),
                () = self.inboxes.added.notified() => has_listened = self.settings.pooler,
                _ = probe.tick() => match timeout(self.settings.timeout, self.look(&connection, &mut was_large)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return format!("PostgreSQL did not answer within {:?}", self.settings.timeout),
                },
            }
        }
    }

    async fn look(self: &Arc<Self>, connection: &Connection, was_large: &mut bool) -> Result<(), ConnectionError> {
        let stuck: Vec<i32> = self.stuck.lock().iter().map(|(process, _)| *process).collect();
        let rows = connection.query(Statement::Probe, &[&self.texts.lock, &stuck]).await?;
        let row = rows
            .first()
            .ok_or(ConnectionError::Refused("has an empty fencepost_store".into()))?;
        let (since, now): (Option<i64>, i64) = (row.try_get(0)?, row.try_get(1)?);
        if !self.note_quarantine(connection.origin, since.map(|since| (since, now))) {
            return Err(ConnectionError::Refused("another server became the primary".into()));
        }
        let (living, dead, bytes): (i64, i64, i64) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
        let is_large = dead > MANY_DEAD + 10 * living;
        if is_large && !*was_large {
            tracing::warn!(
                living,
                dead,
                bytes,
                "the table of locks has many dead rows, and statements become slow: an old transaction or replication \
                 slot keeps them; see docs/postgres.md"
            );
        }
        *was_large = is_large;
        self.abort_stuck(&row.try_get::<_, Vec<i32>>(5)?);
        let health = self.health.borrow().clone();
        match health {
            // Only a commit shows that commits succeed again.
            Health::Unavailable { .. } => {
                let pool = Arc::clone(self);
                tokio::spawn(async move {
                    let confirm =
                        |connection: Arc<Connection>| async move { connection.query(Statement::Confirm, &[]).await };
                    pool.run(confirm).await
                });
            }
            Health::Serving | Health::Quarantined { .. } => self.report(None),
        }
        Ok(())
    }

    /// Closes the connections of the stuck statements that no process runs any more.
    fn abort_stuck(&self, running: &[i32]) {
        self.stuck.lock().retain(|(process, task)| {
            let runs = !task.is_finished() && running.contains(process);
            if !runs {
                task.abort();
            }
            runs
        });
    }
}
