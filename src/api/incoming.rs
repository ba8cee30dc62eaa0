//! Accepts the connections of all listeners, and does their TLS handshakes.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use futures::{FutureExt, future};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::connection::{Arrival, Connection, ConnectionSettings, Remote, Socket, Transport};
use super::listen::Listener;
use super::log_throttle::LogThrottle;
use super::peer::Peer;
use super::serves::Serves;
use crate::auth::certificate;
use crate::backoff::Backoff;
use crate::metrics::ServerMetrics;
use crate::supervisor::supervised;
use crate::tls::{self, Purpose, Tls, Unfinished};

/// The pauses after failed accepts. Without them, a server without free file descriptors would spin.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));

/// The connections of all listeners. Dropping the stream closes the listeners.
pub(super) fn incoming(
    listeners: Vec<Listener>,
    settings: &ConnectionSettings,
) -> impl Stream<Item = Connection> + Send + use<> {
    let all = listeners.into_iter().map(|listener| {
        let accepts = AcceptLoop::new(listener, settings.clone());
        let admitted = stream::unfold(accepts, |mut accepts| async { Some((accepts.next().await, accepts)) });
        admitted.filter_map(future::ready).boxed()
    });
    stream::select_all(all)
}

/// A listener, and the throttle of its log lines.
struct Accepting {
    listener: Listener,
    throttle: LogThrottle,
}

/// The connections of a listener, within the limits of the server.
struct AcceptLoop {
    clients: Clients,
    serves: Serves,
    settings: ConnectionSettings,
}

enum Clients {
    Plain(Accepting),
    Tls(Box<Handshakes>),
}

impl AcceptLoop {
    fn new(listener: Listener, settings: ConnectionSettings) -> Self {
        let (serves, tls) = (listener.serves().clone(), listener.tls().cloned());
        let listener = Accepting {
            listener,
            throttle: LogThrottle::default(),
        };
        let metrics = settings.capacity.metrics.clone();
        Self {
            clients: match tls {
                None => Clients::Plain(listener),
                Some(tls) => Clients::Tls(Box::new(Handshakes::new(listener, tls, metrics))),
            },
            serves,
            settings,
        }
    }

    /// The next connection, unless a limit is reached. A panic closes no listener.
    async fn next(&mut self) -> Option<Connection> {
        let mut admitted = None;
        let accepting = (self, &mut admitted);
        supervised(
            "accept",
            accepting,
            |_, _| (),
            |(accepts, admitted)| async move { **admitted = accepts.admitted().await }.boxed(),
        )
        .await;
        admitted
    }

    async fn admitted(&mut self) -> Option<Connection> {
        let arrival = match &mut self.clients {
            Clients::Plain(listener) => next(listener).await.into(),
            Clients::Tls(handshakes) => handshakes.next().await,
        };
        let connection = self.settings.admit(arrival)?;
        Some(connection.serving(self.serves.clone()))
    }
}

async fn next(Accepting { listener, throttle }: &Accepting) -> (Socket, Peer) {
    let failed = |error| {
        if let Some(failed) = throttle.one_more() {
            let address = listener.local_addr();
            tracing::warn!(%error, address, failed, "cannot accept connections");
        }
    };
    accepted(|| listener.accept(), failed).await
}

/// The first result of `accept` without an error. Reports an error to `failed` and pauses after it, unless it affects
/// only one connection.
async fn accepted<T, F>(mut accept: impl FnMut() -> F, failed: impl Fn(io::Error)) -> T
where
    F: Future<Output = io::Result<T>>,
{
    let mut backoff = BACKOFF;
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                failed(error);
                sleep(backoff.pause()).await;
            }
        }
    }
}

/// Whether the error affects only the connection that was to be accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// The TLS handshakes of a listener. Each one is a task, so a slow handshake does not delay others. They do not count
/// as open connections. If there are too many, the oldest is aborted, because a regular handshake takes only a few
/// milliseconds. Dropping this ends all of them.
struct Handshakes {
    listener: Accepting,
    tls: Tls,
    metrics: Option<ServerMetrics>,
    in_progress: JoinSet<Result<Arrival, Unfinished>>,
    /// In the order in which they started; some of them may have ended.
    by_age: VecDeque<AbortHandle>,
}

impl Handshakes {
    fn new(listener: Accepting, tls: Tls, metrics: Option<ServerMetrics>) -> Self {
        Self {
            listener,
            tls,
            metrics,
            in_progress: JoinSet::new(),
            by_age: VecDeque::new(),
        }
    }

    /// Returns the next client that has completed its handshake.
    async fn next(&mut self) -> Arrival {
        loop {
            tokio::select! {
                biased;
                Some(done) = self.in_progress.join_next() => match done {
                    Ok(Ok(arrival)) => return arrival,
                    Ok(Err(unfinished)) => self.refused(unfinished),
                    // Aborted by `abort_oldest`, which has counted it.
                    Err(_) => {}
                },
                (socket, peer) = next(&self.listener) => self.begin(socket, peer),
            }
        }
    }

    fn begin(&mut self, socket: Socket, peer: Peer) {
        let limit = self.tls.handshake_limit();
        if self.in_progress.len() >= limit {
            self.abort_oldest();
        }
        if self.by_age.len() >= 2 * limit {
            self.by_age.retain(|handshake| !handshake.is_finished());
        }
        let (tls, serves) = (self.tls.clone(), self.listener.listener.serves().clone());
        let handshake = self
            .in_progress
            .spawn(async move { handshake(&tls, socket, peer, &serves).await });
        self.by_age.push_back(handshake);
    }

    fn abort_oldest(&mut self) {
        while let Some(oldest) = self.by_age.pop_front() {
            if !oldest.is_finished() {
                oldest.abort();
                self.tls.evicted();
                self.refused(Unfinished::Evicted);
                return;
            }
        }
    }

    fn refused(&self, unfinished: Unfinished) {
        if let Some(metrics) = &self.metrics {
            metrics.handshakes_refused.count(unfinished.as_str());
        }
    }
}

async fn handshake(tls: &Tls, socket: Socket, peer: Peer, serves: &Serves) -> Result<Arrival, Unfinished> {
    let purpose = match serves {
        Serves::Calls => Purpose::Calls,
        Serves::Console(_) => Purpose::Console,
    };
    let stream = tls.handshake(socket, purpose).await?;
    let certificate = tls::client_certificate(&stream).and_then(certificate::identity);
    Ok(Arrival {
        transport: Transport::Right(Box::new(stream)),
        remote: Remote::new(peer, certificate),
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;
    use crate::tls::{ClientAuth, TlsSettings};

    #[tokio::test(start_paused = true)]
    async fn an_error_of_one_connection_delays_no_other_and_any_other_error_does() {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, Other};
        for (kind, expected) in [
            (ConnectionAborted, 0),
            (ConnectionReset, 0),
            (Interrupted, 0),
            (Other, 3),
        ] {
            let began = tokio::time::Instant::now();
            let mut results = [Err(kind), Err(kind), Err(kind), Ok(7)].into_iter();
            let accept = || future::ready(results.next().expect("a result").map_err(io::Error::from));
            let reported = std::cell::Cell::new(0);
            let number = accepted(accept, |_| reported.set(reported.get() + 1)).await;
            assert_eq!((number, reported.get()), (7, expected), "{kind}");
            assert_eq!(began.elapsed().is_zero(), expected == 0, "{kind}");
        }
    }

    #[tokio::test]
    async fn ended_handshakes_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let own = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
        std::fs::write(&certificate, own.cert.pem()).unwrap();
        std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
        let tls = Tls::open(TlsSettings {
            certificate,
            key,
            client_ca: None,
            client_auth: ClientAuth::None,
            handshake_timeout: Duration::from_secs(10),
            handshake_limit: 4,
        });
        let listener = Accepting {
            listener: Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap(),
            throttle: LogThrottle::default(),
        };
        let mut handshakes = Handshakes::new(listener, tls.unwrap(), None);
        for _ in 0..50 {
            let (client, server) = UnixStream::pair().unwrap();
            drop(client);
            handshakes.begin(Socket::Right(server), Peer::Unix);
            let done = handshakes.in_progress.join_next().await.unwrap();
            assert!(matches!(done, Ok(Err(Unfinished::Failed))));
        }
        assert!(handshakes.by_age.len() <= 8, "{}", handshakes.by_age.len());
    }
}
