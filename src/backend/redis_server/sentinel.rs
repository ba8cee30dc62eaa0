//! Which server to use: a fixed one, or the one that the sentinels name as master.
//!
//! Sentinels are asked over connections that stay open: a new one each time costs them a handshake, and with TLS a
//! key exchange, several times a second for each server of ours.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Pipeline, RedisError, RedisResult};
use tokio::time::{Instant, sleep, timeout};

use super::failure::away;
use super::node::connect;
use super::credentials::located;
use super::settings::Settings;
use crate::backend::BackendError;

/// How often the sentinels are asked: a failover is followed within this and one handshake.
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// How long the other sentinels have when the first one has answered.
const OTHERS: Duration = Duration::from_millis(100);
/// The longest pause between two attempts to reach a server that always is the same.
const BACK_OFF: Duration = Duration::from_secs(1);

/// Finds the server.
#[derive(Debug, Clone)]
pub enum Finder {
    /// Always this one.
    Fixed(ConnectionInfo),
    /// Whom the sentinels name.
    Sentinels {
        /// The master's name there.
        master: String,
        /// The sentinels.
        sentinels: Vec<Arc<Sentinel>>,
        /// How to log in at the master.
        login: ConnectionInfo,
    },
}

/// One sentinel, and the connection to it while there is one.
#[derive(Debug)]
pub struct Sentinel {
    info: ConnectionInfo,
    open: Mutex<Option<Open>>,
}

#[derive(Clone)]
struct Open {
    connection: MultiplexedConnection,
    /// Since when it owes an answer.
    owes: Option<Instant>,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("owes", &self.owes).finish_non_exhaustive()
    }
}

impl Sentinel {
    /// The sentinel at an address, not connected to yet.
    pub fn new(info: ConnectionInfo) -> Arc<Self> {
        Arc::new(Self {
            info,
            open: Mutex::default(),
        })
    }

    fn open(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open connection, or a new one where it has owed an answer for too long: who asked may not have waited
    /// until it was seen to be dead.
    async fn connection(&self, settings: &Settings) -> Result<MultiplexedConnection, BackendError> {
        if let Some(open) = &mut *self.open() {
            let owes = *open.owes.get_or_insert_with(Instant::now);
            if owes.elapsed() <= settings.response_timeout {
                return Ok(open.connection.clone());
            }
        }
        let connection = connect(settings, settings.proof.at_sentinel(&self.info), |_| {}).await?;
        *self.open() = Some(Open {
            connection: connection.clone(),
            owes: Some(Instant::now()),
        });
        Ok(connection)
    }

    /// What became of a question: a connection that failed is given up.
    fn answered(&self, well: bool) {
        let mut open = self.open();
        match &mut *open {
            Some(open) if well => open.owes = None,
            _ => *open = None,
        }
    }
}

impl Finder {
    /// The server to connect to now.
    ///
    /// # Errors
    /// Away when no sentinel knows.
    pub async fn find(&self, settings: &Settings) -> Result<ConnectionInfo, BackendError> {
        match self {
            Self::Fixed(info) => Ok(info.clone()),
            Self::Sentinels {
                master,
                sentinels,
                login,
            } => {
                let (host, port) = ask_all(settings, sentinels, master).await?;
                Ok(login.clone().set_addr(located(login.addr(), host, port)))
            }
        }
    }

    /// The longest pause between two attempts to reach the server.
    pub fn back_off(&self) -> Duration {
        match self {
            Self::Fixed(_) => BACK_OFF,
            Self::Sentinels { .. } => ASK_AGAIN,
        }
    }

    /// Waits until the server to use is another one than `now`.
    pub async fn moved(&self, settings: &Settings, now: &ConnectionInfo) {
        let Self::Sentinels { master, sentinels, .. } = self else {
            return std::future::pending().await;
        };
        loop {
            sleep(ASK_AGAIN).await;
            if let Ok((host, port)) = ask_all(settings, sentinels, master).await
                && located(now.addr(), host, port) != *now.addr()
            {
                return;
            }
        }
    }
}

/// The master's address, where it is known.
type Address = Option<(String, u16)>;

/// What one sentinel says.
struct Named {
    at: (String, u16),
    /// Rises with each failover: whoever says more has heard of more.
    epoch: u64,
}

/// Asks all sentinels at once, for some hear of a failover two seconds after the others, and one that
/// hangs must not hold up the rest.
async fn ask_all(
    settings: &Settings,
    sentinels: &[Arc<Sentinel>],
    master: &str,
) -> Result<(String, u16), BackendError> {
    let mut asked: FuturesUnordered<_> = sentinels.iter().map(|one| ask(settings, one, master)).collect();
    let mut newest: Option<Named> = None;
    let mut last = away("there are no sentinels");
    loop {
        let next = match newest {
            None => asked.next().await,
            Some(_) => timeout(OTHERS, asked.next()).await.unwrap_or(None),
        };
        match (next, newest.take()) {
            (Some(Ok(named)), before) => newest = before.filter(|one| one.epoch >= named.epoch).or(Some(named)),
            (Some(Err(error)), before) => (last, newest) = (error, before),
            (None, found) => return found.map(|named| named.at).ok_or(last),
        }
    }
}

async fn ask(settings: &Settings, sentinel: &Sentinel, master: &str) -> Result<Named, BackendError> {
    let mut connection = sentinel.connection(settings).await?;
    let mut both = Pipeline::with_capacity(2);
    both.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    both.cmd("SENTINEL").arg("MASTER").arg(master);
    let answers: RedisResult<(Address, HashMap<String, String>)> = both.query_async(&mut connection).await;
    sentinel.answered(!answers.as_ref().is_err_and(RedisError::is_io_error));
    let (at, fields) = answers.map_err(|error| away(format!("a sentinel on master {master:?}: {error}")))?;
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok());
    match (at, epoch) {
        (Some(at), Some(epoch)) => Ok(Named { at, epoch }),
        _ => Err(away(format!("the sentinels know no master {master:?}"))),
    }
}
