//! JSON Web Tokens (JWT): verified with the keys of a file, for one issuer and a set of audiences.
//!
//! The crate `jsonwebtoken` takes its cryptography from [`verifying`], which uses `ring` as TLS does.
//!
//! At most half of the processors verify signatures at the same time. A verified token is remembered by its hash
//! until it expires.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::authenticated_identity::{AuthenticatedIdentity, Until};
use super::bearer::{self, Hash};
use super::{AuthenticationFailure, clock};
use crate::files;
use crate::name::Identity;

mod token;
mod verifying;

pub use self::token::Unverified;

/// The maximum number of keys in a file.
const MAX_KEYS: usize = 100;
/// The maximum number of keys that a token is checked with. A forged token costs the server this many verifications. If
/// more keys have the token's algorithm, the token must name its key.
const MAX_TRIED: usize = 4;
/// The maximum number of verified tokens that are cached, because a signature costs as much time as a whole call.
const MAX_CACHED: usize = 10_000;

/// Which tokens are accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JwtSettings {
    /// The file with the issuer's public keys, a JSON Web Key Set.
    pub jwks_file: PathBuf,
    /// The issuer that a token must name.
    pub issuer: String,
    /// The accepted audiences; a token must name one of them.
    pub audiences: Vec<String>,
    /// The tolerated difference between the clocks of the issuer and of this server.
    pub leeway: Duration,
    /// The required type (`typ`) in the header of a token, if any.
    pub token_type: Option<String>,
    /// The maximum age of a token since its issue (`iat`); absent: its `exp` alone decides.
    pub max_age: Option<Duration>,
}

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// It cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It is not a key set.
    #[error("{}: is not a JSON Web Key Set: {source}", path.display())]
    NoKeySet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// It has no usable key, or too many.
    #[error("{}: must have 1 to {MAX_KEYS} keys for RS256, ES256 or EdDSA, not {found}", path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// The number of usable keys.
        found: usize,
    },
}

/// A JSON Web Key Set. Keys of unsupported kinds are ignored.
#[derive(Debug, Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// A key that verifies signatures.
#[derive(Debug, Clone)]
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
    /// The key's entry in the file.
    jwk: Value,
}

/// A verified token, and its expiry in seconds since 1970.
#[derive(Debug)]
struct VerifiedToken {
    identity: Identity,
    until: u64,
}

/// The keys and the cache of verified tokens.
#[derive(Debug)]
pub struct Jwt {
    settings: JwtSettings,
    /// The hash of the file's content.
    file: Hash,
    keys: Vec<Key>,
    /// Verified tokens by hash. Not locked during a verification.
    verified_tokens: Mutex<HashMap<Hash, VerifiedToken>>,
}

impl Jwt {
    /// Reads the keys.
    pub(super) fn open(settings: &JwtSettings) -> Result<Self, JwtError> {
        let read = Self::read(settings)?;
        match read.fault() {
            Some(fault) => Err(fault),
            None => Ok(read),
        }
    }

    /// Reads the file again and returns the new keys and what is wrong with the file. Keys that were removed from the
    /// file are dropped even if the rest of the file cannot be used.
    pub(super) fn renewed(&self, settings: &JwtSettings) -> (Option<Self>, Option<JwtError>) {
        let mut read = match Self::read(settings) {
            Ok(read) if read.file == self.file && read.settings == self.settings => return (None, read.fault()),
            Ok(read) => read,
            Err(error) => return (None, Some(error)),
        };
        let fault = read.fault();
        if fault.is_some() {
            let listed = |key: &&Key| read.keys.iter().any(|other| other.jwk == key.jwk);
            read.keys = self.keys.iter().filter(listed).cloned().collect();
        }
        (Some(read), fault)
    }

    fn read(settings: &JwtSettings) -> Result<Self, JwtError> {
        verifying::install();
        let path = &settings.jwks_file;
        let text = files::read(path).map_err(|source| JwtError::Unreadable {
            path: path.clone(),
            source,
        })?;
        let set: KeySet = serde_json::from_slice(&text).map_err(|source| JwtError::NoKeySet {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            settings: settings.clone(),
            file: bearer::hash(&text),
            keys: set.keys.into_iter().filter_map(key).collect(),
            verified_tokens: Mutex::default(),
        })
    }

    fn fault(&self) -> Option<JwtError> {
        let found = self.keys.len();
        (found == 0 || found > MAX_KEYS).then(|| JwtError::Keys {
            path: self.settings.jwks_file.clone(),
            found,
        })
    }

    /// Parses a token and checks everything but its signature, because these checks are cheap.
    pub(super) fn check_claims(&self, token: &[u8]) -> Result<Unverified, AuthenticationFailure> {
        let parts = token::parts(token)?;
        if self.keys_of(parts.header.alg, parts.header.kid.as_deref()).is_empty() {
            return Err(AuthenticationFailure::Invalid);
        }
        parts.check_claims(&self.settings, clock::seconds())
    }

    /// Verifies the signature of a token. `hash` is the hash of the token.
    pub(super) fn verify(
        &self,
        hash: &Hash,
        token: Unverified,
    ) -> Result<AuthenticatedIdentity, AuthenticationFailure> {
        let keys = self.keys_of(token.algorithm, token.key_id.as_deref());
        let mut keys = keys.into_iter();
        let message = token.message.as_bytes();
        let verifies = |key: &Key| crypto::verify(&token.signature, message, &key.key, token.algorithm);
        if !keys.any(|key| matches!(verifies(key), Ok(true))) {
            tracing::debug!("no key verifies the signature of a JWT");
            return Err(AuthenticationFailure::Invalid);
        }
        self.cache(hash, &token);
        Ok(AuthenticatedIdentity {
            identity: token.identity,
            until: Until(Some(token.until)),
        })
    }

    /// The keys that may have signed a token: the keys with its key id. Without a match, the keys of its algorithm,
    /// provided that the token or the key has no id. Empty if there are more than [`MAX_TRIED`].
    fn keys_of(&self, algorithm: Algorithm, id: Option<&str>) -> Vec<&Key> {
        let is_named = |key: &&Key| id.is_some() && key.id.as_deref() == id;
        let all = || self.keys.iter().filter(|key| key.algorithm == algorithm);
        let mut keys: Vec<&Key> = all().filter(is_named).collect();
        if keys.is_empty() {
            keys = all().filter(|key| id.is_none() || key.id.is_none()).collect();
        }
        if keys.len() > MAX_TRIED {
            tracing::debug!(
                keys = keys.len(),
                "a JWT names no key, and too many keys have its algorithm"
            );
            keys.clear();
        }
        keys
    }

    /// The cached result for a token whose signature was verified before.
    pub(super) fn remembered(&self, hash: &Hash) -> Option<Result<AuthenticatedIdentity, AuthenticationFailure>> {
        let mut verified_tokens = self.verified_tokens.lock();
        let cached = verified_tokens.get(hash)?;
        let until = Until(Some(cached.until));
        if !until.is_over() {
            let identity = cached.identity.clone();
            return Some(Ok(AuthenticatedIdentity { identity, until }));
        }
        verified_tokens.remove(hash);
        Some(Err(AuthenticationFailure::Expired))
    }

    fn cache(&self, hash: &Hash, token: &Unverified) {
        let mut verified_tokens = self.verified_tokens.lock();
        if verified_tokens.len() >= MAX_CACHED {
            let now = clock::seconds();
            verified_tokens.retain(|_, cached| now <= cached.until);
        }
        if verified_tokens.len() >= MAX_CACHED {
            verified_tokens.clear();
        }
        let cached = VerifiedToken {
            identity: token.identity.clone(),
            until: token.until,
        };
        verified_tokens.insert(*hash, cached);
    }
}

/// A key of the file, if it is a signature key of a supported kind.
fn key(value: Value) -> Option<Key> {
    let jwk = Jwk::deserialize(&value).ok()?;
    if matches!(jwk.common.public_key_use, Some(ref purpose) if *purpose != PublicKeyUse::Signature) {
        return None;
    }
    let (algorithm, name) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    if jwk.common.key_algorithm.is_some_and(|named| named != name) {
        return None;
    }
    Some(Key {
        id: jwk.common.key_id.clone(),
        algorithm,
        key: DecodingKey::from_jwk(&jwk).ok()?,
        jwk: value,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use futures::future::poll_immediate;

    use super::*;
    use crate::auth::{Auth, UnverifiedToken};

    fn jwt() -> Jwt {
        Jwt {
            settings: JwtSettings::default(),
            file: Hash::default(),
            keys: Vec::new(),
            verified_tokens: Mutex::default(),
        }
    }

    fn token(until: u64) -> Unverified {
        Unverified {
            message: String::new(),
            signature: String::new(),
            algorithm: Algorithm::EdDSA,
            key_id: None,
            identity: Identity::authenticated("jwt:a"),
            until,
        }
    }

    #[test]
    fn removed_keys_go_also_if_the_file_has_no_key_or_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let jwks_file = folder.path().join("keys");
        let write = |numbers: std::ops::Range<usize>| {
            let jwk = |number: usize| {
                let x = URL_SAFE_NO_PAD.encode([u8::try_from(number).unwrap(); 32]);
                serde_json::json!({ "kty": "OKP", "crv": "Ed25519", "kid": number.to_string(), "x": x })
            };
            let keys: Vec<Value> = numbers.map(jwk).collect();
            std::fs::write(&jwks_file, serde_json::json!({ "keys": keys }).to_string()).unwrap();
        };
        let settings = JwtSettings {
            jwks_file: jwks_file.clone(),
            ..JwtSettings::default()
        };
        write(1..3);
        let first = Jwt::open(&settings).unwrap();
        assert!(first.renewed(&settings).0.is_none(), "nothing has changed");
        let other = JwtSettings {
            issuer: "another".into(),
            ..settings.clone()
        };
        assert!(first.renewed(&other).0.is_some());
        for (numbers, left) in [(1..1, vec![]), (2..3 + MAX_KEYS, vec!["2"])] {
            write(numbers);
            let (renewed, fault) = first.renewed(&settings);
            let renewed = renewed.unwrap();
            let ids: Vec<_> = renewed.keys.iter().filter_map(|key| key.id.as_deref()).collect();
            assert_eq!((ids, fault.is_some()), (left, true));
        }
    }

    #[test]
    fn a_cached_token_expires() {
        let (jwt, hash) = (jwt(), Hash::default());
        jwt.cache(&hash, &token(clock::seconds() - 1));
        assert_eq!(jwt.remembered(&hash), Some(Err(AuthenticationFailure::Expired)));
        assert_eq!(jwt.remembered(&hash), None);
    }

    #[tokio::test]
    async fn a_token_that_was_verified_before_waits_for_no_other_verification() {
        let auth = Auth::default();
        let all = u32::try_from(auth.verifying.available_permits()).unwrap();
        let _busy = auth.verifying.acquire_many(all).await.unwrap();
        for is_known in [true, false] {
            let (jwt, hash) = (jwt(), Hash::default());
            if is_known {
                jwt.cache(&hash, &token(u64::MAX));
            }
            let jwt = Arc::new(jwt);
            let shown = || UnverifiedToken {
                jwt: Arc::clone(&jwt),
                hash,
                token: token(u64::MAX),
            };
            let verified = poll_immediate(auth.verify(shown())).await;
            assert_eq!(verified.is_some_and(|verified| verified.is_ok()), is_known);
            // No key verifies it again.
            assert_eq!(shown().verify().is_ok(), is_known);
        }
    }

    #[test]
    fn keys_for_another_use_or_algorithm_are_ignored() {
        let with = |field: &str, value: &str| {
            let mut jwk = serde_json::json!({
                "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
            });
            jwk[field] = value.into();
            key(jwk).is_some()
        };
        assert!(with("use", "sig") && with("alg", "EdDSA"));
        assert!(!with("use", "enc") && !with("alg", "ES256"));
    }

    #[test]
    fn a_file_has_a_bounded_number_of_keys() {
        let one = serde_json::json!({
            "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
        });
        let mut jwt = jwt();
        for (number, is_refused) in [(0, true), (1, false), (MAX_KEYS, false), (MAX_KEYS + 1, true)] {
            jwt.keys = vec![key(one.clone()).unwrap(); number];
            assert_eq!(jwt.fault().is_some(), is_refused, "{number}");
        }
    }

    #[test]
    fn the_cache_of_verified_tokens_is_bounded() {
        let (jwt, token) = (jwt(), token(u64::MAX));
        for number in 0..=MAX_CACHED {
            let mut hash = Hash::default();
            hash[..8].copy_from_slice(&number.to_le_bytes());
            jwt.cache(&hash, &token);
            assert!(matches!(jwt.remembered(&hash), Some(Ok(_))));
        }
        assert!(jwt.verified_tokens.lock().len() <= MAX_CACHED);
    }
}
