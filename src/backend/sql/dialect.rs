//! What each kind of database does its own way.

use std::collections::HashSet;
use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, pending};

use super::error::SqlError;
pub use super::origin::Origin;
use super::rows::{ReadRow, Written};
use super::settings::{Credentials, Settings, Terms};
use super::written::Wrote;
use crate::backend::record::store::{Commit, Heard, Message, Root, ServerId, Stamp, Version};
use crate::name::LockName;

/// The format of the tables that this release reads and writes.
pub const FORMAT: i32 = 1;

/// How a connection is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// For commits that are durable when they are answered.
    Hard,
    /// For commits that may be lost in a crash.
    Soft,
}

/// When a quarantine began, and the time now, both by the database's clock in microseconds.
pub type Quarantine = Option<(i64, i64)>;

/// What a server knows of the store that it enters.
#[derive(Debug)]
pub struct Entry {
    /// The database.
    pub origin: Origin,
    /// The last one that this server has seen.
    pub last: Origin,
    /// Whether no quarantine follows a promotion.
    pub is_spared: bool,
    /// Whether something is missing that this server wrote lately.
    pub is_missing: bool,
    /// What the store is to be used with.
    pub terms: Terms,
}

/// The row of the store.
#[derive(Debug)]
pub struct Stored {
    /// The format of the tables.
    pub format: i32,
    /// The database.
    pub origin: Origin,
    /// The quarantine.
    pub quarantine: Quarantine,
    /// Whether each standby that may be promoted confirms each commit.
    pub all_confirm: bool,
    /// What it was opened with, unless nobody has used it.
    pub terms: Option<Terms>,
}

/// What a check of the database shows.
#[derive(Debug)]
pub struct ServerCheck {
    /// The database.
    pub origin: Origin,
    /// What keeps commits from succeeding.
    pub blocked: Option<String>,
    /// When the quarantine began, if it did.
    pub since: Option<i64>,
    /// The database's clock.
    pub now: i64,
    /// Those of the stuck sessions that still run something.
    pub running: Vec<i64>,
    /// What makes it slow.
    pub warnings: Vec<Warning>,
    /// What the store was opened with, unless that was removed by hand.
    pub terms: Option<Terms>,
}

/// What makes a database slow.
#[derive(Debug)]
pub struct Warning {
    /// What it is, and what it does.
    pub what: &'static str,
    /// What the last check has found.
    pub figures: String,
}

/// A commit of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Its place in the batch.
    pub at: usize,
    /// The id of its row.
    pub id: &'a [u8],
    /// The commit.
    pub commit: &'a Commit,
}

/// Which roots are listed.
#[derive(Debug)]
pub struct Page {
    /// The first id.
    pub first: Vec<u8>,
    /// The id before the first one.
    pub after: Vec<u8>,
    /// The id after the last one.
    pub end: Vec<u8>,
    /// The most roots.
    pub limit: i64,
    /// For how many microseconds they were not written; 0: all.
    pub unused_for: i64,
}

/// A kind of database, with what its connections share.
#[async_trait]
pub trait Dialect: Debug + Sized + Send + Sync + 'static {
    /// The name in the configuration.
    const KIND: &'static str;
    /// The name for people.
    const NAME: &'static str;
    /// A connection.
    type Connection: Connection;

    /// That of a store with these settings.
    fn of(settings: &Settings) -> Self;

    /// Whether sessions hear messages, and may commit without waiting for the disk.
    fn has_soft(settings: &Settings) -> bool;

    /// Connects to a server, and checks that the store may be used there.
    ///
    /// # Errors
    /// [`SqlError`] if it cannot be reached, or must not be used.
    async fn open(
        &self,
        server: &str,
        settings: &Settings,
        credentials: &Credentials,
        usage: Use,
    ) -> Result<Session<Self::Connection>, SqlError>;

    /// The messages to a server of this process.
    fn messages(&self, _: ServerId) -> BoxStream<'static, Heard> {
        pending().boxed()
    }

    /// Ends the messages to a server of this process.
    fn forget(&self, _: ServerId) {}

    /// Listens on a connection, and returns what is wrong once it failed.
    ///
    /// # Cancellation safety
    /// Dropping it has no effect.
    async fn listen(&self, _: &Self::Connection, _: &Settings) -> String {
        std::future::pending().await
    }
}

/// A connection that has passed the handshake.
#[derive(Debug)]
pub struct Session<C> {
    /// The connection.
    pub connection: C,
    /// How it is used.
    pub usage: Use,
    /// What serves it.
    pub process: i64,
    /// The database.
    pub origin: Origin,
}

/// The statements of a kind of database.
///
/// # Errors
/// [`SqlError::RolledBack`] if a statement had no effect; after others that is unknown.
///
/// # Cancellation safety
/// The statement runs on.
#[async_trait]
pub trait Connection: Debug + Send + Sync + 'static {
    /// Whether it has ended.
    fn is_closed(&self) -> bool;

    /// Creates the tables, unless others do it now.
    async fn create_tables(&self) -> Result<(), SqlError>;

    /// Notes which database the store is in, what it is used with, and when a quarantine began: if another database was noted
    /// or is the last one that this server has seen, unless a promotion there is spared; if tables are new where this server
    /// or the store knew others; and if something is missing. Changes nothing in a store that was opened with other terms.
    /// Returns the row of the store.
    async fn enter(&self, entry: &Entry) -> Result<Option<Stored>, SqlError>;

    /// How many of these commits one statement takes; at least one.
    fn fitting(&self, rows: &[Row<'_>]) -> usize {
        rows.len()
    }

    /// Commits these, which are sorted by id, so that batches lock their rows in one order, in the tables that were entered,
    /// if they still have what this server wrote last. Returns those that took effect, by their number.
    async fn write(&self, rows: &[Row<'_>], last: Option<&Wrote>) -> Result<Vec<(usize, Written)>, SqlError>;

    /// The ids of the rows that transactions of others have locked.
    async fn locked(&self, ids: &[&[u8]]) -> Result<HashSet<Vec<u8>>, SqlError>;

    /// Reserves rows for the commits that were refused and ask for it.
    async fn reserve(&self, rows: &[Row<'_>]) -> Result<(), SqlError>;

    /// Reads roots, in this order.
    async fn read(&self, rows: &[(&[u8], Option<Version>)]) -> Result<Vec<ReadRow>, SqlError>;

    /// Reads parts of a root.
    async fn parts(&self, id: &[u8], parts: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>, SqlError>;

    /// Lists roots, with the clocks now.
    async fn page(&self, page: &Page) -> Result<Vec<(Vec<u8>, Root, Stamp)>, SqlError>;

    /// Raises the floor and removes roots, which are sorted.
    async fn remove(&self, rows: &[(Vec<u8>, i64)], floor: i64) -> Result<(), SqlError>;

    /// Counts a beat, and returns all counters.
    async fn beat(&self, namespace: &[u8], server: i64) -> Result<Vec<(i64, i64)>, SqlError>;

    /// Removes a counter.
    async fn leave(&self, namespace: &[u8], server: i64) -> Result<(), SqlError>;

    /// A commit that changes nothing. Its answer says that those before it are as durable as it is.
    async fn confirm(&self) -> Result<(), SqlError>;

    /// A commit that changes nothing, and fails if others would.
    async fn try_commit(&self) -> Result<(), SqlError> {
        self.confirm().await
    }

    /// Ends the quarantine.
    async fn admit(&self) -> Result<(), SqlError>;

    /// Raises the longest TTL, in microseconds, that any server may have granted here, and returns it. It never falls: a
    /// server that grants shorter ones does not know when the last of the others has ended.
    async fn raise_longest_ttl(&self, ttl: i64) -> Result<i64, SqlError>;

    /// Checks the database, which was this one when the connection was opened, and what this server wrote last.
    async fn check_server(
        &self,
        origin: Origin,
        stuck: &[i64],
        last: Option<&Wrote>,
    ) -> Result<Option<ServerCheck>, SqlError>;

    /// Sends messages.
    async fn notify(&self, _: &[(LockName, Stamp, Message)]) -> Result<(), SqlError> {
        Ok(())
    }
}
