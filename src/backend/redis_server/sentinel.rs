//! Which server to use: a fixed one, or the one that the sentinels name as master.
//!
//! Connections to sentinels stay open. A new connection for each query would cost the sentinels a
//! handshake, and with TLS a key exchange, several times a second for each replica.
//!
//! All sentinels are asked every 300 ms, and the answer with the latest configuration epoch counts. A switch is
//! followed within 200 to 400 ms, and no message can be lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{ConnectionInfo, Pipeline, RedisError, RedisResult};
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Connection, connect};
use super::credentials::located;
use super::failure::unavailable;
use super::settings::Settings;
use crate::backend::BackendError;

/// How often the sentinels are queried: a failover is noticed within this time and one handshake.
const QUERY_INTERVAL: Duration = Duration::from_millis(300);
/// How long the other sentinels have after the first one has answered.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest pause between two attempts to reach a fixed server.
const BACK_OFF: Duration = Duration::from_secs(1);

/// Finds the server.
#[derive(Debug, Clone)]
pub enum Finder {
    /// Always this one.
    Fixed(ConnectionInfo),
    /// The master that the sentinels name.
    Sentinels {
        /// The master's name at the sentinels.
        master: String,
        /// The sentinels.
        sentinels: Vec<Arc<Sentinel>>,
        /// The login for the master.
        login: ConnectionInfo,
    },
}

/// One sentinel, and the connection to it while there is one.
#[derive(Debug)]
pub struct Sentinel {
    info: ConnectionInfo,
    open: Mutex<Option<Open>>,
}

#[derive(Debug, Clone)]
struct Open {
    connection: Connection,
    /// When the oldest unanswered query was sent.
    waiting_since: Option<Instant>,
}

impl Sentinel {
    /// The sentinel at an address; not connected yet.
    pub fn new(info: ConnectionInfo) -> Arc<Self> {
        Arc::new(Self {
            info,
            open: Mutex::default(),
        })
    }

    /// The open connection, or a new one if a query has been unanswered for longer than the
    /// response timeout. The caller of that query may not have waited long enough to detect that
    /// the connection is dead.
    async fn connection(&self, settings: &Settings) -> Result<Connection, BackendError> {
        if let Some(open) = &mut *self.open.lock() {
            let waiting_since = *open.waiting_since.get_or_insert_with(Instant::now);
            if waiting_since.elapsed() <= settings.response_timeout {
                return Ok(open.connection.clone());
            }
        }
        let connection = connect(settings, settings.credentials.at_sentinel(&self.info), |_| {}).await?;
        *self.open.lock() = Some(Open {
            connection: connection.clone(),
            waiting_since: Some(Instant::now()),
        });
        Ok(connection)
    }

    /// Records the result of a query; a failed connection is dropped.
    fn record_result(&self, is_alive: bool) {
        let mut open = self.open.lock();
        match &mut *open {
            Some(open) if is_alive => open.waiting_since = None,
            _ => *open = None,
        }
    }
}

impl Finder {
    /// The server to connect to now.
    ///
    /// # Errors
    /// Unavailable if no sentinel knows the master.
    pub async fn find(&self, settings: &Settings) -> Result<ConnectionInfo, BackendError> {
        match self {
            Self::Fixed(info) => Ok(info.clone()),
            Self::Sentinels {
                master,
                sentinels,
                login,
            } => {
                let (host, port) = query_all(settings, sentinels, master).await?;
                Ok(login.clone().set_addr(located(login.addr(), host, port)))
            }
        }
    }

    /// The longest pause between two attempts to reach the server.
    pub fn longest_pause(&self) -> Duration {
        match self {
            Self::Fixed(_) => BACK_OFF,
            Self::Sentinels { .. } => QUERY_INTERVAL,
        }
    }

    /// Waits until the server to use is another one than `now`.
    pub async fn moved(&self, settings: &Settings, now: &ConnectionInfo) {
        let Self::Sentinels { master, sentinels, .. } = self else {
            return std::future::pending().await;
        };
        loop {
            sleep(QUERY_INTERVAL).await;
            if let Ok((host, port)) = query_all(settings, sentinels, master).await
                && located(now.addr(), host, port) != *now.addr()
            {
                return;
            }
        }
    }
}

/// The master's address, if it is known.
type Address = Option<(String, u16)>;

/// The answer of one sentinel.
struct Reported {
    at: (String, u16),
    /// Rises with each failover: the highest epoch is the most recent information.
    epoch: u64,
}

/// Queries all sentinels at once, because some learn of a failover two seconds after the others,
/// and one that hangs must not delay the rest.
async fn query_all(
    settings: &Settings,
    sentinels: &[Arc<Sentinel>],
    master: &str,
) -> Result<(String, u16), BackendError> {
    let mut queries: FuturesUnordered<_> = sentinels.iter().map(|one| query_one(settings, one, master)).collect();
    let mut newest: Option<Reported> = None;
    let mut last = unavailable("there are no sentinels");
    loop {
        let next = match newest {
            None => queries.next().await,
            Some(_) => timeout(OTHERS_TIMEOUT, queries.next()).await.unwrap_or(None),
        };
        match (next, newest.take()) {
            (Some(Ok(reported)), before) => {
                newest = before.filter(|one| one.epoch >= reported.epoch).or(Some(reported))
            }
            (Some(Err(error)), before) => (last, newest) = (error, before),
            (None, found) => return found.map(|reported| reported.at).ok_or(last),
        }
    }
}

async fn query_one(settings: &Settings, sentinel: &Sentinel, master: &str) -> Result<Reported, BackendError> {
    let mut connection = sentinel.connection(settings).await?;
    let mut both = Pipeline::with_capacity(2);
    both.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    both.cmd("SENTINEL").arg("MASTER").arg(master);
    let answers: RedisResult<(Address, HashMap<String, String>)> = both.query_async(&mut *connection).await;
    sentinel.record_result(!answers.as_ref().is_err_and(RedisError::is_io_error));
    let (at, fields) = answers.map_err(|error| unavailable(format!("a sentinel on master {master:?}: {error}")))?;
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok());
    match (at, epoch) {
        (Some(at), Some(epoch)) => Ok(Reported { at, epoch }),
        _ => Err(unavailable(format!("the sentinels know no master {master:?}"))),
    }
}
