//! The service over gRPC: a stand-in with the shapes that `serve` is called by.

use std::future::Future;
use std::io;
use std::time::Duration;

use crate::config::ListenAddress;
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

/// A socket that is bound.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(tokio::net::TcpListener),
    /// Unix.
    Unix(tokio::net::UnixListener, std::path::PathBuf),
}

impl Listener {
    /// Binds the socket.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => tokio::net::TcpListener::bind(address).await.map(Self::Tcp),
            ListenAddress::Unix(path) => {
                tokio::net::UnixListener::bind(path).map(|listener| Self::Unix(listener, path.clone()))
            }
        }
    }

    /// Where it really listens.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Self::Unix(_, path) => Ok(ListenAddress::Unix(path.clone())),
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
