//! The connections of all listeners as they come in, each after its handshake where it has one.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use futures::future;
use futures::stream::{self, BoxStream, Stream, StreamExt};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::connection::{Arrival, Connection, ConnectionSettings, Remote, Socket, Transport};
use super::listen::Listener;
use super::log_throttle::LogThrottle;
use super::peer::Peer;
use crate::auth::certificate;
use crate::metrics::ServerMetrics;
use crate::tls::{self, Tls, Unfinished};

/// How long the first failed accept rests, and each that follows twice as long, up to the longest: without it,
/// a server out of file descriptors spins.
const FIRST_REST: Duration = Duration::from_millis(10);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// The connections of all listeners, until the stream is dropped, and the listeners with it.
pub(super) fn incoming(
    listeners: Vec<Listener>,
    terms: ConnectionSettings,
) -> impl Stream<Item = Connection> + Send + use<> {
    let all = listeners.into_iter().map(move |listener| {
        let terms = terms.clone();
        let listener = Accepting {
            listener,
            told: LogThrottle::default(),
        };
        let arrivals = arrivals(listener, terms.figures.clone());
        let admitted = arrivals.filter_map(move |arrival| future::ready(terms.admit(arrival)));
        admitted.boxed()
    });
    stream::select_all(all)
}

/// A listener, and what the log was told of it.
struct Accepting {
    listener: Listener,
    told: LogThrottle,
}

fn arrivals(listener: Accepting, figures: Option<ServerMetrics>) -> BoxStream<'static, Arrival> {
    match listener.listener.tls().cloned() {
        None => stream::unfold(listener, |listener| async {
            Some((next(&listener).await.into(), listener))
        })
        .boxed(),
        Some(tls) => stream::unfold(Handshakes::new(listener, tls, figures), |mut handshakes| async {
            Some((handshakes.next().await, handshakes))
        })
        .boxed(),
    }
}

async fn next(Accepting { listener, told }: &Accepting) -> (Socket, Peer) {
    let mut rest = FIRST_REST;
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                if let Some(failed) = told.one_more() {
                    let address = listener.local_addr();
                    tracing::warn!(%error, address, failed, "cannot accept connections");
                }
                sleep(rest).await;
                rest = LONGEST_REST.min(2 * rest);
            }
        }
    }
}

/// Whether only the connection to be accepted is lost, and the next may be fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// The handshakes of a listener, each in a task of its own: one that is slow, or never goes on, keeps
/// no other up. They are no open connections yet, and do not count as such. When there are too many
/// the oldest is given up, for an honest one takes a few milliseconds. Dropped, all end.
struct Handshakes {
    listener: Accepting,
    tls: Tls,
    figures: Option<ServerMetrics>,
    under_way: JoinSet<Result<Arrival, Unfinished>>,
    /// In the order in which they began; some of them may be over.
    by_age: VecDeque<AbortHandle>,
}

impl Handshakes {
    fn new(listener: Accepting, tls: Tls, figures: Option<ServerMetrics>) -> Self {
        Self {
            listener,
            tls,
            figures,
            under_way: JoinSet::new(),
            by_age: VecDeque::new(),
        }
    }

    /// The next client that has finished its handshake.
    async fn next(&mut self) -> Arrival {
        loop {
            tokio::select! {
                biased;
                Some(done) = self.under_way.join_next() => match done {
                    Ok(Ok(arrival)) => return arrival,
                    Ok(Err(unfinished)) => self.refused(unfinished),
                    // Given up, and counted then.
                    Err(_) => {}
                },
                (socket, peer) = next(&self.listener) => self.begin(socket, peer),
            }
        }
    }

    fn begin(&mut self, socket: Socket, peer: Peer) {
        let limit = self.tls.handshake_limit();
        if self.under_way.len() >= limit {
            self.give_up_oldest();
        }
        if self.by_age.len() >= 2 * limit {
            self.by_age.retain(|handshake| !handshake.is_finished());
        }
        let tls = self.tls.clone();
        let handshake = self.under_way.spawn(async move { shaken(&tls, socket, peer).await });
        self.by_age.push_back(handshake);
    }

    fn give_up_oldest(&mut self) {
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
        if let Some(figures) = &self.figures {
            figures.handshakes_refused.count(unfinished.word());
        }
    }
}

async fn shaken(tls: &Tls, socket: Socket, peer: Peer) -> Result<Arrival, Unfinished> {
    let stream = tls.handshake(socket).await?;
    let certificate = tls::client_certificate(&stream).and_then(certificate::identity);
    Ok(Arrival {
        transport: Transport::Tls(Box::new(stream)),
        remote: Remote::new(peer, certificate),
    })
}
