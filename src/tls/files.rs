//! Reads PEM files and builds TLS configurations from them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};

use super::credentials::{self, CredentialsError};
use super::{ClientAuth, H2, HTTP1, TlsSettings};
use crate::files;

/// Why the files cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unread {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file contains no usable certificates, or no key that belongs to them.
    #[error("{}: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: CredentialsError,
    },
    /// The CA certificates for clients cannot be used.
    #[error("{}: {source}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: VerifierBuilderError,
    },
    /// Clients must present a certificate, but no CA certificates are configured.
    #[error("there is no file with the authorities that may sign for clients")]
    NoAuthorities,
}

impl TlsError {
    /// The file that cannot be used.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unread { path, .. } | Self::Unusable { path, .. } | Self::Authorities { path, .. } => Some(path),
            Self::NoAuthorities => None,
        }
    }
}

/// The server's certificate chain and key.
pub(super) type Own = Arc<CertifiedKey>;
/// The verifier of client certificates.
pub(super) type Clients = Arc<dyn ClientCertVerifier>;

/// Reads the server's certificate and key.
pub(super) fn own(settings: &TlsSettings) -> Result<Own, TlsError> {
    let (certificate, key) = (&settings.certificate, &settings.key);
    let chain = credentials::read(&read(certificate)?).map_err(unusable(certificate))?;
    let key = credentials::read_key(&read(key)?).map_err(unusable(key))?;
    let own = CertifiedKey::from_der(chain, key, &default_provider()).map_err(unusable(certificate))?;
    Ok(Arc::new(own))
}

/// The configurations of handshakes, by what is served.
#[derive(Debug, Clone)]
pub(super) struct Configs {
    /// For calls.
    pub calls: Arc<ServerConfig>,
    /// For the console, with the same client certificates as calls.
    pub console: Arc<ServerConfig>,
    /// For the monitoring port, without client certificates.
    pub monitoring: Arc<ServerConfig>,
}

/// The configurations of handshakes.
pub(super) fn configs(settings: &TlsSettings, own: &Own, clients: &Clients) -> Result<Configs, TlsError> {
    let provider = Arc::new(default_provider());
    let shown = Arc::new(SingleCertAndKey::from(Arc::clone(own)));
    let config = |clients, protocols: &[&[u8]]| {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(unusable(&settings.certificate))?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::<SingleCertAndKey>::clone(&shown));
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    };
    Ok(Configs {
        calls: config(Arc::clone(clients), &[H2, HTTP1])?,
        console: config(Arc::clone(clients), &[HTTP1])?,
        monitoring: config(WebPkiClientVerifier::no_client_auth(), &[HTTP1])?,
    })
}

/// Builds the verifier of client certificates.
pub(super) fn clients(settings: &TlsSettings) -> Result<Clients, TlsError> {
    let (clients, mut errors) = usable_clients(settings)?;
    errors.pop().map_or(Ok(clients), Err)
}

/// Builds the verifier from the usable CA certificates, at least one. Also returns the errors of the others.
pub(super) fn usable_clients(settings: &TlsSettings) -> Result<(Clients, Vec<TlsError>), TlsError> {
    if settings.client_auth == ClientAuth::None {
        return Ok((WebPkiClientVerifier::no_client_auth(), Vec::new()));
    }
    let path = settings.client_ca.as_ref().ok_or(TlsError::NoAuthorities)?;
    let (mut roots, mut errors) = (RootCertStore::empty(), Vec::new());
    for authority in CertificateDer::pem_slice_iter(&read(path)?) {
        let authority = authority.map_err(CredentialsError::from);
        let added = authority.and_then(|authority| Ok(roots.add(authority)?));
        errors.extend(added.map_err(unusable(path)).err());
    }
    if roots.is_empty() {
        let none = || unusable(path)(CredentialsError::NoCertificate);
        return Err(errors.pop().unwrap_or_else(none));
    }
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = match settings.client_auth {
        ClientAuth::Optional => verifier.allow_unauthenticated(),
        ClientAuth::None | ClientAuth::Required => verifier,
    };
    let built = verifier.build().map_err(|source| TlsError::Authorities {
        path: path.clone(),
        source,
    });
    Ok((built?, errors))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    files::read(path).map_err(|source| TlsError::Unread {
        path: path.into(),
        source,
    })
}

fn unusable<E: Into<CredentialsError>>(path: &Path) -> impl Fn(E) -> TlsError {
    move |source| TlsError::Unusable {
        path: path.into(),
        source: source.into(),
    }
}
