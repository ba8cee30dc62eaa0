//! What failed with the TLS of a connection, in words that say which side speaks what.

use std::error::Error;
use std::io;

use rustls::{CertificateError, Error as TlsError, InvalidMessage, OtherError};

/// Why a connection has no TLS.
pub(super) enum TlsFailure {
    /// The certificate of the server is not trusted.
    Certificate(String),
    /// The sides do not speak the same.
    Protocol(String),
}

/// The failure of TLS among the causes of an error.
pub(super) fn of(error: &(dyn Error + 'static)) -> Option<TlsFailure> {
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<io::Error>();
        let inner = io.and_then(io::Error::get_ref).and_then(|inner| inner.downcast_ref());
        if let Some(error) = inner.or_else(|| cause.downcast_ref()) {
            return Some(told(error));
        }
        if io.is_some_and(ends_before_tls) {
            let closed = "the server closed the connection at once; if it does not speak TLS there, write the address \
                          without https://";
            return Some(TlsFailure::Protocol(closed.to_owned()));
        }
        next = cause.source();
    }
    None
}

/// Whether it is what tokio-rustls says of a connection that ends in the handshake.
fn ends_before_tls(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof && error.to_string().contains("tls handshake")
}

fn told(error: &TlsError) -> TlsFailure {
    match error {
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => {
            TlsFailure::Protocol("the server does not speak TLS there: write the address without https://".to_owned())
        }
        TlsError::InvalidCertificate(cause) => TlsFailure::Certificate(match cause {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "no CA certificate that the client has signed its certificate".to_owned()
            }
            CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                "its certificate names no host: add one as a subjectAltName".to_owned()
            }
            _ if is_ca_certificate(error) => {
                "its certificate is that of a CA, and none of those that the client has".to_owned()
            }
            _ => error.to_string(),
        }),
        error => TlsFailure::Protocol(error.to_string()),
    }
}

/// Whether a server was refused because its certificate is that of a CA.
pub(super) fn is_ca_certificate(error: &TlsError) -> bool {
    let TlsError::InvalidCertificate(CertificateError::Other(OtherError(error))) = error else {
        return false;
    };
    matches!(error.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
