//! Admits connections up to the limits, and closes them when they are cut or their client is silent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::capacity::{Capacity, ConnectionUsage, Usage};
use super::log_throttle::LogThrottle;
use super::peer::Peer;
use super::serves::Serves;
use super::settings::Settings;
use super::verifications::Verifications;
use crate::auth::certificate::CertificateIdentity;
use crate::error::Error;
use crate::metrics::ServerMetrics;
use crate::name::Identity;

mod client_end;
mod socket;
mod unauthenticated;

pub(super) use self::client_end::ClientEnd;
pub(super) use self::socket::{Socket, Transport};
use self::unauthenticated::{UnauthenticatedConnection, UnauthenticatedConnections};

/// How long a client may leave its socket unread while there is data for it.
const UNREAD_LIMIT: Duration = Duration::from_secs(13);

/// After how many bytes in one step of a connection it pauses reading and starts the calls that have arrived, so that
/// one connection neither occupies a worker nor fills the memory with calls that have not started.
pub(super) const READ_LIMIT: usize = 4 << 10;

/// The client of a connection, as known before its first call.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    /// The client's address.
    pub peer: Peer,
    /// The identity in the client's certificate, if it presented one with a name.
    pub certificate: Option<CertificateIdentity>,
    /// Verifies the token signatures of this connection.
    pub verifications: Arc<Verifications>,
    /// Its entry among the unauthenticated connections, on a server with authentication.
    unauthenticated: Option<Arc<UnauthenticatedConnection>>,
    /// The usage of the connection; `None` before it is admitted.
    pub usage: Option<Arc<ConnectionUsage>>,
    /// Ends waits and streams by `draining`, or when their client sends no more.
    pub ending: Option<CancellationToken>,
    /// When the connection is too old or the server drains; absent on connections of HTTP/2 without a maximum age.
    pub draining: Option<CancellationToken>,
}

impl Remote {
    /// A client at this address, with the identity in its certificate.
    pub(super) fn new(peer: Peer, certificate: Option<CertificateIdentity>) -> Self {
        Self {
            peer,
            certificate,
            verifications: Arc::default(),
            unauthenticated: None,
            usage: None,
            ending: None,
            draining: None,
        }
    }

    /// Marks the connection as authenticated by a call with this identity. Returns the identity's usage.
    ///
    /// # Errors
    /// OVERLOADED if the identity has reached its limit of connections. The connection then stays unauthenticated.
    pub(super) fn authenticated(&self, identity: &Identity) -> Result<Option<Arc<Usage>>, Error> {
        let usage = self
            .usage
            .as_ref()
            .map(|usage| usage.identified(identity))
            .transpose()?;
        if let Some(unauthenticated) = &self.unauthenticated {
            unauthenticated.remove();
        }
        Ok(usage)
    }
}

/// A connected client, after its TLS handshake if there is one.
#[derive(Debug)]
pub(super) struct Arrival {
    pub transport: Transport,
    pub remote: Remote,
}

impl From<(Socket, Peer)> for Arrival {
    fn from((socket, peer): (Socket, Peer)) -> Self {
        Self {
            transport: Transport::Left(socket),
            remote: Remote::new(peer, None),
        }
    }
}

/// An admitted connection. Reads and writes fail once it is cut.
#[derive(Debug)]
pub(super) struct Connection {
    transport: Transport,
    remote: Remote,
    serves: Serves,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The first bytes, read to tell the protocol and not yet passed on.
    first: Bytes,
    /// Set until the client has started HTTP/2, in which pings detect a silent client, or HTTP/1.1, which has limits of its
    /// own.
    first_bytes: Option<FirstByteTimeout>,
    /// Whether the next write may proceed: see [`Connection::gathered`].
    gathered: bool,
    /// What the client has ended, over HTTP/1.1.
    client_end: Option<Arc<ClientEnd>>,
    /// The deadline while the socket accepts no data.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Counts the connection as open until it is dropped.
    _open: OwnedSemaphorePermit,
    /// Counts the connection in the metrics.
    _counted: Option<Counted>,
}

/// An open connection in the metrics.
#[derive(Debug)]
struct Counted(ServerMetrics);

impl Counted {
    fn new(metrics: ServerMetrics) -> Self {
        metrics.connections.inc();
        Self(metrics)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// The time limit for the first bytes of a new connection.
#[derive(Debug)]
struct FirstByteTimeout {
    limit: Pin<Box<Sleep>>,
    /// A draining server closes connections without first bytes immediately.
    drain: Pin<Box<WaitForCancellationFutureOwned>>,
    /// How many bytes the client has sent.
    received: usize,
}

/// With what a client begins HTTP/2.
const HTTP2: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of HTTP/2's preface and of the next frame's header, in bytes. Pings start after them.
const PREFACE: usize = HTTP2.len() + 9;

impl FirstByteTimeout {
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.limit.as_mut().poll(cx).is_ready() || self.drain.as_mut().poll(cx).is_ready()
    }
}

/// The limits and the state that all connections of a server share.
#[derive(Debug, Clone)]
pub(super) struct ConnectionSettings {
    /// A permit per open connection.
    open: Arc<Semaphore>,
    /// The unauthenticated connections, on a server with authentication.
    unauthenticated: Option<Arc<UnauthenticatedConnections>>,
    /// For log lines about closed connections.
    throttle: Arc<LogThrottle>,
    /// The time limit for the first bytes of a new connection.
    first_bytes_limit: Duration,
    /// Closes connections without first bytes.
    drain: CancellationToken,
    /// Closes all connections.
    cut: CancellationToken,
    /// Whether connections have a maximum age.
    have_age: bool,
    /// Counts the resources that each caller uses.
    pub(super) capacity: Arc<Capacity>,
}

impl ConnectionSettings {
    /// Each connection must send its first bytes before it would be pinged in vain, and before `drain`. `cut` closes all
    /// connections. Each caller may use its share of the `capacity`.
    pub(super) fn new(
        settings: &Settings,
        drain: CancellationToken,
        cut: CancellationToken,
        capacity: Arc<Capacity>,
    ) -> Self {
        Self {
            capacity,
            open: Arc::new(Semaphore::new(settings.max_connections.min(Semaphore::MAX_PERMITS))),
            unauthenticated: None,
            throttle: Arc::default(),
            first_bytes_limit: settings.keepalive_interval + settings.keepalive_timeout,
            drain,
            cut,
            have_age: settings.connection_age.is_some(),
        }
    }

    /// The same where unauthenticated connections may be at most a quarter of all: they cannot crowd out the others.
    pub(super) fn asking(self) -> Self {
        let limit = self.open.available_permits().div_ceil(4);
        Self {
            unauthenticated: Some(Arc::new(UnauthenticatedConnections::new(limit))),
            ..self
        }
    }

    /// Admits a connection. Returns `None` if a limit is reached, which closes the connection.
    pub(super) fn admit(&self, arrival: Arrival) -> Option<Connection> {
        let Arrival { transport, mut remote } = arrival;
        let Ok(permit) = self.open.clone().try_acquire_owned() else {
            self.closed(remote.peer, "too many connections: closing the newest");
            if let Some(unauthenticated) = &self.unauthenticated {
                unauthenticated.cut_oldest();
            }
            return None;
        };
        let cut = self.cut.child_token();
        let Some(usage) = self.capacity.connect(remote.peer, cut.clone()) else {
            self.closed(remote.peer, "too many connections from one address: closing the newest");
            return None;
        };
        remote.usage = Some(Arc::new(usage));
        remote.draining = self.have_age.then(|| self.drain.child_token());
        remote.ending = remote.draining.clone();
        if let Some(unauthenticated) = &self.unauthenticated {
            let (entry, was_full) = unauthenticated.add(cut.clone());
            remote.unauthenticated = Some(Arc::new(entry));
            if was_full {
                self.closed(remote.peer, "too many unauthenticated connections: closing the oldest");
            }
        }
        Some(Connection {
            transport,
            remote,
            serves: Serves::Calls,
            cut: Box::pin(cut.cancelled_owned()),
            first: Bytes::new(),
            first_bytes: Some(FirstByteTimeout {
                limit: Box::pin(sleep(self.first_bytes_limit)),
                drain: Box::pin(self.drain.clone().cancelled_owned()),
                received: 0,
            }),
            gathered: false,
            client_end: None,
            stalled: None,
            _open: permit,
            _counted: self.capacity.metrics.clone().map(Counted::new),
        })
    }

    /// Counts and logs a connection that was closed because of a limit.
    fn closed(&self, newest: Peer, why: &str) {
        if let Some(metrics) = &self.capacity.metrics {
            metrics.connections_refused.inc();
        }
        if let Some(closed) = self.throttle.one_more() {
            tracing::warn!(%newest, closed, "{why}");
        }
    }
}

impl Connection {
    /// The client of the connection.
    pub(super) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Lets each flush look what the client has ended, and calls of the connection end by `draining` or by that end.
    pub(super) fn noting_client_end(&mut self, draining: CancellationToken) -> Arc<ClientEnd> {
        self.remote.ending = Some(self.remote.draining.get_or_insert(draining).child_token());
        Arc::clone(self.client_end.get_or_insert_default())
    }

    /// The same connection, with what its listener serves.
    pub(super) fn serving(self, serves: Serves) -> Self {
        Self { serves, ..self }
    }

    /// What is served on the connection.
    pub(super) fn serves(&self) -> &Serves {
        &self.serves
    }

    /// Whether the client speaks HTTP/2, by its first bytes. Otherwise they are the begin of HTTP/1.1, or of nothing.
    ///
    /// # Errors
    /// That of the socket, or of a client that does not send them in time.
    ///
    /// # Cancellation safety
    /// If dropped, the bytes that were read are lost.
    pub(super) async fn speaks_http2(&mut self) -> io::Result<bool> {
        let mut first = [0; HTTP2.len()];
        let mut received = 0;
        while received < first.len() && HTTP2.starts_with(&first[..received]) {
            match self.read(&mut first[received..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => received += more,
            }
        }
        self.first = Bytes::copy_from_slice(&first[..received]);
        let is_http2 = first == *HTTP2;
        if !is_http2 {
            self.first_bytes = None;
        }
        Ok(is_http2)
    }

    fn note_writing(&self, is_blocked: bool) {
        if let Some(usage) = &self.remote.usage {
            usage.answers.note_writing(is_blocked);
        }
    }

    /// The result of a write, or an error if the connection is over or the client has not read its socket for
    /// [`UNREAD_LIMIT`], even if it still sends.
    fn unless_stalled<T>(&mut self, cx: &mut Context<'_>, step: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if step.is_ready() {
            self.stalled = None;
            if let Some(usage) = &self.remote.usage {
                usage.answers.note_written();
            }
            return step;
        }
        self.note_writing(true);
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(UNREAD_LIMIT)));
        if stalled.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.unless_over(cx, step)
    }

    /// Yields once before each burst of writes, so that the answers of other ready calls are written with the same
    /// system call. Without it, each answer would be a system call, because an answer wakes the connection's task and
    /// the runtime runs it next. If no other task is ready, the write proceeds immediately. Returns whether the write
    /// may proceed.
    fn gathered(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.gathered {
            self.note_writing(false);
            cx.waker().wake_by_ref();
        }
        std::mem::replace(&mut self.gathered, true)
    }

    /// The result of a step on the socket, or an error if the connection was cut or its client has not sent its first
    /// bytes in time. This is checked only if the step would wait, so it costs a busy connection nothing.
    fn unless_over<T>(&mut self, cx: &mut Context<'_>, step: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if step.is_ready() {
            return step;
        }
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let is_over = self.first_bytes.as_mut().is_some_and(|timeout| timeout.is_over(cx));
        if is_over {
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        } else {
            Poll::Pending
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let most = buf.remaining().min(self.first.len());
            buf.put_slice(&self.first.split_to(most));
            return Poll::Ready(Ok(()));
        }
        let read = self.remote.usage.as_ref().map_or(0, |usage| usage.read());
        if read >= READ_LIMIT {
            cx.waker().wake_by_ref();
            return self.unless_over(cx, Poll::Pending);
        }
        let most = buf.remaining().min(READ_LIMIT - read);
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
        let step = Pin::new(&mut self.transport).poll_read(cx, &mut part);
        let received = part.filled().len();
        buf.advance(received);
        if let Some(usage) = &self.remote.usage {
            usage.note_read(received);
        }
        if let Some(first_bytes) = &mut self.first_bytes {
            first_bytes.received += received;
            if first_bytes.received >= PREFACE {
                self.first_bytes = None;
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
        if let Some(client_end) = &self.client_end {
            client_end.look(&self.transport, cx);
        }
        let step = Pin::new(&mut self.transport).poll_flush(cx);
        self.gathered &= step.is_pending();
        if step.is_ready()
            && let Some(usage) = &self.remote.usage
        {
            usage.answers.note_flushed();
        }
        self.unless_stalled(cx, step)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
