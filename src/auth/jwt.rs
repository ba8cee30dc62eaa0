//! Signed tokens (JWT): proven by the keys of a file, for one issuer and audience, while they last.
//!
//! The crate that reads them takes its cryptography from [`verifying`]: `ring`, as TLS does.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;

use super::bearer::Hash;
use super::{Unproven, clock};
use crate::name::Identity;

mod verifying;

/// How many keys a file may have.
const MAX_KEYS: usize = 100;
/// With how many keys a token is tried. Whoever shows one that nobody signed makes the server look at as many
/// signatures, so where there are more of its kind a token must name its key.
const MAX_TRIED: usize = 4;
/// How many tokens are remembered as good: to look at a signature again takes as long as a whole call.
const REMEMBERED: usize = 10_000;

/// Whose tokens are good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtSettings {
    /// The keys that sign, as a JSON Web Key Set.
    pub jwks_file: PathBuf,
    /// The issuer that a token must name.
    pub issuer: String,
    /// The audiences of which a token must name one.
    pub audiences: Vec<String>,
    /// How far the clocks of the issuer and of this server may be apart.
    pub leeway: Duration,
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

/// What a token says.
#[derive(Debug, Deserialize)]
struct Claims {
    sub: String,
    exp: serde_json::Number,
}

/// A key that signs.
#[derive(Debug)]
struct Key {
    id: Option<String>,
    key: DecodingKey,
    validation: Validation,
}

/// A token that was found good, and until when it is, in seconds since 1970.
#[derive(Debug)]
struct Good {
    identity: Identity,
    until: u64,
}

/// The keys, and the tokens that were found good.
#[derive(Debug)]
pub(super) struct Jwt {
    keys: Vec<Key>,
    leeway: u64,
    /// By their hash. Never held while a signature is looked at.
    good: Mutex<HashMap<Hash, Good>>,
}

impl Jwt {
    /// Reads the keys.
    pub(super) fn open(settings: &JwtSettings) -> Result<Self, JwtError> {
        verifying::install();
        let path = &settings.jwks_file;
        let text = std::fs::read(path).map_err(|source| JwtError::Unreadable {
            path: path.clone(),
            source,
        })?;
        let set: JwkSet = serde_json::from_slice(&text).map_err(|source| JwtError::NoKeySet {
            path: path.clone(),
            source,
        })?;
        let keys: Vec<Key> = set.keys.iter().filter_map(|jwk| key(jwk, settings)).collect();
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(JwtError::Keys {
                path: path.clone(),
                found: keys.len(),
            });
        }
        Ok(Self {
            keys,
            leeway: settings.leeway.as_secs(),
            good: Mutex::default(),
        })
    }

    /// Whom a token proves. `hash` is the token's own.
    pub(super) fn prove(&self, token: &[u8], hash: &Hash) -> Result<Identity, Unproven> {
        if let Some(known) = self.remembered(hash) {
            return known;
        }
        let claims = self.claims(token)?;
        let identity = super::identity("jwt", &claims.sub).ok_or(Unproven::Invalid)?;
        self.remember(hash, &identity, &claims);
        Ok(identity)
    }

    fn claims(&self, token: &[u8]) -> Result<Claims, Unproven> {
        let header = decode_header(token).map_err(|_| Unproven::Invalid)?;
        let mut refused = Unproven::Invalid;
        for key in self.keys_of(&header) {
            match decode::<Claims>(token, &key.key, &key.validation) {
                Ok(good) => return Ok(good.claims),
                // Said only of a token whose signature is good.
                Err(error) if matches!(error.kind(), ErrorKind::ExpiredSignature) => refused = Unproven::Expired,
                Err(error) => tracing::debug!(%error, "a signed token is not accepted"),
            }
        }
        Err(refused)
    }

    /// The keys that may have signed a token: that of the id that it names, or else those of its kind where it
    /// names none, or they have none. None where these are too many.
    fn keys_of(&self, header: &Header) -> Vec<&Key> {
        let of_kind = |key: &&Key| key.validation.algorithms.contains(&header.alg);
        let is_named = |key: &&Key| header.kid.is_some() && key.id == header.kid;
        let all = || self.keys.iter().filter(of_kind);
        let mut keys: Vec<&Key> = all().filter(is_named).collect();
        if keys.is_empty() {
            let may_be = |key: &&Key| header.kid.is_none() || key.id.is_none();
            keys = all().filter(may_be).collect();
        }
        if keys.len() > MAX_TRIED {
            tracing::debug!(keys = keys.len(), "a signed token does not name its key among so many");
            keys.clear();
        }
        keys
    }

    fn remembered(&self, hash: &Hash) -> Option<Result<Identity, Unproven>> {
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        let known = good.get(hash)?;
        if clock::seconds() <= known.until {
            return Some(Ok(known.identity.clone()));
        }
        good.remove(hash);
        Some(Err(Unproven::Expired))
    }

    fn remember(&self, hash: &Hash, identity: &Identity, claims: &Claims) {
        let Some(expires) = claims.exp.as_u64() else { return };
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        if good.len() >= REMEMBERED {
            let now = clock::seconds();
            good.retain(|_, known| now <= known.until);
        }
        if good.len() >= REMEMBERED {
            good.clear();
        }
        let known = Good {
            identity: identity.clone(),
            until: expires.saturating_add(self.leeway),
        };
        good.insert(*hash, known);
    }
}

/// A key of the file, if it is for signatures of a kind that is offered.
fn key(jwk: &Jwk, settings: &JwtSettings) -> Option<Key> {
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
    let mut validation = Validation::new(algorithm);
    validation.set_issuer(&[&settings.issuer]);
    validation.set_audience(&settings.audiences);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.validate_nbf = true;
    validation.leeway = settings.leeway.as_secs();
    Some(Key {
        id: jwk.common.key_id.clone(),
        key: DecodingKey::from_jwk(jwk).ok()?,
        validation,
    })
}
