//! Signed tokens (JWT): proven by the keys of a file, for one issuer and audience, while they last.
//!
//! The crate that verifies them takes its cryptography from [`verifying`]: `ring`, as TLS does.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use serde::Deserialize;
use serde_json::Value;

use super::bearer::{self, Hash};
use super::proven::{ProvenIdentity, Until};
use super::{Unproven, clock};
use crate::files;
use crate::name::Identity;

mod token;
mod verifying;

pub use self::token::Unverified;

/// How many keys a file may have.
const MAX_KEYS: usize = 100;
/// With how many keys a token is tried. Whoever shows one that nobody signed makes the server look at as many
/// signatures, so where there are more of its kind a token must name its key.
const MAX_TRIED: usize = 4;
/// How many tokens are remembered as good: to look at a signature again takes as long as a whole call.
const REMEMBERED: usize = 10_000;

/// Whose tokens are good.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JwtSettings {
    /// The keys that sign, as a JSON Web Key Set.
    pub jwks_file: PathBuf,
    /// The issuer that a token must name.
    pub issuer: String,
    /// The audiences of which a token must name one.
    pub audiences: Vec<String>,
    /// How far the clocks of the issuer and of this server may be apart.
    pub leeway: Duration,
    /// The type (`typ`) that the header of a token must name, if any.
    pub token_type: Option<String>,
    /// How long after its issue (`iat`) a token counts at most; absent: as long as it says itself.
    pub max_age: Option<Duration>,
}

/// Why a file has no keys to go by.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// It cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no key set.
    #[error("{}: is no JSON Web Key Set: {source}", path.display())]
    NoKeySet {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// None of its keys can be used, or there are too many.
    #[error("{}: must have 1 to {MAX_KEYS} keys for RS256, ES256 or EdDSA, not {found}", path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// How many it has.
        found: usize,
    },
}

/// A JSON Web Key Set. Keys of kinds that are not known here do not count.
#[derive(Debug, Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// A key that signs.
#[derive(Debug, Clone)]
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
    /// What the file says of it.
    jwk: Value,
}

/// A token that was found good, and until when it is, in seconds since 1970.
#[derive(Debug)]
struct VerifiedToken {
    identity: Identity,
    until: u64,
}

/// The keys, and the tokens that were found good.
#[derive(Debug)]
pub struct Jwt {
    settings: JwtSettings,
    /// The hash of the file.
    file: Hash,
    keys: Vec<Key>,
    /// By their hash. Never held while a signature is looked at.
    good: Mutex<HashMap<Hash, VerifiedToken>>,
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

    /// What these keys become when the file is read again: those that are gone count no more, also where the
    /// rest of the file cannot be used. Answers what is wrong too.
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
            good: Mutex::default(),
        })
    }

    fn fault(&self) -> Option<JwtError> {
        let found = self.keys.len();
        (found == 0 || found > MAX_KEYS).then(|| JwtError::Keys {
            path: self.settings.jwks_file.clone(),
            found,
        })
    }

    /// Reads a token and judges all but its signature: what is cheap to refuse is refused here.
    pub(super) fn judge(&self, token: &[u8]) -> Result<Unverified, Unproven> {
        let parts = token::parts(token)?;
        if self.keys_of(parts.header.alg, parts.header.kid.as_deref()).is_empty() {
            return Err(Unproven::Invalid);
        }
        parts.judge(&self.settings, clock::seconds())
    }

    /// Verifies the signature of a token. `hash` is the token's own.
    pub(super) fn verify(&self, hash: &Hash, token: Unverified) -> Result<ProvenIdentity, Unproven> {
        let keys = self.keys_of(token.algorithm, token.key_id.as_deref());
        let mut keys = keys.into_iter();
        let message = token.message.as_bytes();
        let verifies = |key: &Key| crypto::verify(&token.signature, message, &key.key, token.algorithm);
        if !keys.any(|key| matches!(verifies(key), Ok(true))) {
            tracing::debug!("the signature of a token is not that of a key");
            return Err(Unproven::Invalid);
        }
        self.remember(hash, &token);
        Ok(ProvenIdentity {
            identity: token.identity,
            until: Until(Some(token.until)),
        })
    }

    /// The keys that may have signed a token: that of the id that it names, or else those of its kind where it
    /// names none, or they have none. None where these are too many.
    fn keys_of(&self, algorithm: Algorithm, id: Option<&str>) -> Vec<&Key> {
        let is_named = |key: &&Key| id.is_some() && key.id.as_deref() == id;
        let all = || self.keys.iter().filter(|key| key.algorithm == algorithm);
        let mut keys: Vec<&Key> = all().filter(is_named).collect();
        if keys.is_empty() {
            keys = all().filter(|key| id.is_none() || key.id.is_none()).collect();
        }
        if keys.len() > MAX_TRIED {
            tracing::debug!(keys = keys.len(), "a signed token does not name its key among so many");
            keys.clear();
        }
        keys
    }

    /// What a token proved when its signature was verified.
    pub(super) fn remembered(&self, hash: &Hash) -> Option<Result<ProvenIdentity, Unproven>> {
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        let known = good.get(hash)?;
        let until = Until(Some(known.until));
        if !until.is_over() {
            let identity = known.identity.clone();
            return Some(Ok(ProvenIdentity { identity, until }));
        }
        good.remove(hash);
        Some(Err(Unproven::Expired))
    }

    fn remember(&self, hash: &Hash, token: &Unverified) {
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        if good.len() >= REMEMBERED {
            let now = clock::seconds();
            good.retain(|_, known| now <= known.until);
        }
        if good.len() >= REMEMBERED {
            good.clear();
        }
        let known = VerifiedToken {
            identity: token.identity.clone(),
            until: token.until,
        };
        good.insert(*hash, known);
    }
}

/// A key of the file, if it is for signatures of a kind that is offered.
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
