//! An authority of the test's own, and what it signs.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// The files of an authority, and of the certificate and key that it signed for 127.0.0.1.
pub struct Certificates {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate for 127.0.0.1 and its key, as PEM.
fn sign(issuer: &Issuer<'static, KeyPair>) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let signed = params.signed_by(&key, issuer).unwrap();
    (signed.pem(), key.serialize_pem())
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
        let (certificate, key) = sign(&issuer);
        let file = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        Self {
            ca: file("ca.pem", ca.pem()),
            certificate: file("certificate.pem", certificate),
            key: file("key.pem", key),
            issuer,
        }
    }

    /// Another certificate and key of the same authority, as PEM.
    pub fn renewed(&self) -> (String, String) {
        sign(&self.issuer)
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
