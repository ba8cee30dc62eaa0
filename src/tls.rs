//! TLS for listeners, with certificates and keys from PEM files that can be replaced at run time.
//!
//! Requires TLS 1.2 or later, and HTTP/2 for calls. Session resumption is off: each handshake verifies certificates
//! again, so that an old session cannot bypass a revoked certificate.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub mod credentials;
mod files;

pub use self::files::TlsError;
use self::files::{Clients, Configs, Own};

/// The ALPN protocol of calls: HTTP/2.
const H2: &[u8] = b"h2";
/// The ALPN protocol of the console and of the monitoring port.
const HTTP1: &[u8] = b"http/1.1";

/// Whether clients must present a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// Clients are not asked for a certificate.
    #[default]
    None,
    /// A client may present a certificate, which must then be valid.
    Optional,
    /// A client must present a valid certificate.
    Required,
}

/// The certificate files, and the limits of handshakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The server's certificate and its intermediates, as PEM.
    pub certificate: PathBuf,
    /// The key of the server's certificate, as PEM.
    pub key: PathBuf,
    /// The CA certificates for clients, as PEM; required unless clients are not asked for a certificate.
    pub client_ca: Option<PathBuf>,
    /// Whether clients must present a certificate.
    pub client_auth: ClientAuth,
    /// The time limit of a handshake.
    pub handshake_timeout: Duration,
    /// The maximum number of concurrent handshakes per listener; above it the oldest one is aborted.
    pub handshake_limit: usize,
}

/// The number of handshakes that did not complete, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// Handshakes that failed: another protocol, a certificate that is not accepted, a client that disconnected.
    pub failed: u64,
    /// Handshakes that timed out.
    pub timed_out: u64,
    /// Handshakes that were aborted as the oldest of too many.
    pub evicted: u64,
}

/// The TLS state of a server. Clones share it.
#[derive(Debug, Clone)]
pub struct Tls {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Locked only to read or replace the value.
    current: RwLock<Certificates>,
    failed: AtomicU64,
    timed_out: AtomicU64,
    evicted: AtomicU64,
}

/// The content of the files, as handshakes use it.
#[derive(Debug, Clone)]
pub struct Certificates {
    settings: TlsSettings,
    /// The server's certificate and key.
    own: Own,
    /// The verifier of client certificates.
    clients: Clients,
    configs: Configs,
}

impl TlsSettings {
    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.certificate, &self.key].into_iter().chain(&self.client_ca)
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Calls, over HTTP/2 or HTTP/1.1.
    Calls,
    /// The console: HTTP/1.1, with the client certificates of calls.
    Console,
    /// Monitoring: HTTP/1.1, without a client certificate.
    Monitoring,
}

/// Why a handshake did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// Another protocol, a certificate that is not accepted, or a client that disconnected.
    Failed,
    /// It timed out.
    Timeout,
    /// It was aborted as the oldest of too many.
    Evicted,
}

impl Unfinished {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Failed, Self::Timeout, Self::Evicted];

    /// The value of the metrics label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Evicted => "evicted",
        }
    }
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] for a file that cannot be used.
    pub fn read(settings: TlsSettings) -> Result<Self, TlsError> {
        let (own, clients) = (files::own(&settings)?, files::clients(&settings)?);
        Self::of(settings, own, clients)
    }

    fn of(settings: TlsSettings, own: Own, clients: Clients) -> Result<Self, TlsError> {
        let configs = files::configs(&settings, &own, &clients)?;
        Ok(Self {
            settings,
            own,
            clients,
            configs,
        })
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] for a file that cannot be used.
    pub fn open(settings: TlsSettings) -> Result<Self, TlsError> {
        let certificates = Certificates::read(settings)?;
        Ok(Self {
            shared: Arc::new(Shared {
                current: RwLock::new(certificates),
                failed: AtomicU64::new(0),
                timed_out: AtomicU64::new(0),
                evicted: AtomicU64::new(0),
            }),
        })
    }

    /// Reads the same files again, for later handshakes. Open connections are not affected.
    ///
    /// # Errors
    /// [`TlsError`]; the previous content stays in use then.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.replace(Certificates::read(self.current().settings)?);
        Ok(())
    }

    /// Reads the server's certificate with its key, and the CA certificates for clients, for later handshakes. Each
    /// file is applied separately, so that an error in one does not keep a removed certificate of the other in use. Of
    /// the CA certificates, all usable ones apply. A file without any usable content keeps its previous content.
    /// Returns the errors.
    pub fn renew(&self, settings: TlsSettings) -> Vec<TlsError> {
        let (before, mut errors) = (self.current(), Vec::new());
        let own = files::own(&settings).unwrap_or_else(|error| {
            errors.push(error);
            before.own
        });
        let clients = match files::usable_clients(&settings) {
            Ok((clients, bad)) => {
                errors.extend(bad);
                clients
            }
            Err(error) => {
                errors.push(error);
                before.clients
            }
        };
        match Certificates::of(settings, own, clients) {
            Ok(certificates) => self.replace(certificates),
            Err(error) => errors.push(error),
        }
        errors
    }

    /// Applies these certificates to later handshakes. Open connections are not affected.
    pub fn replace(&self, certificates: Certificates) {
        *self.shared.current.write() = certificates;
    }

    /// The number of handshakes that did not complete, since the start.
    pub fn refused(&self) -> Refused {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Refused {
            failed: count(&self.shared.failed),
            timed_out: count(&self.shared.timed_out),
            evicted: count(&self.shared.evicted),
        }
    }

    /// The certificate that later handshakes show, in DER.
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        self.current().own.cert.first().cloned()
    }

    /// The maximum number of concurrent handshakes per listener.
    pub fn handshake_limit(&self) -> usize {
        self.current().settings.handshake_limit
    }

    /// Counts a handshake that the listener aborted because there were too many.
    pub fn evicted(&self) {
        self.shared.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Performs the handshake of a connection for this purpose.
    ///
    /// # Errors
    /// [`Unfinished`] if the client does not complete it in time.
    ///
    /// # Cancellation safety
    /// When dropped, the socket is closed.
    pub async fn handshake<S>(&self, socket: S, purpose: Purpose) -> Result<TlsStream<S>, Unfinished>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Certificates { settings, configs, .. } = self.current();
        let config = match purpose {
            Purpose::Calls => configs.calls,
            Purpose::Console => configs.console,
            Purpose::Monitoring => configs.monitoring,
        };
        match timeout(settings.handshake_timeout, TlsAcceptor::from(config).accept(socket)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => {
                self.shared.timed_out.fetch_add(1, Ordering::Relaxed);
                Err(Unfinished::Timeout)
            }
        }
    }

    fn failed(&self, problem: &dyn std::fmt::Display) -> Unfinished {
        self.shared.failed.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%problem, "a TLS handshake failed");
        Unfinished::Failed
    }

    fn current(&self) -> Certificates {
        let current = self.shared.current.read();
        current.clone()
    }
}

/// The client's own certificate in DER, if it presented one.
pub fn client_certificate<S>(stream: &TlsStream<S>) -> Option<&[u8]> {
    let certificates = stream.get_ref().1.peer_certificates()?;
    certificates.first().map(AsRef::as_ref)
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::pki_types::pem::PemObject;
    use rustls::{ClientConfig, HandshakeKind, RootCertStore};
    use tokio_rustls::TlsConnector;

    use super::*;

    #[tokio::test]
    async fn no_session_is_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let own = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
        std::fs::write(&certificate, own.cert.pem()).unwrap();
        std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&certificate).unwrap()).unwrap();
        let tls = Tls::open(TlsSettings {
            certificate,
            key,
            client_ca: None,
            client_auth: ClientAuth::None,
            handshake_timeout: Duration::from_secs(10),
            handshake_limit: 4,
        });
        let tls = tls.unwrap();
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]);
            let mut client = client
                .unwrap()
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            client.alpn_protocols = vec![H2.to_vec()];
            let connector = TlsConnector::from(Arc::new(client));
            for _ in 0..3 {
                let (near, far) = tokio::io::duplex(1 << 16);
                let name = ServerName::try_from("x").unwrap();
                let (served, connected) =
                    tokio::join!(tls.handshake(far, Purpose::Calls), connector.connect(name, near));
                let mut connected = connected.unwrap();
                let mut served = served.unwrap();
                // What a session is resumed by may come after the handshake.
                tokio::io::AsyncWriteExt::write_all(&mut served, b"a").await.unwrap();
                tokio::io::AsyncWriteExt::flush(&mut served).await.unwrap();
                tokio::io::AsyncReadExt::read_u8(&mut connected).await.unwrap();
                assert_eq!(served.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
            }
        }
    }
}
