//! TLS for listeners: certificates and keys from PEM files, which can be swapped while the server
//! runs.
//!
//! TLS 1.2 is the least that is spoken, and HTTP/2 the only thing inside it. Sessions are not
//! resumed: each handshake shows its certificates anew, so that one that was taken away does not
//! come back by an old session.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

mod files;

pub use self::files::TlsError;

/// The only protocol spoken inside: HTTP/2.
const H2: &[u8] = b"h2";

/// Whether clients show a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked for one.
    #[default]
    None,
    /// They may show one; it must be good then.
    Optional,
    /// Only those with a good one are served.
    Required,
}

/// Where the certificates are, and how long a handshake may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The server's certificate and those between it and its authority, as PEM.
    pub certificate: PathBuf,
    /// The key of the server's certificate, as PEM.
    pub key: PathBuf,
    /// The authorities that may sign for clients, as PEM; must be there unless clients are not asked.
    pub client_ca: Option<PathBuf>,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How many handshakes of one listener may be under way; beyond it the oldest is given up.
    pub handshake_limit: usize,
}

/// Connections that were refused before they were any, counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// No good handshake: another protocol, a certificate that is not accepted, a client that left.
    pub failed: u64,
    /// It was not finished in time.
    pub late: u64,
    /// It was the oldest when there were too many.
    pub crowded_out: u64,
}

/// The TLS of one server. Clones share everything.
#[derive(Debug, Clone)]
pub struct Tls {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Never held for longer than it takes to read or replace it.
    current: RwLock<Current>,
    failed: AtomicU64,
    late: AtomicU64,
    crowded_out: AtomicU64,
}

/// What new handshakes go by.
#[derive(Debug, Clone)]
struct Current {
    settings: TlsSettings,
    config: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file that is not what it should be.
    pub fn open(settings: TlsSettings) -> Result<Self, TlsError> {
        let config = files::read(&settings)?;
        Ok(Self {
            shared: Arc::new(Shared {
                current: RwLock::new(Current { settings, config }),
                failed: AtomicU64::new(0),
                late: AtomicU64::new(0),
                crowded_out: AtomicU64::new(0),
            }),
        })
    }

    /// Reads the same files again, for all handshakes from now on. Open connections stay.
    ///
    /// # Errors
    /// [`TlsError`]; what was read before is kept then.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.replace(self.current().settings)
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// [`TlsError`]; what was read before is kept then.
    pub fn replace(&self, settings: TlsSettings) -> Result<(), TlsError> {
        let config = files::read(&settings)?;
        let mut current = self.shared.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = Current { settings, config };
        Ok(())
    }

    /// What was refused since the start.
    pub fn refused(&self) -> Refused {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Refused {
            failed: count(&self.shared.failed),
            late: count(&self.shared.late),
            crowded_out: count(&self.shared.crowded_out),
        }
    }

    /// How many handshakes of one listener may be under way.
    pub fn handshake_limit(&self) -> usize {
        self.current().settings.handshake_limit
    }

    /// Counts a handshake that its caller gave up because there were too many.
    pub fn crowded_out(&self) {
        self.shared.crowded_out.fetch_add(1, Ordering::Relaxed);
    }

    /// The encrypted connection over a socket, or nothing where the client fails to make one in time.
    ///
    /// # Cancellation safety
    /// Dropped, the socket is closed.
    pub async fn handshake<S>(&self, socket: S) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Current { settings, config } = self.current();
        let handshake = TlsAcceptor::from(config).accept(socket);
        match timeout(settings.handshake_timeout, handshake).await {
            Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(H2) => Some(stream),
            Ok(Ok(_)) => self.failed(&"the client does not say that it speaks HTTP/2"),
            Ok(Err(error)) => self.failed(&error),
            Err(_) => {
                self.shared.late.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    fn failed<T>(&self, problem: &dyn std::fmt::Display) -> Option<T> {
        self.shared.failed.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%problem, "a TLS handshake failed");
        None
    }

    fn current(&self) -> Current {
        let current = self.shared.current.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }
}

/// The client's own certificate in DER, where it has shown one.
pub fn client_certificate<S>(stream: &TlsStream<S>) -> Option<&[u8]> {
    let certificates = stream.get_ref().1.peer_certificates()?;
    certificates.first().map(AsRef::as_ref)
}
