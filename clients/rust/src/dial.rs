//! TCP connections to the host of an address.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tower::service_fn;

use super::{Address, ListenAddress};

/// How long one attempt has the network to itself, as RFC 8305 recommends.
const HEAD_START: Duration = Duration::from_millis(250);
/// The type of a TLS record with an alert.
const TLS_ALERT: u8 = 21;

/// Connects to an address.
pub(super) async fn connect(address: &Address, endpoint: &Endpoint) -> Result<Channel, Error> {
    match dialer(address) {
        Some(dialer) => endpoint.connect_with_connector(service_fn(dialer)).await,
        None => endpoint.connect().await,
    }
}

/// A channel that connects to an address with its first call.
pub(super) fn connect_lazy(address: &Address, endpoint: &Endpoint) -> Channel {
    match dialer(address) {
        Some(dialer) => endpoint.connect_with_connector_lazy(service_fn(dialer)),
        None => endpoint.connect_lazy(),
    }
}

/// What connects by TCP.
fn dialer(address: &Address) -> Option<impl Fn(Uri) -> BoxFuture<'static, io::Result<TokioIo<Connection>>> + use<>> {
    let ListenAddress::Tcp { host, port } = address.at.clone() else {
        return None;
    };
    let encrypted = address.encrypted;
    Some(move |_| dial(host.clone(), port, encrypted).boxed())
}

/// Connects to the first IP address of a host that accepts.
async fn dial(host: String, port: u16, encrypted: bool) -> io::Result<TokioIo<Connection>> {
    let addresses = lookup_host((host.as_str(), port)).await?;
    let stream = first_of(addresses.map(TcpStream::connect)).await;
    let stream = stream.map_err(|error| error.unwrap_or_else(|| io::Error::other("the host has no IP address")))?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(Connection {
        stream,
        is_first: !encrypted,
    }))
}

/// The first result of several attempts, or the error of the last one that failed; none without attempts. Each begins when
/// the one before has failed, or is [`HEAD_START`] old and still open.
pub(super) async fn first_of<T, E, F>(attempts: impl IntoIterator<Item = F>) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut attempts = attempts.into_iter().peekable();
    let (mut open, mut failed) = (FuturesUnordered::new(), None);
    loop {
        open.extend(attempts.next());
        let limit = attempts.peek().map_or(Duration::MAX, |_| HEAD_START);
        match timeout(limit, open.next()).await {
            Ok(Some(Ok(done))) => return Ok(done),
            Ok(Some(Err(error))) => failed = Some(error),
            Ok(None) => return Err(failed),
            Err(_) => {}
        }
    }
}

/// A TCP connection. An unencrypted one tells from what it receives first that the server expects TLS.
struct Connection {
    stream: TcpStream,
    /// Whether nothing was received yet that has to be looked at.
    is_first: bool,
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        if !std::mem::take(&mut self.is_first) {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(match into.filled().get(before) {
            Some(&TLS_ALERT) => Err(io::Error::other(
                "the server speaks TLS there: write https:// before the address",
            )),
            Some(_) => Ok(()),
            // A server of HTTP/2 sends its settings first.
            None => Err(io::Error::other(
                "the server closed the connection at once; if it speaks TLS there, write https:// before the address",
            )),
        })
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
