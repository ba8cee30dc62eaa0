//! Which certificates of servers are trusted.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme};

use super::tls_failure::is_ca_certificate;

/// Verifies servers by the rules of rustls, with one addition: a server may present a certificate of the file itself,
/// also if that is the certificate of a CA, because `openssl req -x509` makes such certificates.
#[derive(Debug)]
pub(super) struct Trusted {
    certificates: Vec<CertificateDer<'static>>,
    rules: Arc<WebPkiServerVerifier>,
}

impl Trusted {
    /// Trusts these certificates, as PEM.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(super) fn of(pem: &[u8]) -> Result<Arc<Self>, String> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = certificates.map_err(|error| error.to_string())?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        let provider = CryptoProvider::get_default().map_or_else(|| Arc::new(default_provider()), Arc::clone);
        let rules = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let rules = rules.map_err(|_| "contains no CA certificate".to_owned())?;
        Ok(Arc::new(Self { certificates, rules }))
    }
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let verified = self
            .rules
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(error) if is_ca_certificate(&error) && self.certificates.contains(end_entity) => {
                // Its validity was checked before that it is of a CA, so that only its name is left.
                rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.rules.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.rules.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.rules.supported_verify_schemes()
    }
}
