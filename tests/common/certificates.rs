//! An authority of the test's own, and what it signs.

#![allow(dead_code)]

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// The files of an authority, and of the certificate and key that it signed for 127.0.0.1.
pub struct Certificates {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Certificates {
    /// Writes them into a folder.
    pub fn write(folder: &Path) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, "the authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(params, ca_key);
        let key = KeyPair::generate().unwrap();
        let signed = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let signed = signed.signed_by(&key, &issuer).unwrap();
        let file = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        Self {
            ca: file("ca.pem", ca.pem()),
            certificate: file("certificate.pem", signed.pem()),
            key: file("key.pem", key.serialize_pem()),
        }
    }

    /// The options of a Redis that speaks TLS with them on this port, to whom shows a certificate of
    /// the same authority.
    pub fn options(&self, port: u16) -> Vec<String> {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let pairs = [
            ("--tls-port", port.to_string()),
            ("--tls-ca-cert-file", path(&self.ca)),
            ("--tls-cert-file", path(&self.certificate)),
            ("--tls-key-file", path(&self.key)),
        ];
        pairs
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
    }
}
