//! An issuer of signed tokens, and others who would like to be one.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fencepost::auth::JwtSettings;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
    RsaPublicKeyComponents,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

/// A key of these tests alone: nothing here can make one of its kind.
const RSA: &[u8] = include_bytes!("rsa.pem");

/// A key that signs, and the id under which others know it.
pub enum Signer {
    Es256(String, EcdsaKeyPair),
    EdDsa(String, Ed25519KeyPair),
    Rs256(String, RsaKeyPair),
}

pub fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    pub fn es256(id: &str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random);
        Self::Es256(id.into(), pair.expect("a key"))
    }

    pub fn ed25519(id: &str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref());
        Self::EdDsa(id.into(), pair.expect("a key"))
    }

    /// Always the same key.
    pub fn rs256(id: &str) -> Self {
        let key = PrivatePkcs8KeyDer::from_pem_slice(RSA).expect("PEM");
        Self::Rs256(
            id.into(),
            RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).expect("a key"),
        )
    }

    fn as_str(&self) -> &'static str {
        match self {
            Self::Es256(..) => "ES256",
            Self::EdDsa(..) => "EdDSA",
            Self::Rs256(..) => "RS256",
        }
    }

    fn id(&self) -> &str {
        match self {
            Self::Es256(id, _) | Self::EdDsa(id, _) | Self::Rs256(id, _) => id,
        }
    }

    pub fn jwk(&self) -> Value {
        match self {
            Self::Es256(id, pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": id, "x": encoded(x), "y": encoded(y) })
            }
            Self::EdDsa(id, pair) => {
                let x = encoded(pair.public_key());
                json!({ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": id, "x": x })
            }
            Self::Rs256(id, pair) => {
                let key = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({ "kty": "RSA", "alg": "RS256", "kid": id, "n": encoded(key.n), "e": encoded(key.e) })
            }
        }
    }

    fn signature(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Es256(_, pair) => {
                let signed = pair.sign(&SystemRandom::new(), message);
                signed.expect("signed").as_ref().to_vec()
            }
            Self::EdDsa(_, pair) => pair.sign(message).as_ref().to_vec(),
            Self::Rs256(_, pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                let signed = pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature);
                signed.expect("signed");
                signature
            }
        }
    }

    /// A token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        self.token_under(&json!({ "alg": self.as_str(), "kid": self.id() }), claims)
    }

    /// A token that says this of itself.
    pub fn token_under(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
        let signature = encoded(self.signature(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

/// Writes the keys of some signers, with one beside them that is for something else.
pub fn jwks(folder: &Path, signers: &[&Signer]) -> PathBuf {
    let other = json!({ "kty": "oct", "kid": "shared", "k": encoded("a shared secret of thirty-two bytes") });
    let all: Vec<Value> = signers.iter().map(|signer| signer.jwk()).chain([other]).collect();
    super::authority::file(folder, "jwks.json", &json!({ "keys": all }).to_string())
}

/// Settings that trust the tokens of one signer.
pub fn trusting(signer: &Signer, folder: &Path) -> JwtSettings {
    JwtSettings {
        jwks_file: jwks(folder, &[signer]),
        issuer: "https://issuer.example".into(),
        audiences: vec!["fencepost".into()],
        ..JwtSettings::default()
    }
}

/// Seconds since 1970, so much from now.
pub fn seconds_from_now(more: i64) -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    since.as_secs().cast_signed() + more
}

/// Claims that are good for an hour.
pub fn claims(subject: &str) -> Value {
    json!({
        "iss": "https://issuer.example",
        "aud": "fencepost",
        "sub": subject,
        "exp": seconds_from_now(3600),
    })
}
