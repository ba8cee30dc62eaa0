//! Reads PEM files and builds TLS configurations from them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};

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
    /// A file is not PEM.
    #[error("{}: no PEM can be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: pem::Error,
    },
    /// A file contains no certificate.
    #[error("{}: there is no certificate in it", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A certificate cannot be used, or the key does not belong to it.
    #[error("{}: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
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
            Self::Unread { path, .. }
            | Self::Unreadable { path, .. }
            | Self::NoCertificate { path }
            | Self::Unusable { path, .. }
            | Self::Authorities { path, .. } => Some(path),
            Self::NoAuthorities => None,
        }
    }
}

/// The server's certificate chain and key.
pub(super) type Own = Arc<SingleCertAndKey>;
/// The verifier of client certificates.
pub(super) type Clients = Arc<dyn ClientCertVerifier>;

/// Reads the server's certificate and key.
pub(super) fn own(settings: &TlsSettings) -> Result<Own, TlsError> {
    let chain = certificates(&settings.certificate)?;
    let path = &settings.key;
    let key = PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|source| unreadable(path, source))?;
    let own = CertifiedKey::from_der(chain, key, &default_provider());
    let own = own.map_err(|source| unusable(settings, source))?;
    Ok(Arc::new(own.into()))
}

/// The configurations for API connections and for monitoring connections.
pub(super) fn configs(
    settings: &TlsSettings,
    own: &Own,
    clients: &Clients,
) -> Result<(Arc<ServerConfig>, Arc<ServerConfig>), TlsError> {
    let provider = Arc::new(default_provider());
    let config = |clients, protocol: &[u8]| {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|source| unusable(settings, source))?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::<SingleCertAndKey>::clone(own));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    };
    let calls = config(Arc::clone(clients), H2)?;
    let monitoring = config(WebPkiClientVerifier::no_client_auth(), HTTP1)?;
    Ok((calls, monitoring))
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
        let authority = authority.map_err(|source| unreadable(path, source));
        let added = authority.and_then(|authority| {
            roots.add(authority).map_err(|source| TlsError::Unusable {
                path: path.clone(),
                source,
            })
        });
        errors.extend(added.err());
    }
    if roots.is_empty() {
        return Err(errors
            .pop()
            .unwrap_or_else(|| TlsError::NoCertificate { path: path.clone() }));
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let all = all.map_err(|source| unreadable(path, source))?;
    if all.is_empty() {
        return Err(TlsError::NoCertificate { path: path.into() });
    }
    Ok(all)
}

fn unusable(settings: &TlsSettings, source: rustls::Error) -> TlsError {
    TlsError::Unusable {
        path: settings.certificate.clone(),
        source,
    }
}

fn unreadable(path: &Path, source: pem::Error) -> TlsError {
    TlsError::Unreadable {
        path: path.into(),
        source,
    }
}
