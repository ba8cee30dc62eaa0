//! Connections: how many, and how they are cut.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::capacity::{Capacity, ConnectionUsage, Usage};
use super::log_throttle::LogThrottle;
use super::peer::Peer;
use super::verifications::Verifications;
use crate::auth::certificate::CertificateIdentity;
use crate::error::Error;
use crate::metrics::ServerMetrics;
use crate::name::Identity;

mod socket;
mod unauthenticated;

pub(super) use self::socket::{Socket, Transport};
use self::unauthenticated::{UnauthenticatedConnection, UnauthenticatedConnections};

/// How long a client may leave its socket unread while there is something for it.
const UNREAD: Duration = Duration::from_secs(13);

/// What is known of a client before its first call.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    /// Where it is.
    pub peer: Peer,
    /// Who its certificate says that it is, where it has shown one with a name.
    pub certificate: Option<CertificateIdentity>,
    /// Where its tokens wait until their signatures are verified.
    pub verifications: Arc<Verifications>,
    /// Its place among strangers, where callers are asked who they are.
    place: Option<Arc<UnauthenticatedConnection>>,
    /// What its connection uses; nothing before it is open.
    pub usage: Option<Arc<ConnectionUsage>>,
}

impl Remote {
    /// Somebody there, with what its certificate says.
    pub(super) fn new(peer: Peer, certificate: Option<CertificateIdentity>) -> Self {
        Self {
            peer,
            certificate,
            verifications: Arc::default(),
            place: None,
            usage: None,
        }
    }

    /// Notes that a call has proven who it is, and answers what its identity uses.
    ///
    /// # Errors
    /// OVERLOADED when the identity has as many connections as it may. This one counts as not proven then.
    pub(super) fn proven(&self, identity: &Identity) -> Result<Option<Arc<Usage>>, Error> {
        let usage = self
            .usage
            .as_ref()
            .map(|usage| usage.identified(identity))
            .transpose()?;
        if let Some(place) = &self.place {
            place.proven();
        }
        Ok(usage)
    }
}

/// A client that has come so far that it may be served.
#[derive(Debug)]
pub(super) struct Arrival {
    pub transport: Transport,
    pub remote: Remote,
}

impl From<(Socket, Peer)> for Arrival {
    fn from((socket, peer): (Socket, Peer)) -> Self {
        Self {
            transport: Transport::Plain(socket),
            remote: Remote::new(peer, None),
        }
    }
}

/// A connection that ends with an error once it is cut.
#[derive(Debug)]
pub(super) struct Connection {
    transport: Transport,
    remote: Remote,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Until the client has begun to speak HTTP/2; pings take over then.
    greeting: Option<FirstByteTimeout>,
    /// Whether the answers that are to be written had time to gather: see [`Connection::gathered`].
    gathered: bool,
    /// While the socket takes nothing: until when.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Counts it as open while it lives.
    _open: OwnedSemaphorePermit,
    /// The same for the metrics.
    _counted: Option<Counted>,
}

/// An open connection in the metrics.
#[derive(Debug)]
struct Counted(ServerMetrics);

impl Counted {
    fn new(figures: ServerMetrics) -> Self {
        figures.connections.inc();
        Self(figures)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// The time in which a new connection has to begin.
#[derive(Debug)]
struct FirstByteTimeout {
    timeout: Pin<Box<Sleep>>,
    /// A server that drains waits for nobody who has not begun.
    drain: Pin<Box<WaitForCancellationFutureOwned>>,
    /// How many bytes the client has sent.
    heard: usize,
}

/// The preface of HTTP/2 and the head of the frame that has to follow it, in bytes. Before them nobody is pinged.
const BEGINNING: usize = 24 + 9;

impl FirstByteTimeout {
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.timeout.as_mut().poll(cx).is_ready() || self.drain.as_mut().poll(cx).is_ready()
    }
}

/// What all connections of a server share.
#[derive(Debug, Clone)]
pub(super) struct ConnectionSettings {
    /// One permit for each connection that may be open.
    open: Arc<Semaphore>,
    /// Those of strangers, where callers are asked who they are.
    strangers: Option<Arc<UnauthenticatedConnections>>,
    /// What the log was told of those that were closed.
    told: Arc<LogThrottle>,
    /// How long a new one may say nothing.
    timeout: Duration,
    /// Ends those that have not begun.
    drain: CancellationToken,
    /// Ends them all.
    cut: CancellationToken,
    /// Where they are counted.
    pub(super) figures: Option<ServerMetrics>,
    /// What each caller may use of the server.
    capacity: Arc<Capacity>,
}

impl ConnectionSettings {
    /// At most `most` connections at once, each with `timeout` to begin, or until `drain`; `cut` ends
    /// them all. Each caller has its share of the `capacity`.
    pub(super) fn new(
        most: usize,
        timeout: Duration,
        drain: CancellationToken,
        cut: CancellationToken,
        capacity: Arc<Capacity>,
    ) -> Self {
        Self {
            capacity,
            open: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            strangers: None,
            told: Arc::default(),
            timeout,
            drain,
            cut,
            figures: None,
        }
    }

    /// The same, counted in these metrics.
    pub(super) fn counted(self, figures: Option<ServerMetrics>) -> Self {
        Self { figures, ..self }
    }

    /// The same for a server that asks its callers who they are: without a proof they have a quarter of all
    /// connections, so that nobody without one keeps the others out.
    pub(super) fn asking(self) -> Self {
        let most = self.open.available_permits().div_ceil(4);
        Self {
            strangers: Some(Arc::new(UnauthenticatedConnections::new(most))),
            ..self
        }
    }

    pub(super) fn admit(&self, arrival: Arrival) -> Option<Connection> {
        let Arrival { transport, mut remote } = arrival;
        let Ok(permit) = self.open.clone().try_acquire_owned() else {
            self.closed(remote.peer, "too many connections: closing the newest");
            if let Some(strangers) = &self.strangers {
                strangers.cut_oldest();
            }
            return None;
        };
        let cut = self.cut.child_token();
        let Some(usage) = self.capacity.connect(remote.peer, cut.clone()) else {
            self.closed(remote.peer, "too many connections from one address: closing the newest");
            return None;
        };
        remote.usage = Some(Arc::new(usage));
        if let Some(strangers) = &self.strangers {
            let (place, was_full) = strangers.enter(cut.clone());
            remote.place = Some(Arc::new(place));
            if was_full {
                self.closed(
                    remote.peer,
                    "too many connections without a proven call: closing the oldest",
                );
            }
        }
        Some(Connection {
            transport,
            remote,
            cut: Box::pin(cut.cancelled_owned()),
            greeting: Some(FirstByteTimeout {
                timeout: Box::pin(sleep(self.timeout)),
                drain: Box::pin(self.drain.clone().cancelled_owned()),
                heard: 0,
            }),
            gathered: false,
            stalled: None,
            _open: permit,
            _counted: self.figures.clone().map(Counted::new),
        })
    }

    /// Counts one that had to be closed when this one came.
    fn closed(&self, newest: Peer, why: &str) {
        if let Some(figures) = &self.figures {
            figures.connections_refused.inc();
        }
        if let Some(closed) = self.told.one_more() {
            tracing::warn!(%newest, closed, "{why}");
        }
    }
}

impl Connection {
    /// Who is at the other end.
    pub(super) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// The same for a step that writes: a client that does not read its socket for too long loses the
    /// connection, whatever it still sends.
    fn unless_stalled<T>(&mut self, cx: &mut Context<'_>, step: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if step.is_ready() {
            self.stalled = None;
            return step;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(UNREAD)));
        if stalled.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.unless_over(cx, step)
    }

    /// Lets the answers of calls that are ready to run gather, once before each burst of writing: the
    /// connection goes to the end of its worker's queue and is there again when they have run. Each
    /// answer would be a system call of its own otherwise, for whoever answers wakes the connection
    /// and the runtime runs it next. With nothing else to run it is there again at once.
    fn gathered(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.gathered {
            cx.waker().wake_by_ref();
        }
        std::mem::replace(&mut self.gathered, true)
    }

    /// What a step on the socket came to, unless the connection is over: cut, or opened by a client
    /// that says nothing. Only a step that would wait asks, so a busy connection pays nothing.
    fn unless_over<T>(&mut self, cx: &mut Context<'_>, step: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if step.is_ready() {
            return step;
        }
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let over = self.greeting.as_mut().is_some_and(|greeting| greeting.is_over(cx));
        if over {
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        } else {
            Poll::Pending
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let step = Pin::new(&mut self.transport).poll_read(cx, buf);
        if let Some(greeting) = &mut self.greeting {
            greeting.heard += buf.filled().len() - before;
            if greeting.heard >= BEGINNING {
                self.greeting = None;
            }
        }
        self.unless_over(cx, step)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if !self.gathered(cx) {
            return Poll::Pending;
        }
        let step = Pin::new(&mut self.transport).poll_write(cx, buf);
        self.unless_stalled(cx, step)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.gathered(cx) {
            return Poll::Pending;
        }
        let step = Pin::new(&mut self.transport).poll_write_vectored(cx, bufs);
        self.unless_stalled(cx, step)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let step = Pin::new(&mut self.transport).poll_flush(cx);
        self.gathered &= step.is_pending();
        self.unless_stalled(cx, step)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
