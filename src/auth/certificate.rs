//! Reads the identity from a client certificate. The TLS handshake has already verified the certificate.

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::identity as identity_of;
use crate::name::Identity;

/// The identity that a certificate establishes, and its expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateIdentity {
    /// The identity of its subject.
    pub identity: Identity,
    /// Its expiry, in seconds since 1970: a connection may outlast its certificate.
    pub until: u64,
}

/// The identity of a certificate in DER: its first URI, else its first DNS name, else its common name. The prefix names
/// the kind, because an authority may verify one kind more strictly than another.
pub fn identity(der: &[u8]) -> Option<CertificateIdentity> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let names = certificate.subject_alternative_name().ok()?;
    let names = names.map_or(&[][..], |names| names.value.general_names.as_slice());
    let uri = names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => Some(("uri", *uri)),
        _ => None,
    });
    let dns = || {
        names.iter().find_map(|name| match name {
            GeneralName::DNSName(dns) => Some(("dns", *dns)),
            _ => None,
        })
    };
    let common = || {
        let mut names = certificate.subject().iter_common_name();
        Some(("cn", names.next()?.as_str().ok()?))
    };
    let (kind, name) = uri.or_else(dns).or_else(common)?;
    let until = certificate.validity().not_after.timestamp();
    Some(CertificateIdentity {
        identity: identity_of(kind, name)?,
        until: until.try_into().unwrap_or(0),
    })
}

/// When a certificate in DER expires, in seconds since 1970.
pub fn expiry(der: &[u8]) -> Option<i64> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn identity_text(names: Vec<SanType>, common: Option<&str>) -> Option<String> {
        let mut params = CertificateParams::new([]).unwrap();
        params.subject_alt_names = names;
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        let signed = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        identity(signed.der()).map(|certificate| certificate.identity.as_str().to_owned())
    }

    #[test]
    fn a_uri_is_preferred_to_a_dns_name_and_that_to_the_common_name() {
        let uri = SanType::URI("spiffe://team/a".try_into().unwrap());
        let dns = SanType::DnsName("a.example".try_into().unwrap());
        let all = vec![dns.clone(), uri];
        assert_eq!(identity_text(all, Some("a")).as_deref(), Some("uri:spiffe://team/a"));
        assert_eq!(identity_text(vec![dns], Some("a")).as_deref(), Some("dns:a.example"));
        assert_eq!(identity_text(vec![], Some("a")).as_deref(), Some("cn:a"));
        assert_eq!(identity_text(vec![], None), None);
        assert_eq!(identity(b"no certificate"), None);
    }
}
