//! The service over gRPC: a stand-in with the shapes that `serve` is called by.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::namespaces::Namespaces;

/// What the service accepts.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Settings {
    pub max_acquires: usize,
    pub max_streams: usize,
    pub max_calls: usize,
    pub max_connections: usize,
    pub max_streams_per_connection: u32,
    pub request_bytes: usize,
    pub response_bytes: usize,
    pub page_default: usize,
    pub page_limit: usize,
    pub keepalive_interval: Duration,
    pub keepalive_timeout: Duration,
    pub drain_timeout: Duration,
}

/// Where to listen: `127.0.0.1:50051`, `[::1]:0`, `localhost:50051` or `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// A host name or IP address and a port; port 0 lets the system choose.
    Tcp {
        /// The host; an IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Why a text is no address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address to listen on: write host:port, [ipv6]:port or unix:/path")]
pub struct BadAddress {
    /// The text.
    pub text: String,
}

impl ListenAddress {
    /// Whether only this machine can reach it: a Unix socket, `localhost` or a loopback address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let address = match text.strip_prefix("unix:") {
            Some(path) => (!path.is_empty()).then(|| Self::Unix(path.into())),
            None => tcp(text),
        };
        address.ok_or_else(|| BadAddress { text: text.into() })
    }
}

fn tcp(text: &str) -> Option<ListenAddress> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(ListenAddress::Tcp {
            host: address.ip().to_string(),
            port: address.port(),
        });
    }
    let (host, port) = text.rsplit_once(':')?;
    let is_name = !host.is_empty()
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    is_name.then_some(ListenAddress::Tcp {
        host: host.to_ascii_lowercase(),
        port: port.parse().ok()?,
    })
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(tokio::net::TcpListener),
    /// Unix.
    Unix(tokio::net::UnixListener, PathBuf),
}

impl Listener {
    /// Binds an address.
    ///
    /// # Errors
    /// The system's, such as an address in use.
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp { host, port } => tokio::net::TcpListener::bind((host.as_str(), *port))
                .await
                .map(Self::Tcp),
            ListenAddress::Unix(path) => {
                tokio::net::UnixListener::bind(path).map(|listener| Self::Unix(listener, path.clone()))
            }
        }
    }

    /// Where it listens, with the port that the system chose.
    pub fn local_addr(&self) -> String {
        match self {
            Self::Tcp(tcp) => tcp.local_addr().map_or_else(|_| "unknown".into(), |at| at.to_string()),
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }
}

/// Why serving ended early.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve")]
pub struct ServeError(#[from] io::Error);

/// Holds the sockets until `shutdown`.
///
/// # Errors
/// None here.
pub async fn serve(
    listeners: Vec<Listener>,
    namespaces: Namespaces,
    _settings: Settings,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    shutdown.await;
    namespaces.drain();
    drop(listeners);
    Ok(())
}
