//! The PostgreSQL store: records that are replaced by compare-and-set, on the clock of the database.
//!
//! - [`statements`]: the tables, and each statement on them.
//! - [`connection`]: TLS, the login and the handshake with the primary.
//! - [`pool`]: the other connections, the quarantine after a promotion, and the health.
//! - [`mod@batch`]: commits and reads of many locks in one statement.
//! - [`watching`]: the connection that listens.
//! - [`messages`]: LISTEN and NOTIFY.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, pending};
use parking_lot::Mutex;
use std::ops::Range;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::batch::{Answer, Request, execute, listed, number, version};
use self::connection::{Connection, ConnectionError};
use self::pool::Pool;
use self::settings::{Credentials, Settings};
use self::statements::{MAX_ROWS, Statement};
use super::failure::{not_sent, unavailable};
use super::record::store::{Commit, Committed, Found, Heard, RecordStore, Root, ServerId, Stamp, Version};
use super::record::{Engine, EngineSettings};
use super::{Backend, BackendError, Health};
use crate::batch::{BatchBounds, BatchSender, batch};
use crate::name::{LockName, Namespace};

mod batch;
pub mod config;
mod connection;
mod messages;
mod pool;
pub mod settings;
mod statements;
mod watching;

/// How many steps may be queued.
const QUEUE: usize = 64 * 1024;
/// How long a lost message may stay unnoticed.
const POLL: Duration = Duration::from_secs(1);
/// The same where there are no messages.
const POOLER_POLL: Duration = Duration::from_millis(20);

type Steps = BatchSender<Request, Result<Answer, BackendError>>;

/// An open store. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Store(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    pool: Arc<Pool>,
    hard: Steps,
    soft: Steps,
    watch: AbortHandle,
    /// The id of the next namespace's server. Each has its own, because messages are sent to it.
    next_server: AtomicU64,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// One namespace's records.
#[derive(Debug)]
struct Records {
    shared: Arc<Shared>,
    /// What each id begins with: the namespace and a zero byte.
    namespace: Vec<u8>,
    /// The servers whose messages are read.
    servers: Mutex<Vec<ServerId>>,
    is_closed: AtomicBool,
}

impl Store {
    /// Opens a store. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BackendError::Broken`] without random numbers.
    pub fn open(settings: Settings, credentials: Credentials) -> Result<Self, BackendError> {
        let next_server = ServerId::random()?.0.get().into();
        let in_flight = settings.connections;
        let pool = Arc::new(Pool::new(settings, credentials));
        let steps = |is_soft, in_flight| {
            let bounds = BatchBounds {
                batch: MAX_ROWS,
                in_flight,
                queue: QUEUE,
            };
            let (steps, batches) = batch(bounds);
            let pool = Arc::clone(&pool);
            tokio::spawn(batches.run_many(move |requests| execute(Arc::clone(&pool), is_soft, requests)));
            steps
        };
        Ok(Self(Arc::new(Shared {
            hard: steps(false, in_flight),
            soft: steps(true, 1),
            watch: tokio::spawn(Arc::clone(&pool).watch()).abort_handle(),
            pool,
            next_server,
        })))
    }

    /// The records of a namespace.
    pub fn records(&self, namespace: &Namespace) -> Arc<dyn RecordStore> {
        let mut id = namespace.as_str().as_bytes().to_vec();
        id.push(0);
        Arc::new(Records {
            shared: Arc::clone(&self.0),
            namespace: id,
            servers: Mutex::default(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// The locks of a namespace. Must be called within a tokio runtime.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<dyn Backend> {
        let server = self.0.next_server.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> 1);
        let settings = EngineSettings {
            kind: "postgres",
            guarantee: self.0.pool.settings.replication.guarantee(),
            server: ServerId(NonZeroU64::new(server).unwrap_or(NonZeroU64::MIN)),
        };
        Engine::open(self.records(namespace), settings)
    }

    /// Replaces the credentials for new connections.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.0.pool.set_credentials(credentials);
    }
}

impl Records {
    fn id(&self, name: &str) -> Vec<u8> {
        [self.namespace.as_slice(), name.as_bytes()].concat()
    }

    /// Behind every id that begins with these bytes. No name contains the byte 255, as it is UTF-8.
    fn end(id: &[u8]) -> Vec<u8> {
        [id, &[255]].concat()
    }

    /// The name of a row.
    fn name(&self, id: &[u8]) -> Option<LockName> {
        let name = std::str::from_utf8(id.strip_prefix(self.namespace.as_slice())?).ok()?;
        LockName::new(name).ok()
    }

    fn pool(&self) -> Result<&Arc<Pool>, BackendError> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(not_sent("the namespace is closed")),
            false => Ok(&self.shared.pool),
        }
    }

    async fn ask(&self, is_soft: bool, request: Request) -> Result<Answer, BackendError> {
        let pool = self.pool()?;
        let steps = match is_soft && !pool.settings.pooler {
            true => &self.shared.soft,
            false => &self.shared.hard,
        };
        steps
            .ask(request)
            .await
            .unwrap_or_else(|closed| Err(unavailable(closed)))
    }

    async fn page(
        &self,
        statement: Statement,
        values: [Vec<u8>; 2],
        limits: (Vec<u8>, usize),
        period: Duration,
    ) -> Result<Vec<(LockName, Root, Stamp)>, BackendError> {
        let [first, second] = values;
        let (end, limit) = (limits.0, i64::try_from(limits.1).unwrap_or(i64::MAX));
        let period = i64::try_from(period.as_micros()).unwrap_or(i64::MAX);
        let pool = Arc::clone(self.pool()?);
        let query = self.pool()?.run(|connection| async move {
            let rows = match statement {
                Statement::Idle => connection.query(statement, &[&second, &end, &limit, &period]).await?,
                _ => connection.query(statement, &[&first, &second, &end, &limit]).await?,
            };
            pool.confirm(&connection).await?;
            Ok(rows)
        });
        let rows = query.await?;
        let named = rows.iter().filter_map(|row| {
            let name = row.try_get(0).map(|id| self.name(id)).transpose()?;
            Some(
                name.map_err(ConnectionError::from)
                    .and_then(|name| listed(row).map(|(root, now)| (name, root, now))),
            )
        });
        named.collect::<Result<_, _>>().map_err(unavailable)
    }
}

#[async_trait]
impl RecordStore for Records {
    async fn commit(&self, commit: Commit) -> Result<Committed, BackendError> {
        let (id, is_soft) = (self.id(commit.lock.as_str()), commit.soft);
        match self.ask(is_soft, Request::Commit(id, commit)).await? {
            Answer::Committed(committed) => Ok(committed),
            Answer::Found(_) => Err(unavailable("a commit was answered as a read")),
        }
    }

    async fn read(&self, lock: &LockName, known: Option<Version>) -> Result<Found, BackendError> {
        match self.ask(false, Request::Read(self.id(lock.as_str()), known)).await? {
            Answer::Found(found) => Ok(found),
            Answer::Committed(_) => Err(unavailable("a read was answered as a commit")),
        }
    }

    async fn parts(&self, lock: &LockName, parts: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>, BackendError> {
        let (id, first, after) = (self.id(lock.as_str()), number(parts.start), number(parts.end));
        let query = self
            .pool()?
            .run(|connection| async move { connection.query(Statement::Parts, &[&id, &first, &after]).await });
        let rows = query.await?;
        let parts = rows
            .iter()
            .map(|row| Ok((row.try_get::<_, i64>(0)?.cast_unsigned(), row.try_get(1)?)));
        parts.collect::<Result<_, tokio_postgres::Error>>().map_err(unavailable)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root, Stamp)>, BackendError> {
        let (first, after) = (self.id(prefix), self.id(after.unwrap_or_default()));
        let end = Self::end(&first);
        self.page(Statement::List, [first, after], (end, limit), Duration::ZERO)
            .await
    }

    async fn idle(
        &self,
        unused_for: Duration,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root)>, BackendError> {
        let after = self.id(after.unwrap_or_default());
        let end = Self::end(&self.namespace);
        let idle = self
            .page(Statement::Idle, [Vec::new(), after], (end, limit), unused_for)
            .await?;
        Ok(idle.into_iter().map(|(name, root, _)| (name, root)).collect())
    }

    async fn remove(&self, roots: &[(LockName, Version)], floor: u64) -> Result<(), BackendError> {
        // In the order in which batches lock their rows.
        let mut rows: Vec<_> = roots
            .iter()
            .map(|(name, at)| (self.id(name.as_str()), version(*at)))
            .collect();
        rows.sort_unstable();
        let (ids, versions): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let floor = number(floor);
        let query = self
            .pool()?
            .run(|connection| async move { connection.query(Statement::Remove, &[&ids, &versions, &floor]).await });
        query.await.map(drop)
    }

    async fn beat(&self, server: ServerId) -> Result<Vec<(ServerId, u64)>, BackendError> {
        let (pool, namespace, id) = (self.pool()?, self.namespace.clone(), number(server.0.get()));
        let beat =
            |connection: Arc<Connection>| async move { connection.query(Statement::Beat, &[&namespace, &id]).await };
        let rows = match pool.settings.pooler {
            true => pool.run(beat).await?,
            false => pool.run_soft(beat).await?,
        };
        let counters = rows
            .iter()
            .map(|row| Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?)));
        let counters: Vec<_> = counters
            .collect::<Result<_, tokio_postgres::Error>>()
            .map_err(unavailable)?;
        let known = counters.into_iter().filter_map(|(id, counter)| {
            let id = u64::try_from(id).ok()?.try_into().ok()?;
            Some((ServerId(id), counter.cast_unsigned()))
        });
        Ok(known.collect())
    }

    fn messages(&self, server: ServerId) -> BoxStream<'static, Heard> {
        if self.shared.pool.settings.pooler {
            return pending().boxed();
        }
        self.servers.lock().push(server);
        self.shared.pool.inboxes.add(server).open()
    }

    fn poll(&self) -> Duration {
        if self.shared.pool.settings.pooler {
            POOLER_POLL
        } else {
            POLL
        }
    }

    async fn admit(&self) -> Result<(), BackendError> {
        self.pool()?.admit().await
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.pool.health()
    }

    async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.servers
            .lock()
            .drain(..)
            .for_each(|server| self.shared.pool.inboxes.remove(server));
    }
}
