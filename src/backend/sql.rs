//! Records in a SQL database, which are replaced by compare-and-set, on the clock of the database.
//!
//! - [`dialect`]: what each kind of database does its own way: its connections and statements.
//! - [`pool`]: the connections, and [`entering`]: what they find.
//! - [`known`]: what a server knows of the database.
//! - [`health`]: the quarantine after a promotion, the health, and warnings.
//! - [`promotion`]: whether a database has all that was committed, by what was [`written`] last.
//! - [`last_used`]: which database, by its [`origin`], it was before the start.
//! - [`mod@batch`]: commits and reads of many locks in one statement.
//! - [`watching`]: the connection that listens, and checks the database.
//! - [`error`]: why a statement failed.
//! - [`rows`]: ids, versions and clocks.
//! - [`settings`] and [`config`]: what all stores of this kind are told.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::batch::{Answer, Request, execute};
use self::dialect::{Connection, Dialect, Page};
use self::pool::{Pool, Working};
use self::rows::{Ids, number, version};
use self::settings::{Credentials, Settings};
use super::failure::{broken, not_sent, unavailable};
use super::record::store::{Commit, Committed, Found, Heard, RecordStore, Root, ServerId, Stamp, Version};
use super::record::{Engine, EngineSettings};
use super::{Backend, BackendError, Health};
use crate::batch::{BatchBounds, BatchSender, batch};
use crate::name::{LockName, Namespace};
use crate::supervisor::supervise;

mod batch;
pub mod config;
pub mod dialect;
mod entering;
pub mod error;
mod health;
mod known;
mod last_used;
mod origin;
mod pool;
mod promotion;
pub mod rows;
pub mod settings;
mod watching;
pub mod written;

/// The most steps of a batch.
const MAX_ROWS: usize = 512;
/// How many steps may be queued.
const QUEUE: usize = 64 * 1024;
/// How soon after its last change a lock is read again, in case a message was lost.
const POLL: Duration = Duration::from_secs(1);
/// The same where there are no messages.
const POLL_WITHOUT: Duration = Duration::from_millis(20);

type Steps = BatchSender<Request, Result<Answer, BackendError>>;

/// An open store. Clones share its connections.
#[derive(Debug)]
pub struct Store<D: Dialect>(Arc<Shared<D>>);

#[derive(Debug)]
struct Shared<D: Dialect> {
    pool: Arc<Pool<D>>,
    hard: Steps,
    soft: Steps,
    watch: AbortHandle,
    /// The id of the next namespace's server. Each has its own, because messages are sent to it.
    next_server: AtomicU64,
}

impl<D: Dialect> Clone for Store<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Dialect> Drop for Shared<D> {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// One namespace's records.
#[derive(Debug)]
struct Records<D: Dialect> {
    shared: Arc<Shared<D>>,
    ids: Ids,
    /// The servers whose messages are read.
    servers: Mutex<Vec<ServerId>>,
    is_closed: AtomicBool,
}

impl<D: Dialect> Store<D> {
    /// Opens a store. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BackendError::Broken`] without random numbers, or if the record of the last database is damaged.
    pub fn open(settings: Settings, credentials: Credentials) -> Result<Self, BackendError> {
        let next_server = ServerId::random()?.0.get().into();
        let in_flight = settings.connections;
        let pool = Arc::new(Pool::new(settings, credentials).map_err(broken)?);
        let steps = |is_soft, in_flight| {
            let bounds = BatchBounds {
                batch: MAX_ROWS,
                in_flight,
                queue: QUEUE,
            };
            let (steps, batches) = batch(bounds);
            let pool = Arc::clone(&pool);
            supervise("sql: batches", batches, move |batches| {
                let pool = Arc::clone(&pool);
                let execute = move |requests| execute(Arc::clone(&pool), is_soft, requests);
                batches.run_many(execute).boxed()
            });
            steps
        };
        Ok(Self(Arc::new(Shared {
            hard: steps(false, in_flight),
            soft: steps(true, 1),
            watch: pool.start_watching().abort_handle(),
            pool,
            next_server,
        })))
    }

    /// The records of a namespace.
    pub fn records(&self, namespace: &Namespace) -> Arc<dyn RecordStore> {
        Arc::new(Records {
            shared: Arc::clone(&self.0),
            ids: Ids::of(namespace),
            servers: Mutex::default(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// The locks of a namespace. Must be called within a tokio runtime.
    pub fn namespace(&self, namespace: &Namespace) -> Arc<dyn Backend> {
        let server = self.0.next_server.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> 1);
        let settings = EngineSettings {
            kind: D::KIND,
            guarantee: self.0.pool.settings.guarantee(),
            server: ServerId(NonZeroU64::new(server).unwrap_or(NonZeroU64::MIN)),
        };
        Engine::open(self.records(namespace), settings)
    }

    /// Raises the longest TTL of a namespace. No connection is used further that has not told the database.
    pub fn raise_longest_ttl(&self, ttl: Duration) {
        self.0.pool.raise_longest_ttl(ttl);
    }

    /// Replaces the credentials for new connections.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.0.pool.set_credentials(credentials);
    }
}

impl<D: Dialect> Records<D> {
    fn pool(&self) -> Result<&Arc<Pool<D>>, BackendError> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(not_sent("the namespace is closed")),
            false => Ok(&self.shared.pool),
        }
    }

    async fn ask(&self, is_soft: bool, request: Request) -> Result<Answer, BackendError> {
        let has_soft = self.pool()?.has_soft;
        let steps = match is_soft && has_soft {
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
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        unused_for: Duration,
    ) -> Result<Vec<(LockName, Root, Stamp)>, BackendError> {
        let first = self.ids.id(prefix);
        let page = Page {
            after: self.ids.id(after.unwrap_or_default()),
            // Behind every id that begins with these bytes. No name contains the byte 255, as it is UTF-8.
            end: [first.as_slice(), &[255]].concat(),
            first,
            limit: i64::try_from(limit).unwrap_or(i64::MAX),
            unused_for: i64::try_from(unused_for.as_micros()).unwrap_or(i64::MAX),
        };
        let pool = Arc::clone(self.pool()?);
        let listed = self.pool()?.run(|session: Working<D>| async move {
            let rows = session.connection.page(&page).await?;
            pool.confirm(&session).await?;
            Ok(rows)
        });
        let rows = listed.await?.into_iter();
        Ok(rows
            .filter_map(|(id, root, now)| Some((self.ids.name(&id)?, root, now)))
            .collect())
    }
}

#[async_trait]
impl<D: Dialect> RecordStore for Records<D> {
    async fn commit(&self, commit: Commit) -> Result<Committed, BackendError> {
        let (id, is_soft) = (self.ids.id(commit.lock.as_str()), commit.soft);
        match self.ask(is_soft, Request::Commit(id, commit)).await? {
            Answer::Committed(committed) => Ok(committed),
            Answer::Found(_) => Err(unavailable("a commit was answered as a read")),
        }
    }

    async fn read(&self, lock: &LockName, known: Option<Version>) -> Result<Found, BackendError> {
        match self
            .ask(false, Request::Read(self.ids.id(lock.as_str()), known))
            .await?
        {
            Answer::Found(found) => Ok(found),
            Answer::Committed(_) => Err(unavailable("a read was answered as a commit")),
        }
    }

    async fn parts(&self, lock: &LockName, parts: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>, BackendError> {
        let id = self.ids.id(lock.as_str());
        let read = |session: Working<D>| async move { session.connection.parts(&id, parts).await };
        self.pool()?.run(read).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root, Stamp)>, BackendError> {
        self.page(prefix, after, limit, Duration::ZERO).await
    }

    async fn idle(
        &self,
        unused_for: Duration,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root)>, BackendError> {
        let idle = self.page("", after, limit, unused_for).await?;
        Ok(idle.into_iter().map(|(name, root, _)| (name, root)).collect())
    }

    async fn remove(&self, roots: &[(LockName, Version)], floor: u64) -> Result<(), BackendError> {
        // In the order in which batches lock their rows.
        let mut rows: Vec<_> = roots
            .iter()
            .map(|(name, at)| (self.ids.id(name.as_str()), version(*at)))
            .collect();
        rows.sort_unstable();
        self.pool()?.written.forget(&rows);
        let remove = |session: Working<D>| async move { session.connection.remove(&rows, number(floor)).await };
        self.pool()?.run(remove).await
    }

    async fn beat(&self, server: ServerId) -> Result<Vec<(ServerId, u64)>, BackendError> {
        let (pool, namespace, id) = (self.pool()?, self.ids.namespace.clone(), number(server.0.get()));
        let beat = |session: Working<D>| async move { session.connection.beat(&namespace, id).await };
        let counters = match pool.has_soft {
            true => pool.run_soft(beat).await?,
            false => pool.run(beat).await?,
        };
        let known = counters.into_iter().filter_map(|(id, counter)| {
            let id = u64::try_from(id).ok()?.try_into().ok()?;
            Some((ServerId(id), counter.cast_unsigned()))
        });
        Ok(known.collect())
    }

    async fn leave(&self, server: ServerId) -> Result<(), BackendError> {
        let (pool, namespace, id) = (self.pool()?, self.ids.namespace.clone(), number(server.0.get()));
        let leave = |session: Working<D>| async move { session.connection.leave(&namespace, id).await };
        match pool.has_soft {
            true => pool.run_soft(leave).await,
            false => pool.run(leave).await,
        }
    }

    fn messages(&self, server: ServerId) -> BoxStream<'static, Heard> {
        self.servers.lock().push(server);
        self.shared.pool.dialect.messages(server)
    }

    fn has_messages(&self) -> bool {
        self.shared.pool.has_soft
    }

    fn poll(&self) -> Duration {
        match self.shared.pool.has_soft {
            true => POLL,
            false => POLL_WITHOUT,
        }
    }

    async fn admit(&self) -> Result<(), BackendError> {
        self.pool()?.admit().await
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.pool.health()
    }

    fn warning(&self) -> Option<String> {
        self.shared.pool.warning()
    }

    async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let servers = std::mem::take(&mut *self.servers.lock());
        servers
            .into_iter()
            .for_each(|server| self.shared.pool.dialect.forget(server));
    }
}
