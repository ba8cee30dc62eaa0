//! Which server to use: a fixed one, or the one that the sentinels name as master.

use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo};
use tokio::time::{sleep, timeout};

use super::failure::away;
use super::node::connect;
use super::settings::Settings;
use crate::backend::BackendError;

/// How often the sentinels are asked while all is well: a failover is followed within this and
/// one handshake.
const ASK_AGAIN: Duration = Duration::from_millis(300);

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
        sentinels: Vec<ConnectionInfo>,
        /// How to log in at the master.
        login: ConnectionInfo,
    },
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

    /// Waits until the server to use is another one than `now`.
    pub async fn moved(&self, now: &ConnectionInfo) {
        let Self::Sentinels { master, sentinels, .. } = self else {
            return std::future::pending().await;
        };
        let settings = Settings::new(super::settings::Servers::Standalone(now.clone()));
        loop {
            sleep(ASK_AGAIN).await;
            if let Ok((host, port)) = ask_all(&settings, sentinels, master).await
                && located(now.addr(), host, port) != *now.addr()
            {
                return;
            }
        }
    }
}

/// The address of another server that is reached in the same way.
pub fn located(like: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match like.clone() {
        ConnectionAddr::TcpTls {
            insecure, tls_params, ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    }
}

async fn ask_all(
    settings: &Settings,
    sentinels: &[ConnectionInfo],
    master: &str,
) -> Result<(String, u16), BackendError> {
    let mut last = away("there are no sentinels");
    for sentinel in sentinels {
        match timeout(settings.response_timeout, ask(settings, sentinel, master)).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => last = error,
            Err(_) => last = away("a sentinel did not answer in time"),
        }
    }
    Err(last)
}

async fn ask(settings: &Settings, sentinel: &ConnectionInfo, master: &str) -> Result<(String, u16), BackendError> {
    let mut connection = connect(settings, sentinel, |_| {}).await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let found: Option<(String, u16)> = ask.query_async(&mut connection).await.map_err(away)?;
    found.ok_or_else(|| away(format!("the sentinels know no master {master:?}")))
}
