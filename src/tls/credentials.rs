//! Parses certificates and keys in PEM: those of the listeners, and those that this server presents to stores.

use std::sync::Arc;

use fencepost_client::is_encrypted_key;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};

/// Why credentials cannot be used. The error contains nothing of their content.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// It is not PEM, or incomplete.
    #[error("no PEM can be read: {0}")]
    Unreadable(#[from] pem::Error),
    /// The key needs a password.
    #[error("the key is encrypted, and no password can be given: write it without one")]
    EncryptedKey,
    /// It contains no certificate.
    #[error("there is no certificate in it")]
    NoCertificate,
    /// A certificate is invalid, or the key does not belong to it.
    #[error(transparent)]
    Unusable(#[from] rustls::Error),
}

/// Checks CA certificates in PEM.
///
/// # Errors
/// [`CredentialsError`] if there is none, or an invalid one.
pub fn check_authorities(certificates: &[u8]) -> Result<(), CredentialsError> {
    let mut roots = RootCertStore::empty();
    let mut all = read(certificates)?.into_iter();
    all.try_for_each(|authority| Ok(roots.add(authority)?))
}

/// Checks a certificate chain and its key, in PEM.
///
/// # Errors
/// [`CredentialsError`] if they do not belong together, as when only one of the two files was replaced yet.
pub fn check_pair(certificates: &[u8], key: &[u8]) -> Result<(), CredentialsError> {
    CertifiedKey::from_der(read(certificates)?, read_key(key)?, &default_provider())?;
    Ok(())
}

/// The TLS settings of a client that trusts these authorities, or those of the machine, and presents this chain and key;
/// all are PEM.
///
/// # Errors
/// [`CredentialsError`] if one of them cannot be used.
pub fn client_config(
    authorities: Option<&[u8]>,
    identity: Option<(&[u8], &[u8])>,
) -> Result<ClientConfig, CredentialsError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(authorities) => {
            for authority in read(authorities)? {
                roots.add(authority)?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    match identity {
        Some((chain, key)) => Ok(config.with_client_auth_cert(read(chain)?, read_key(key)?)?),
        None => Ok(config.with_no_client_auth()),
    }
}

/// The certificates in PEM, at least one.
pub(super) fn read(certificates: &[u8]) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let all = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>()?;
    if all.is_empty() {
        return Err(CredentialsError::NoCertificate);
    }
    Ok(all)
}

/// The key in PEM.
pub(super) fn read_key(key: &[u8]) -> Result<PrivateKeyDer<'static>, CredentialsError> {
    if is_encrypted_key(key) {
        return Err(CredentialsError::EncryptedKey);
    }
    Ok(PrivateKeyDer::from_pem_slice(key)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed() -> (String, String) {
        let signed = rcgen::generate_simple_self_signed(["a".to_owned()]).expect("a certificate");
        (signed.cert.pem(), signed.signing_key.serialize_pem())
    }

    #[test]
    fn incomplete_or_mismatched_certificates_and_keys_are_refused() {
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
    fn an_encrypted_key_is_refused_as_such() {
        let (certificate, _) = signed();
        for key in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
        ] {
            let refused = check_pair(certificate.as_bytes(), key.as_bytes());
            assert!(matches!(refused, Err(CredentialsError::EncryptedKey)), "{refused:?}");
        }
    }

    #[test]
    fn incomplete_ca_certificates_are_refused() {
        let (one, key) = signed();
        let check = |text: &str| check_authorities(text.as_bytes());
        check(&one).expect("one");
        check(&format!("{one}{}", signed().0)).expect("two");
        let cut = format!("{one}{}", &one[..one.len() / 2]);
        let refused = [check(""), check(&cut), check(&key)];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
    }
}
