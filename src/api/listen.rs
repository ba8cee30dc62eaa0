//! The sockets that the service listens on.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fencepost_client::ListenAddress;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc};

use super::connection::Socket;
use super::peer::Peer;
use super::serves::{Hosts, Serves};
use crate::tls::Tls;

/// The file mode of a Unix socket, unless [`Listener::set_unix_mode`] sets another: its owner and
/// group may connect.
pub const UNIX_MODE: u32 = 0o660;

/// After which silence the system probes a client, how often then, and after how many probes the client is gone.
const SILENT: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(2);
const PROBES: u32 = 3;
/// How many connections within the process may be unaccepted.
const IN_PROCESS: usize = 16;

/// A bound socket. A Unix socket's file is removed when its listener is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Bound,
    tls: Option<Tls>,
    serves: Serves,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
    InProcess(Mutex<mpsc::Receiver<UnixStream>>),
}

/// Removes its file when dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The error is ignored: the file may be gone already, or cannot be removed.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Binds an address. For a host name with several addresses, the first that can be bound is
    /// used. The file of a Unix socket that a dead server left behind is replaced. A file that is
    /// no socket, or whose socket accepts connections, is not replaced.
    ///
    /// # Errors
    /// The error of the operating system, such as an address in use.
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        let socket = match address {
            ListenAddress::Tcp { host, port } => Bound::Tcp(TcpListener::bind((host.as_str(), *port)).await?),
            ListenAddress::Unix(path) => bind_unix(path).await?,
        };
        let listener = Self {
            socket,
            tls: None,
            serves: Serves::Calls,
        };
        listener.set_unix_mode(UNIX_MODE)?;
        Ok(listener)
    }

    /// A listener for this process alone, and what connects to it. The connections have no name, so that no other process
    /// can reach it.
    pub fn in_process() -> (
        Self,
        impl Fn() -> io::Result<UnixStream> + Clone + Send + Sync + 'static,
    ) {
        let (connections, accepted) = mpsc::channel(IN_PROCESS);
        let connect = move || {
            let (client, server) = UnixStream::pair()?;
            let refused = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
            connections.try_send(server).map_err(refused).map(|()| client)
        };
        let listener = Self {
            socket: Bound::InProcess(Mutex::new(accepted)),
            tls: None,
            serves: Serves::Calls,
        };
        (listener, connect)
    }

    /// Encrypts the connections that it accepts.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Serves the console to browsers instead of calls. Call it after [`Self::with_tls`]: without TLS, only browsers that
    /// address the server by `address`, an IP address or `localhost` are served.
    #[must_use]
    pub fn for_console(self, address: &ListenAddress) -> Self {
        let hosts = match (&self.tls, address) {
            (Some(_), _) => Hosts::Any,
            (None, ListenAddress::Tcp { host, .. }) => Hosts::Named(host.clone()),
            (None, ListenAddress::Unix(_)) => Hosts::Named(String::new()),
        };
        Self {
            serves: Serves::Console(Arc::new(hosts)),
            ..self
        }
    }

    /// The bound address as a URL for browsers.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.local_addr())
    }

    /// What is served on its connections.
    pub(super) fn serves(&self) -> &Serves {
        &self.serves
    }

    /// The TLS settings of its connections.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Sets another mode for a Unix socket's file, such as `0o600`; does nothing for TCP.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn set_unix_mode(&self, mode: u32) -> io::Result<()> {
        match &self.socket {
            Bound::Tcp(_) | Bound::InProcess(_) => Ok(()),
            Bound::Unix(_, file) => std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(mode)),
        }
    }

    /// The bound address, with the port that the system chose, in the syntax of [`ListenAddress`].
    pub fn local_addr(&self) -> String {
        match &self.socket {
            Bound::Tcp(tcp) => tcp.local_addr().map_or_else(|_| "unknown".into(), |at| at.to_string()),
            Bound::Unix(_, file) => format!("unix:{}", file.0.display()),
            Bound::InProcess(_) => "in this process".into(),
        }
    }

    /// The next connection.
    ///
    /// # Cancellation safety
    /// If the future is dropped, no connection was accepted.
    pub(super) async fn accept(&self) -> io::Result<(Socket, Peer)> {
        match &self.socket {
            Bound::Tcp(tcp) => tcp.accept().await.map(|(stream, from)| accepted(stream, from)),
            Bound::Unix(unix, _) => unix
                .accept()
                .await
                .map(|(stream, _)| (Socket::Right(stream), Peer::Unix)),
            Bound::InProcess(accepted) => match accepted.lock().await.recv().await {
                Some(stream) => Ok((Socket::Right(stream), Peer::Unix)),
                // Nobody can connect any more.
                None => std::future::pending().await,
            },
        }
    }
}

/// Sets TCP_NODELAY, without which half of all first messages wait 40 ms for an acknowledgement, and lets the system probe
/// a silent client, because HTTP/1.1 has no pings.
fn accepted(stream: TcpStream, from: SocketAddr) -> (Socket, Peer) {
    // These fail only for a closed connection, which its first read reports.
    let _ = stream.set_nodelay(true);
    let probes = TcpKeepalive::new()
        .with_time(SILENT)
        .with_interval(PROBE)
        .with_retries(PROBES);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&probes);
    (Socket::Left(stream), Peer::Tcp(from))
}

async fn bind_unix(path: &Path) -> io::Result<Bound> {
    remove_stale(path).await?;
    let listener = UnixListener::bind(path)?;
    Ok(Bound::Unix(listener, SocketFile(path.into())))
}

async fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path).await {
        // Only a refusal proves that no process listens; a full backlog or a lack of permissions
        // does not.
        Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
