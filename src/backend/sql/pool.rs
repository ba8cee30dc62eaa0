//! The connections: a few for batches, and one whose commits wait for no disk.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::dialect::{Connection, Dialect, Origin, Session, Use, Warning};
use super::error::{Because, SqlError};
use super::known::{Known, Verdict};
use super::rows::micros;
use super::settings::{Credentials, Replication, Settings};
use super::written::LastWritten;
use crate::backend::failure::{not_sent, unavailable};
use crate::backend::record::store::{Message, Stamp};
use crate::backend::{BackendError, Health};
use crate::name::LockName;

/// Why a server is not used whose standby was promoted.
const REPLACED: &str = "was the primary before a standby was promoted";

/// A connection that runs statements.
pub type Working<D> = Arc<Session<<D as Dialect>::Connection>>;

/// The connections to one database, shared by all namespaces with equal settings.
#[derive(Debug)]
pub struct Pool<D: Dialect> {
    /// The kind of database.
    pub dialect: D,
    /// The settings.
    pub settings: Settings,
    /// Whether there is a connection whose commits wait for no disk, and messages.
    pub has_soft: bool,
    credentials: ArcSwap<Credentials>,
    /// The server that is tried first.
    first: AtomicUsize,
    /// What is known of the database that was used last.
    pub(super) known: Mutex<Known>,
    /// The database that the data directory is to have as the last one.
    pub(super) recorded: Arc<Mutex<Origin>>,
    /// Held while that is written.
    pub(super) recording: tokio::sync::Mutex<()>,
    /// How many more batches may be in flight, or be stuck.
    permits: Arc<Semaphore>,
    idle: Mutex<Idle<D>>,
    /// Notified when a connection has run what it was taken for.
    returned: Notify,
    soft: tokio::sync::Mutex<Option<Working<D>>>,
    /// The statements that were not answered in time, with the processes that run them.
    pub(super) stuck: Mutex<Vec<(i64, AbortHandle)>>,
    /// What the last batches have written.
    pub(super) written: LastWritten,
    /// The longest TTL that any server may have granted, in microseconds: how long a quarantine lasts.
    pub(super) longest_ttl: AtomicU64,
    pub(super) health: watch::Sender<Health>,
    /// What keeps commits from succeeding, as the last check found it.
    pub(super) cause: Mutex<Option<String>>,
    pub(super) warnings: Mutex<Vec<Warning>>,
}

/// The connections that run nothing.
#[derive(Debug)]
struct Idle<D: Dialect> {
    free: Vec<Working<D>>,
    /// How often the free ones were dropped.
    drops: u64,
    /// How many others run something.
    taken: usize,
}

/// A connection that runs something.
struct Taken<D: Dialect> {
    pool: Arc<Pool<D>>,
    session: Working<D>,
    /// How often the free ones were dropped when it was last known to be good.
    drops: u64,
    _permit: OwnedSemaphorePermit,
}

impl<D: Dialect> Drop for Taken<D> {
    fn drop(&mut self) {
        self.pool.idle.lock().taken -= 1;
        self.pool.returned.notify_waiters();
    }
}

/// A task that runs statements. One that is not awaited until its end is stuck.
struct Running<'a, D: Dialect> {
    pool: &'a Pool<D>,
    process: i64,
    task: AbortHandle,
}

impl<D: Dialect> Drop for Running<'_, D> {
    fn drop(&mut self) {
        if self.task.is_finished() {
            return;
        }
        if self.pool.settings.pooler {
            self.task.abort();
        } else {
            self.pool.stuck.lock().push((self.process, self.task.clone()));
        }
    }
}

impl<D: Dialect> Pool<D> {
    /// Connects when the first statement comes.
    ///
    /// # Errors
    /// [`io::Error`] if the record of the last database cannot be read.
    pub fn new(settings: Settings, credentials: Credentials) -> io::Result<Self> {
        let recorded = settings.last_used.read()?;
        let connecting = Health::unavailable(format!("no connection to {} yet", D::NAME));
        Ok(Self {
            dialect: D::of(&settings),
            has_soft: D::has_soft(&settings),
            credentials: ArcSwap::from_pointee(credentials),
            first: AtomicUsize::new(0),
            known: Mutex::new(Known {
                origin: recorded,
                ..Known::default()
            }),
            recorded: Arc::new(Mutex::new(recorded)),
            recording: tokio::sync::Mutex::default(),
            permits: Arc::new(Semaphore::new(settings.connections)),
            idle: Mutex::new(Idle {
                free: Vec::new(),
                drops: 0,
                taken: 0,
            }),
            returned: Notify::new(),
            soft: tokio::sync::Mutex::default(),
            stuck: Mutex::default(),
            written: LastWritten::default(),
            longest_ttl: AtomicU64::new(micros(settings.longest_ttl)),
            health: watch::channel(connecting).0,
            cause: Mutex::default(),
            warnings: Mutex::default(),
            settings,
        })
    }

    /// Replaces the credentials for new connections.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.credentials.store(Arc::new(credentials));
    }

    /// Runs statements on a connection for batches. At the deadline the caller is answered, and the connection is left to
    /// what still runs: a server that waits for its standby would otherwise be left with one more session each time.
    ///
    /// # Errors
    /// [`BackendError::NotSent`] if there was no effect.
    ///
    /// # Cancellation safety
    /// The statements run on.
    pub async fn run<T, F>(self: &Arc<Self>, work: impl FnOnce(Working<D>) -> F) -> Result<T, BackendError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, SqlError>> + Send + 'static,
    {
        let limit = self.settings.timeout;
        let deadline = Instant::now() + limit;
        let taken = self.take(deadline).await.map_err(|problem| {
            self.report(Some(problem.clone()));
            not_sent(problem)
        })?;
        let (process, work) = (taken.session.process, work(Arc::clone(&taken.session)));
        let mut task = tokio::spawn(async move {
            let result = work.await;
            taken.pool.finish(&taken, &result);
            drop(taken);
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
            Ok(Ok(Err(error @ SqlError::RolledBack { .. }))) => Err(not_sent(error)),
            Ok(Ok(Err(error))) => Err(unavailable(error)),
            Ok(Err(_)) => Err(unavailable(format_args!("the connection to {} was given up", D::NAME))),
            Err(_) => {
                let mut problem = format!("{} did not answer within {limit:?}", D::NAME);
                self.report(Some(problem.clone()));
                if let Some(cause) = self.cause.lock().as_ref() {
                    problem = format!("{problem}: {cause}");
                }
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
    pub async fn run_soft<T, F>(&self, work: impl FnOnce(Working<D>) -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, SqlError>>,
    {
        let limit = self.settings.timeout;
        let deadline = Instant::now() + limit;
        let session = timeout_at(deadline, self.soft_session()).await;
        let session = session.unwrap_or_else(|_| Err(format!("no connection to {} within {limit:?}", D::NAME)));
        let result = timeout_at(deadline, work(session.map_err(not_sent)?)).await;
        match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error @ SqlError::RolledBack { .. })) => return Err(not_sent(error)),
            _ => *self.soft.lock().await = None,
        }
        let problem = format_args!("the connection to {} failed, or did not answer in time", D::NAME);
        Err(unavailable(problem))
    }

    /// Sends messages. Those that cannot be sent are lost.
    pub fn notify(self: &Arc<Self>, messages: Vec<(LockName, Stamp, Message)>) {
        if messages.is_empty() || !self.has_soft {
            return;
        }
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let notify = |session: Working<D>| async move { session.connection.notify(&messages).await };
            if let Err(error) = pool.run_soft(notify).await {
                tracing::debug!(%error, "messages were lost");
            }
        });
    }

    async fn soft_session(&self) -> Result<Working<D>, String> {
        let mut soft = self.soft.lock().await;
        if let Some(session) = soft.as_ref().filter(|session| self.is_usable(session)) {
            return Ok(Arc::clone(session));
        }
        let session = self.connect(Use::Soft).await?;
        Ok(Arc::clone(soft.insert(Arc::new(session))))
    }

    /// Waits until the standbys have what was read: a commit of another server whose wait for them was cancelled would
    /// otherwise be answered, and a promotion lose it.
    ///
    /// # Errors
    /// [`SqlError`] if it is not confirmed.
    pub async fn confirm(self: &Arc<Self>, session: &Session<D::Connection>) -> Result<(), SqlError> {
        match session.usage {
            _ if self.settings.replication != Replication::Synchronous => Ok(()),
            Use::Hard => session.connection.confirm().await,
            // A commit there waits for no standby.
            Use::Soft => {
                let confirm = |hard: Working<D>| async move { hard.connection.confirm().await };
                let confirmed = self.run(confirm).await;
                confirmed.map_err(|error| SqlError::Failed(error.to_string()))
            }
        }
    }

    /// Commits nothing, and says whether that succeeds.
    ///
    /// # Errors
    /// [`BackendError`] if that fails.
    pub(super) async fn try_commit(self: &Arc<Self>) -> Result<(), BackendError> {
        let try_it = |session: Working<D>| async move { session.connection.try_commit().await };
        self.run(try_it).await?;
        self.report(None);
        Ok(())
    }

    async fn take(self: &Arc<Self>, deadline: Instant) -> Result<Taken<D>, String> {
        let in_time = format!("within {:?}", self.settings.timeout);
        let permit = timeout_at(deadline, Arc::clone(&self.permits).acquire_owned()).await;
        let permit = permit.map_err(|_| format!("no connection to {} was free {in_time}", D::NAME))?;
        let permit = permit.map_err(|_| "the store is closed")?;
        let taken = |(session, drops)| Taken {
            pool: Arc::clone(self),
            session,
            drops,
            _permit: permit,
        };
        if let Some(free) = self.next_free() {
            return Ok(taken(free));
        }
        let drops = self.idle.lock().drops;
        let connected = timeout_at(deadline, self.connect(Use::Hard)).await;
        let problem = match connected.map_err(|_| format!("no connection to {} {in_time}", D::NAME))? {
            Ok(session) => {
                self.report(None);
                self.idle.lock().taken += 1;
                return Ok(taken((Arc::new(session), drops)));
            }
            Err(problem) => problem,
        };
        // The server may refuse one more, and serve those that it has.
        loop {
            let returned = self.returned.notified();
            if let Some(free) = self.next_free() {
                return Ok(taken(free));
            }
            if self.idle.lock().taken == 0 || timeout_at(deadline, returned).await.is_err() {
                return Err(problem);
            }
        }
    }

    /// A free connection that is usable, and how often the free ones were dropped by now. It counts as taken.
    fn next_free(&self) -> Option<(Working<D>, u64)> {
        let mut idle = self.idle.lock();
        while let Some(session) = idle.free.pop() {
            if self.is_usable(&session) {
                idle.taken += 1;
                return Some((session, idle.drops));
            }
        }
        None
    }

    /// Drops the free connections, and those that still run something once they are free: what ended one has perhaps ended
    /// them, too, and a client may not have noticed.
    pub(super) fn drop_free(&self) {
        let mut idle = self.idle.lock();
        idle.drops += 1;
        let sessions = std::mem::take(&mut idle.free);
        drop(idle);
        drop(sessions);
    }

    /// Keeps a connection, unless the free ones were dropped since it was taken.
    fn keep(&self, taken: &Taken<D>) {
        let mut idle = self.idle.lock();
        if idle.drops == taken.drops {
            idle.free.push(Arc::clone(&taken.session));
        }
    }

    fn is_usable(&self, session: &Session<D::Connection>) -> bool {
        !session.connection.is_closed() && session.origin == self.known.lock().origin
    }

    fn finish<T>(&self, taken: &Taken<D>, result: &Result<T, SqlError>) {
        match result {
            Ok(_) => self.keep(taken),
            Err(error) => {
                match error.because() {
                    None => self.drop_free(),
                    Some(Because::ReadOnly) => {}
                    Some(_) => self.keep(taken),
                }
                self.report(Some(error.to_string()));
            }
        }
    }

    /// Connects to the primary.
    ///
    /// # Errors
    /// What is wrong with each server.
    pub(super) async fn connect(&self, usage: Use) -> Result<Session<D::Connection>, String> {
        let Settings {
            servers,
            connect_timeout: limit,
            ..
        } = &self.settings;
        let (first, credentials) = (self.first.load(Ordering::Relaxed), self.credentials.load_full());
        let mut problems = Vec::new();
        for at in first..first + servers.len() {
            let (server, mut known) = (&servers[at % servers.len()], *self.known.lock());
            // An attempt that is given up must not keep the next one from the servers behind it.
            self.first.store((at + 1) % servers.len(), Ordering::Relaxed);
            let open = async {
                let mut opened = self.dialect.open(server, &self.settings, &credentials, usage).await?;
                loop {
                    let stored = self.enter(&opened, &known).await?;
                    self.share_longest_ttl(&opened.connection).await?;
                    opened.origin = stored.origin;
                    match self.known.lock().accept(&known, &stored) {
                        Verdict::Accepted => return Ok(opened),
                        Verdict::Replaced => return Err(SqlError::Failed(REPLACED.into())),
                        Verdict::Again(now) => known = now,
                    }
                }
            };
            let problem = match timeout(*limit, open).await {
                Ok(Ok(session)) => {
                    self.first.store(at % servers.len(), Ordering::Relaxed);
                    self.record(session.origin).await;
                    return Ok(session);
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no connection within {limit:?}"),
            };
            problems.push(format!("{} at {server}: {problem}", D::NAME));
        }
        Err(problems.join("; "))
    }
}
