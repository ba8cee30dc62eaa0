//! Whether what proves this server to another can be used, asked before it is.

use rustls::RootCertStore;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Why it cannot be used. It shows nothing of what was read.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// It is no PEM, or not whole.
    #[error("no PEM can be read: {0}")]
    Unreadable(rustls::pki_types::pem::Error),
    /// There is no certificate in it.
    #[error("there is no certificate in it")]
    NoCertificate,
    /// A certificate is not what it should be, or the key is not its own.
    #[error(transparent)]
    Unusable(#[from] rustls::Error),
}

/// Checks the certificates of authorities, as PEM.
///
/// # Errors
/// [`CredentialsError`] where there is none, or one that cannot be used.
pub fn check_authorities(certificates: &[u8]) -> Result<(), CredentialsError> {
    let mut roots = RootCertStore::empty();
    let mut all = read(certificates)?.into_iter();
    all.try_for_each(|authority| Ok(roots.add(authority)?))
}

/// Checks a certificate, with those between it and its authority, and its key, as PEM.
///
/// # Errors
/// [`CredentialsError`] where they cannot be used together: one of two files may be written before the other.
pub fn check_pair(certificates: &[u8], key: &[u8]) -> Result<(), CredentialsError> {
    let chain = read(certificates)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(CredentialsError::Unreadable)?;
    CertifiedKey::from_der(chain, key, &default_provider())?;
    Ok(())
}

fn read(certificates: &[u8]) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
    let all = all.map_err(CredentialsError::Unreadable)?;
    if all.is_empty() {
        return Err(CredentialsError::NoCertificate);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed() -> (String, String) {
        let signed = rcgen::generate_simple_self_signed(["a".to_owned()]).expect("a certificate");
        (signed.cert.pem(), signed.signing_key.serialize_pem())
    }

    #[test]
    fn a_certificate_and_a_key_that_are_not_whole_or_do_not_fit_are_refused() {
        let (certificate, key) = signed();
        let (other, _) = signed();
        let check = |certificate: &str, key: &str| check_pair(certificate.as_bytes(), key.as_bytes());
        check(&certificate, &key).expect("a pair");
        check(&format!("{certificate}{other}"), &key).expect("with a chain");
        let refused = [
            check(&other, &key),
            check(&certificate[..certificate.len() / 2], &key),
            check(&certificate, &key[..key.len() / 2]),
            check(&certificate, ""),
            check("", &key),
        ];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
    }

    #[test]
    fn authorities_that_are_not_whole_are_refused() {
        let (one, key) = signed();
        let check = |text: &str| check_authorities(text.as_bytes());
        check(&one).expect("one");
        check(&format!("{one}{}", signed().0)).expect("two");
        let cut = format!("{one}{}", &one[..one.len() / 2]);
        let refused = [check(""), check(&cut), check(&key)];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
    }
}
