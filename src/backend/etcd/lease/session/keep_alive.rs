//! The session's keep-alives. They are sent over two connections: over that of the calls, to notice when it breaks, and
//! over a separate one, where no call delays them.

use std::future::pending;
use std::time::Duration;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{AGAIN, Session, SessionEpoch};
use crate::backend::etcd::cluster::{Failure, failure};
use crate::backend::etcd::lease::{seconds, ttl_of};

/// When the last answered keep-alive was sent, over either connection.
pub struct Alive(Mutex<Instant>);

impl Alive {
    pub fn now() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    pub fn note(&self, sent: Instant) {
        let mut last = self.0.lock();
        *last = sent.max(*last);
    }

    pub fn since(&self) -> Duration {
        self.0.lock().elapsed()
    }
}

impl Session {
    pub fn keep_alive_every(&self) -> Duration {
        ttl_of(seconds(self.ttl)) / 4
    }

    /// Keeps the session alive over a connection that carries no calls. Returns when etcd reports that the lease is
    /// dead.
    pub async fn keep_apart(&self, epoch: SessionEpoch, alive: &Alive) {
        let every = self.keep_alive_every();
        let mut stream = None;
        let mut connections = self.link.connections();
        loop {
            let sent = Instant::now();
            match timeout(every, self.send_apart(&mut stream, epoch)).await {
                Ok(Ok(true)) => alive.note(sent),
                Ok(Ok(false)) => return,
                Ok(Err(_)) | Err(_) => {
                    stream = None;
                    self.link.sessions_turn_away();
                }
            }
            let pause = if stream.is_some() { every } else { AGAIN };
            tokio::select! {
                // The credentials were replaced: a new connection uses the new ones.
                _ = connections.changed() => stream = None,
                () = sleep(pause) => {}
            }
        }
    }

    async fn send_apart(&self, stream: &mut Option<KeepAliveChannel>, epoch: SessionEpoch) -> Result<bool, Failure> {
        if let Some(open) = stream {
            return keep_alive_on(open).await;
        }
        let mut client = self.link.for_sessions().await?;
        match client.lease_keep_alive(epoch.session).await {
            Ok(opened) => *stream = Some(opened),
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => return Ok(false),
            Err(error) => return Err(failure(&error)),
        }
        Ok(true)
    }
}

/// Waits until an idle stream breaks, and returns the cause.
pub async fn breaks(stream: &mut Option<KeepAliveChannel>) -> Failure {
    let Some((_, answers)) = stream else {
        return pending().await;
    };
    let ended = || Failure::Unavailable("etcd: the stream of keep-alives ended".into());
    let failure = match answers.message().await {
        Err(error) => failure(&error),
        Ok(_) => ended(),
    };
    *stream = None;
    failure
}

/// Sends one keep-alive. False if the lease is dead.
pub async fn keep_alive_on((keeper, answers): &mut KeepAliveChannel) -> Result<bool, Failure> {
    keeper.keep_alive().await.map_err(|error| failure(&error))?;
    match answers.message().await.map_err(|error| failure(&error))? {
        Some(answer) => Ok(answer.ttl() > 0),
        None => Err(Failure::Unavailable("etcd: the stream of keep-alives ended".into())),
    }
}

/// An open stream of keep-alives.
pub type KeepAliveChannel = (LeaseKeeper, LeaseKeepAliveStream);
