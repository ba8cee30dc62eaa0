//! TLS for listeners: certificates and keys from PEM files, which can be swapped while the server
//! runs.
//!
//! TLS 1.2 is the least that is spoken, and HTTP/2 the only thing that callers speak inside it. Sessions are not
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
pub mod credentials;

pub use self::files::TlsError;
use self::files::{Clients, Own};

/// The only protocol of calls: HTTP/2.
const H2: &[u8] = b"h2";
/// The only protocol of those who watch.
const HTTP1: &[u8] = b"http/1.1";

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
    current: RwLock<Certificates>,
    failed: AtomicU64,
    late: AtomicU64,
    crowded_out: AtomicU64,
}

/// What was read of the files, for handshakes to go by.
#[derive(Debug, Clone)]
pub struct Certificates {
    settings: TlsSettings,
    /// Who the server is.
    own: Own,
    /// Which certificates of callers are good.
    clients: Clients,
    /// For callers.
    calls: Arc<ServerConfig>,
    /// For those who watch over the server.
    watch: Arc<ServerConfig>,
}

impl TlsSettings {
    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.certificate, &self.key].into_iter().chain(&self.client_ca)
    }
}

/// Why a handshake brought no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// Another protocol, a certificate that is not accepted, a client that left.
    Failed,
    /// It was not finished in time.
    Late,
    /// It was the oldest when there were too many.
    CrowdedOut,
}

impl Unfinished {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Failed, Self::Late, Self::CrowdedOut];

    /// The word for it in the metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Late => "late",
            Self::CrowdedOut => "crowded_out",
        }
    }
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file that is not what it should be.
    pub fn read(settings: TlsSettings) -> Result<Self, TlsError> {
        let (own, clients) = (files::own(&settings)?, files::clients(&settings)?);
        Self::of(settings, own, clients)
    }

    fn of(settings: TlsSettings, own: Own, clients: Clients) -> Result<Self, TlsError> {
        let (calls, watch) = files::configs(&settings, &own, &clients)?;
        Ok(Self {
            settings,
            own,
            clients,
            calls,
            watch,
        })
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file that is not what it should be.
    pub fn open(settings: TlsSettings) -> Result<Self, TlsError> {
        let read = Certificates::read(settings)?;
        Ok(Self {
            shared: Arc::new(Shared {
                current: RwLock::new(read),
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
        self.replace(Certificates::read(self.current().settings)?);
        Ok(())
    }

    /// Reads its own certificate with its key, and the authorities of clients, each by itself, for all
    /// handshakes from now on: what is wrong with one keeps nothing in force that the other takes away. Of the
    /// authorities those count that can be used, if there is one. Answers what is wrong; a file with nothing that
    /// can be used counts as it was read before.
    pub fn renew(&self, settings: TlsSettings) -> Vec<TlsError> {
        let (before, mut wrong) = (self.current(), Vec::new());
        let own = files::own(&settings).unwrap_or_else(|error| {
            wrong.push(error);
            before.own
        });
        let clients = match files::usable_clients(&settings) {
            Ok((clients, bad)) => {
                wrong.extend(bad);
                clients
            }
            Err(error) => {
                wrong.push(error);
                before.clients
            }
        };
        match Certificates::of(settings, own, clients) {
            Ok(read) => self.replace(read),
            Err(error) => wrong.push(error),
        }
        wrong
    }

    /// Goes by these from now on. Open connections stay.
    pub fn replace(&self, read: Certificates) {
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = read;
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

    /// The encrypted connection of a caller over a socket.
    ///
    /// # Errors
    /// [`Unfinished`] where the client fails to make one in time.
    ///
    /// # Cancellation safety
    /// Dropped, the socket is closed.
    pub async fn handshake<S>(&self, socket: S) -> Result<TlsStream<S>, Unfinished>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Certificates { settings, calls, .. } = self.current();
        let stream = self.accepted(calls, settings.handshake_timeout, socket).await?;
        if stream.get_ref().1.alpn_protocol() == Some(H2) {
            Ok(stream)
        } else {
            Err(self.failed(&"the client does not say that it speaks HTTP/2"))
        }
    }

    /// The same for one who watches over the server: it speaks HTTP/1.1, and is not asked for a
    /// certificate.
    ///
    /// # Errors
    /// As [`Self::handshake`].
    ///
    /// # Cancellation safety
    /// As [`Self::handshake`].
    pub async fn handshake_to_watch<S>(&self, socket: S) -> Result<TlsStream<S>, Unfinished>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Certificates { settings, watch, .. } = self.current();
        self.accepted(watch, settings.handshake_timeout, socket).await
    }

    async fn accepted<S>(
        &self,
        config: Arc<ServerConfig>,
        patience: Duration,
        socket: S,
    ) -> Result<TlsStream<S>, Unfinished>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match timeout(patience, TlsAcceptor::from(config).accept(socket)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => {
                self.shared.late.fetch_add(1, Ordering::Relaxed);
                Err(Unfinished::Late)
            }
        }
    }

    fn failed(&self, problem: &dyn std::fmt::Display) -> Unfinished {
        self.shared.failed.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%problem, "a TLS handshake failed");
        Unfinished::Failed
    }

    fn current(&self) -> Certificates {
        let current = self.shared.current.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }
}

/// The client's own certificate in DER, where it has shown one.
pub fn client_certificate<S>(stream: &TlsStream<S>) -> Option<&[u8]> {
    let certificates = stream.get_ref().1.peer_certificates()?;
    certificates.first().map(AsRef::as_ref)
}
