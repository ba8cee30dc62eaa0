//! Authorities, and the certificates that they sign.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType, date_time_ymd,
};

/// Somebody who signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub pem: String,
}

/// A certificate and its key, as PEM.
#[derive(Debug, Clone)]
pub struct UnverifiedToken {
    pub certificate: String,
    pub key: String,
}

/// Their files.
#[derive(Debug, Clone)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// A certificate of a server on this machine.
    pub fn server(&self) -> UnverifiedToken {
        self.server_until(2090)
    }

    /// The same, which expires at the beginning of a year.
    pub fn server_until(&self, year: i32) -> UnverifiedToken {
        let mut params = params("a server");
        params.not_after = date_time_ymd(year, 1, 1);
        params.subject_alt_names = vec![
            SanType::IpAddress([127, 0, 0, 1].into()),
            SanType::DnsName("localhost".try_into().expect("a name")),
        ];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    /// A certificate of a client, with this URI in it.
    pub fn client(&self, uri: &str) -> UnverifiedToken {
        self.sign(&client(uri))
    }

    /// A certificate of a client, with this DNS name in it, or with nothing but a common name.
    pub fn client_named(&self, dns: Option<&str>) -> UnverifiedToken {
        let mut params = client("any:thing");
        let dns = dns.map(|name| SanType::DnsName(name.try_into().expect("a name")));
        params.subject_alt_names = dns.into_iter().collect();
        self.sign(&params)
    }

    /// One with a URI, whose time is over.
    pub fn expired_client(&self, uri: &str) -> UnverifiedToken {
        let mut params = client(uri);
        params.not_after = date_time_ymd(2001, 1, 1);
        self.sign(&params)
    }

    /// The same, whose time is over so soon.
    pub fn short_lived_client(&self, uri: &str, left: Duration) -> UnverifiedToken {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let mut params = client(uri);
        params.not_after = date_time_ymd(1970, 1, 1) + since + left;
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> UnverifiedToken {
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        UnverifiedToken {
            certificate: signed.pem(),
            key: key.serialize_pem(),
        }
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([]).expect("no names");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn client(uri: &str) -> CertificateParams {
    let mut params = params("a client");
    params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("a URI"))];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

impl UnverifiedToken {
    /// Writes them under this name.
    pub fn write(&self, folder: &Path, name: &str) -> Files {
        Files {
            certificate: file(folder, &format!("{name}.pem"), &self.certificate),
            key: file(folder, &format!("{name}.key"), &self.key),
        }
    }
}

/// A file with this text; one that is there is replaced at once.
pub fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    let fresh = folder.join(format!("{name}.new"));
    std::fs::write(&fresh, text).expect("a file");
    std::fs::rename(&fresh, &path).expect("a file");
    path
}
