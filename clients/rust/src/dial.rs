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

impl Connection {
    /// What was written. Before the first answer an error is left to the next read, because what the server sent before it
    /// closed the connection tells why, and HTTP/2 hides the error of a write.
    fn unless_first(&self, written: io::Result<usize>, all: usize) -> io::Result<usize> {
        match written {
            Err(_) if self.is_first => Ok(all),
            written => written,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, into));
        if !std::mem::take(&mut self.is_first) {
            return Poll::Ready(read);
        }
        Poll::Ready(match (into.filled().get(before), read) {
            (Some(&TLS_ALERT), _) => Err(io::Error::other(
                "the server speaks TLS there: write https:// before the address",
            )),
            (Some(_), read) => read,
            (None, Err(error)) if error.kind() != io::ErrorKind::ConnectionReset => Err(error),
            // A server of HTTP/2 sends its settings first.
            (None, _) => Err(io::Error::other(
                "the server closed the connection at once; if it speaks TLS there, write https:// before the address",
            )),
        })
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        Poll::Ready(self.unless_first(written, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts));
        Poll::Ready(self.unless_first(written, parts.iter().map(|part| part.len()).sum()))
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_server_that_closes_while_the_client_writes_is_told_as_one_that_may_speak_tls() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mut client = dial("127.0.0.1".into(), port, false)
            .await
            .expect("a connection")
            .into_inner();
        let (server, _) = listener.accept().await.expect("a client");
        // What the client has written and nobody has read resets the connection.
        client.write_all(&[0; 10]).await.expect("written");
        server.readable().await.expect("bytes");
        drop(server);
        client.stream.readable().await.expect("the reset");
        client.write_all(&[0; 10]).await.expect("counted as written");
        let error = client.read_u8().await.expect_err("nothing to read");
        assert!(
            error.to_string().contains("write https:// before the address"),
            "{error}"
        );
    }
}
