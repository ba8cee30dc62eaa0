//! The session's keep-alives. They go over two connections: over that of the calls, to tell when it breaks, and over one
//! of their own, where no call delays them.

use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use tokio::time::{Instant, sleep, timeout};

use super::super::leases::{seconds, span};
use super::super::cluster_client::{Failure, failure};
use super::{AGAIN, Session, SessionEpoch};

/// When the last keep-alive was sent that was answered, over whichever connection.
pub struct Alive(Mutex<Instant>);

impl Alive {
    pub fn now() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    pub fn note(&self, sent: Instant) {
        let mut last = self.lock();
        *last = sent.max(*last);
    }

    pub fn since(&self) -> Duration {
        self.lock().elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    pub fn keep_alive_every(&self) -> Duration {
        span(seconds(self.ttl)) / 4
    }

    /// Keeps the session alive over a connection that no call goes over. Returns when etcd says that it is over.
    pub async fn keep_apart(&self, ticket: SessionEpoch, alive: &Alive) {
        let every = self.keep_alive_every();
        let mut stream = None;
        let mut ways = self.link.proving.ways();
        loop {
            let sent = Instant::now();
            match timeout(every, self.beat_apart(&mut stream, ticket)).await {
                Ok(Ok(true)) => alive.note(sent),
                Ok(Ok(false)) => return,
                Ok(Err(_)) | Err(_) => {
                    stream = None;
                    self.link.sessions_turn_away();
                }
            }
            let pause = if stream.is_some() { every } else { AGAIN };
            tokio::select! {
                // Another proof is used: by a new connection.
                _ = ways.changed() => stream = None,
                () = sleep(pause) => {}
            }
        }
    }

    async fn beat_apart(&self, stream: &mut Option<Beat>, ticket: SessionEpoch) -> Result<bool, Failure> {
        if let Some(open) = stream {
            return beat_on(open).await;
        }
        let mut client = self.link.for_sessions().await?;
        match client.lease_keep_alive(ticket.session).await {
            Ok(opened) => *stream = Some(opened),
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => return Ok(false),
            Err(error) => return Err(failure(&error)),
        }
        Ok(true)
    }
}

/// Returns when the stream breaks, on which nothing is asked meanwhile; then why.
pub async fn breaks(stream: &mut Option<Beat>) -> Failure {
    let Some((_, answers)) = stream else {
        return pending().await;
    };
    let ended = || Failure::Unavailable("etcd: the stream of signs of life ended".into());
    let failure = match answers.message().await {
        Err(error) => failure(&error),
        Ok(_) => ended(),
    };
    *stream = None;
    failure
}

pub async fn beat_on((keeper, answers): &mut Beat) -> Result<bool, Failure> {
    keeper.keep_alive().await.map_err(|error| failure(&error))?;
    match answers.message().await.map_err(|error| failure(&error))? {
        Some(answer) => Ok(answer.ttl() > 0),
        None => Err(Failure::Unavailable("etcd: the stream of signs of life ended".into())),
    }
}

/// An open stream of keep-alives.
pub type Beat = (LeaseKeeper, LeaseKeepAliveStream);
