//! The connections: a few for batches, and one whose commits wait for no disk.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::error::SqlState;

use super::connection::{Connection, ConnectionError, Origin, Use};
use super::messages::Inboxes;
use super::settings::{Credentials, Replication, Settings};
use super::statements::{Statement, Texts};
use crate::backend::failure::{not_sent, unavailable};
use crate::backend::{BackendError, Health};

/// What the store says while it grants nothing.
const MAY_LACK: &str = "a standby was promoted, or a copy of the database was restored: the last grants may be lost";

/// The connections to one database, shared by all namespaces with equal settings.
#[derive(Debug)]
pub struct Pool {
    /// The settings.
    pub settings: Settings,
    /// The messages to the servers in this process.
    pub inboxes: Arc<Inboxes>,
    /// The texts of the statements.
    pub(super) texts: Texts,
    credentials: ArcSwap<Credentials>,
    /// The server that is tried first.
    first: AtomicUsize,
    /// The database that was used last.
    origin: Mutex<Origin>,
    /// How many more batches may be in flight, or be stuck.
    permits: Arc<Semaphore>,
    free: Mutex<Vec<Arc<Connection>>>,
    soft: tokio::sync::Mutex<Option<Arc<Connection>>>,
    /// The statements that were not answered in time, with the processes that run them.
    pub(super) stuck: Mutex<Vec<(i32, AbortHandle)>>,
    /// How many commits may have happened without the standby.
    unknown: AtomicU64,
    /// How many of them the standby has, if they happened.
    confirmed: AtomicU64,
    /// When the quarantine began by the database's clock, and when it ends.
    quarantine: Mutex<Option<(i64, Instant)>>,
    pub(super) health: watch::Sender<Health>,
}

/// A task that runs statements. One that is not awaited until its end is stuck.
struct Running<'a> {
    pool: &'a Pool,
    process: i32,
    task: AbortHandle,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.task.is_finished() {
            return;
        }
        self.pool.unknown.fetch_add(1, Ordering::AcqRel);
        if self.pool.settings.pooler {
            self.task.abort();
        } else {
            self.pool.stuck.lock().push((self.process, self.task.clone()));
        }
    }
}

impl Pool {
    /// Connects when the first statement comes.
    pub fn new(settings: Settings, credentials: Credentials) -> Self {
        let connecting = Health::unavailable("no connection to PostgreSQL yet");
        Self {
            inboxes: Arc::default(),
            texts: Texts::of(&settings.schema),
            credentials: ArcSwap::from_pointee(credentials),
            first: AtomicUsize::new(0),
            origin: Mutex::default(),
            permits: Arc::new(Semaphore::new(settings.connections)),
            free: Mutex::default(),
            soft: tokio::sync::Mutex::default(),
            stuck: Mutex::default(),
            unknown: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            quarantine: Mutex::default(),
            health: watch::channel(connecting).0,
            settings,
        }
    }

    /// Replaces the credentials for new connections.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.credentials.store(Arc::new(credentials));
    }

    /// The current health.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Whether commits that may grant are accepted.
    ///
    /// # Errors
    /// [`BackendError::Quarantined`].
    pub fn may_grant(&self) -> Result<(), BackendError> {
        match self.quarantined_until() {
            Some(until) => Err(BackendError::Quarantined {
                left: until.saturating_duration_since(Instant::now()),
                reason: MAY_LACK.into(),
            }),
            None => Ok(()),
        }
    }

    /// Runs statements on a connection for batches. At the deadline the caller is answered, and the connection is left to
    /// what still runs: a server that waits for its standby would otherwise be left with one more session each time.
    ///
    /// # Errors
    /// [`BackendError::NotSent`] if there was no effect.
    ///
    /// # Cancellation safety
    /// The statements run on.
    pub async fn run<T, F>(self: &Arc<Self>, work: impl FnOnce(Arc<Connection>) -> F) -> Result<T, BackendError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ConnectionError>> + Send + 'static,
    {
        let limit = self.settings.timeout;
        let deadline = Instant::now() + limit;
        let (permit, connection) = match timeout_at(deadline, self.take()).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(problem)) => return Err(not_sent(problem)),
            Err(_) => {
                let problem = format!("no connection to PostgreSQL was free within {limit:?}");
                self.report(Some(problem.clone()));
                return Err(not_sent(problem));
            }
        };
        let (pool, process, work) = (Arc::clone(self), connection.process, work(Arc::clone(&connection)));
        let mut task = tokio::spawn(async move {
            let result = work.await;
            pool.finish(connection, &result);
            drop(permit);
            result
        });
        let running = Running {
            pool: self,
            process,
            task: task.abort_handle(),
        };
        let result = timeout_at(deadline, &mut task).await;
        drop(running);
        match result {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error @ ConnectionError::RolledBack(_)))) => Err(not_sent(error)),
            Ok(Ok(Err(error))) => Err(unavailable(error)),
            Ok(Err(_)) => Err(unavailable("the connection to PostgreSQL was given up")),
            Err(_) => {
                let problem = format!("PostgreSQL did not answer within {limit:?}");
                self.report(Some(problem.clone()));
                Err(unavailable(problem))
            }
        }
    }

    /// As [`Self::run`], on the connection whose commits wait for no disk. It is closed if it does not answer in time.
    ///
    /// # Errors
    /// [`BackendError::NotSent`] if there was no effect.
    ///
    /// # Cancellation safety
    /// The statements run on.
    pub async fn run_soft<T, F>(&self, work: impl FnOnce(Arc<Connection>) -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, ConnectionError>>,
    {
        let limit = self.settings.timeout;
        let deadline = Instant::now() + limit;
        let connection = timeout_at(deadline, self.soft_connection()).await;
        let connection = connection.unwrap_or_else(|_| Err(format!("no connection to PostgreSQL within {limit:?}")));
        let result = timeout_at(deadline, work(connection.map_err(not_sent)?)).await;
        match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error @ ConnectionError::RolledBack(_))) => return Err(not_sent(error)),
            _ => *self.soft.lock().await = None,
        }
        Err(unavailable(
            "the connection to PostgreSQL failed, or did not answer in time",
        ))
    }

    /// Sends messages, to the channels of servers. Those that cannot be sent are lost.
    pub fn notify(self: &Arc<Self>, messages: (Vec<String>, Vec<String>)) {
        if self.settings.pooler {
            return;
        }
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let (channels, payloads) = &messages;
            let notify = |connection: Arc<Connection>| async move {
                connection.query(Statement::Notify, &[channels, payloads]).await
            };
            if let Err(error) = pool.run_soft(notify).await {
                tracing::debug!(%error, "messages were lost");
            }
        });
    }

    async fn soft_connection(&self) -> Result<Arc<Connection>, String> {
        let mut soft = self.soft.lock().await;
        if let Some(connection) = soft.as_ref().filter(|connection| self.is_usable(connection)) {
            return Ok(Arc::clone(connection));
        }
        let connection = self.connect(Use::Soft, None).await?;
        Ok(Arc::clone(soft.insert(Arc::new(connection))))
    }

    /// Waits until the standby has what was read, if that may be a commit which nobody has confirmed: this server would
    /// otherwise answer a commit that a promotion loses.
    ///
    /// # Errors
    /// [`ConnectionError`] if it is not confirmed.
    pub async fn confirm(self: &Arc<Self>, connection: &Connection) -> Result<(), ConnectionError> {
        let unknown = self.unknown.load(Ordering::Acquire);
        if self.settings.replication == Replication::Synchronous && unknown != self.confirmed.load(Ordering::Acquire) {
            match connection.usage {
                Use::Hard => drop(connection.query(Statement::Confirm, &[]).await?),
                // A commit there waits for no standby.
                Use::Soft => {
                    let confirm =
                        |connection: Arc<Connection>| async move { connection.query(Statement::Confirm, &[]).await };
                    let confirmed = self.run(confirm).await;
                    confirmed.map_err(|error| ConnectionError::Refused(error.to_string()))?;
                }
            }
            self.confirmed.fetch_max(unknown, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Ends the quarantine.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if there is none.
    pub async fn admit(self: &Arc<Self>) -> Result<(), BackendError> {
        if self.quarantined_until().is_none() {
            return Err(BackendError::Unsupported {
                what: "this database is not in quarantine",
            });
        }
        let admitted = self.run(|connection| async move {
            connection.query(Statement::Admit, &[]).await?;
            Ok(connection.origin)
        });
        self.note_quarantine(admitted.await?, None);
        self.report(None);
        Ok(())
    }

    async fn take(&self) -> Result<(OwnedSemaphorePermit, Arc<Connection>), String> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| "the store is closed")?;
        while let Some(connection) = self.next_free() {
            if self.is_usable(&connection) {
                return Ok((permit, connection));
            }
        }
        match self.connect(Use::Hard, None).await {
            Ok(connection) => {
                self.report(None);
                Ok((permit, Arc::new(connection)))
            }
            Err(problem) => {
                self.report(Some(problem.clone()));
                Err(problem)
            }
        }
    }

    fn next_free(&self) -> Option<Arc<Connection>> {
        self.free.lock().pop()
    }

    fn is_usable(&self, connection: &Connection) -> bool {
        !connection.is_closed() && connection.origin == *self.origin.lock()
    }

    fn finish<T>(&self, connection: Arc<Connection>, result: &Result<T, ConnectionError>) {
        match result {
            Ok(_) => {
                self.free.lock().push(connection);
                self.report(None);
            }
            Err(error) => {
                if !matches!(error, ConnectionError::RolledBack(_)) {
                    self.unknown.fetch_add(1, Ordering::AcqRel);
                } else if error.code() != Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    self.free.lock().push(connection);
                }
                self.report(Some(error.to_string()));
            }
        }
    }

    /// Connects to the primary.
    ///
    /// # Errors
    /// What is wrong with each server.
    pub(super) async fn connect(&self, usage: Use, inboxes: Option<Arc<Inboxes>>) -> Result<Connection, String> {
        let Settings {
            servers,
            connect_timeout: limit,
            ..
        } = &self.settings;
        let (first, credentials) = (self.first.load(Ordering::Relaxed), self.credentials.load_full());
        let (last, mut problems) = (*self.origin.lock(), Vec::new());
        for at in first..first + servers.len() {
            let server = &servers[at % servers.len()];
            // An attempt that is given up must not keep the next one from the servers behind it.
            self.first.store((at + 1) % servers.len(), Ordering::Relaxed);
            let open = Connection::open(
                server,
                &self.settings,
                &credentials,
                &self.texts,
                usage,
                (inboxes.clone(), last),
            );
            let problem = match timeout(*limit, open).await {
                Ok(Ok(connection)) if self.accepts(&connection) => {
                    self.first.store(at % servers.len(), Ordering::Relaxed);
                    return Ok(connection);
                }
                Ok(Ok(_)) => "was the primary before a standby was promoted".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no connection within {limit:?}"),
            };
            problems.push(format!("PostgreSQL at {server}: {problem}"));
        }
        Err(problems.join("; "))
    }

    /// Whether a database is not older than the one that was used last.
    fn accepts(&self, connection: &Connection) -> bool {
        let mut origin = self.origin.lock();
        if connection.origin.system == origin.system && connection.origin.timeline < origin.timeline {
            return false;
        }
        *origin = connection.origin;
        drop(origin);
        // The server may have crashed while commits waited for the standby: they are then there, and nobody waits.
        self.unknown.fetch_add(1, Ordering::AcqRel);
        self.note_quarantine(connection.origin, connection.quarantine)
    }

    /// Notes when the quarantine of this database began, and the time now, both by its clock. False if the database was
    /// replaced by another one.
    pub(super) fn note_quarantine(&self, of: Origin, quarantine: Option<(i64, i64)>) -> bool {
        let (origin, mut known) = (self.origin.lock(), self.quarantine.lock());
        if *origin != of {
            return false;
        }
        // Only a standby that has each commit is promoted there.
        let quarantine = quarantine.filter(|_| self.settings.replication != Replication::Synchronous);
        let Some((since, now)) = quarantine else {
            *known = None;
            return true;
        };
        if known.is_none_or(|(known, _)| known != since) {
            let passed = Duration::from_micros(u64::try_from(now - since).unwrap_or_default());
            *known = Some((since, Instant::now() + self.settings.longest_ttl.saturating_sub(passed)));
        }
        true
    }

    fn quarantined_until(&self) -> Option<Instant> {
        let until = self.quarantine.lock().map(|(_, until)| until);
        until.filter(|until| *until > Instant::now())
    }

    /// Says how the database is.
    pub(super) fn report(&self, problem: Option<String>) {
        let health = match (problem, self.quarantined_until()) {
            (Some(problem), _) => Health::unavailable(problem),
            (None, Some(until)) => Health::Quarantined {
                until,
                reason: MAY_LACK.into(),
            },
            (None, None) => Health::Serving,
        };
        Health::report(&self.health, health);
    }
}
