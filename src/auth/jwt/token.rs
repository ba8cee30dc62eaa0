//! A JWT before its signature is verified. Its header and claims are checked first, because that costs a hundredth of a
//! signature.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};

use super::JwtSettings;
use crate::auth::{AuthenticationFailure, identity};
use crate::name::Identity;

/// The longest token that is read, in bytes.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// A token whose claims were accepted, but whose signature was not verified yet.
#[derive(Debug)]
pub struct Unverified {
    /// The signed part: header and claims.
    pub message: String,
    /// The signature, in base64url.
    pub signature: String,
    /// The algorithm that its header names.
    pub algorithm: Algorithm,
    /// The key id that its header names, if any.
    pub key_id: Option<String>,
    /// The identity of its subject.
    pub identity: Identity,
    /// Its expiry, in seconds since 1970.
    pub until: u64,
}

/// The header of a token.
#[derive(Debug, Deserialize)]
pub(super) struct Header {
    pub alg: Algorithm,
    pub kid: Option<String>,
    typ: Option<String>,
    /// Whether the header has critical extensions (`crit`). None is supported.
    #[serde(default, deserialize_with = "present")]
    crit: bool,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// The claims of a token.
#[derive(Debug, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: f64,
    nbf: Option<f64>,
    iat: Option<f64>,
}

/// One audience, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Audience {
    fn is_one_of(&self, all: &[String]) -> bool {
        match self {
            Self::One(audience) => all.contains(audience),
            Self::Several(audiences) => audiences.iter().any(|audience| all.contains(audience)),
        }
    }
}

/// The parts of a token.
pub(super) struct Parts<'a> {
    message: &'a str,
    claims: &'a str,
    signature: &'a str,
    /// The header.
    pub header: Header,
}

/// Splits a token and parses its header.
pub(super) fn parts(token: &[u8]) -> Result<Parts<'_>, AuthenticationFailure> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(AuthenticationFailure::Invalid);
    }
    let token = str::from_utf8(token).map_err(|_| AuthenticationFailure::Invalid)?;
    let (message, signature) = token.rsplit_once('.').ok_or(AuthenticationFailure::Invalid)?;
    let (header, claims) = message.split_once('.').ok_or(AuthenticationFailure::Invalid)?;
    // Base64 contains no dot, so that a fourth part fails to decode with the claims.
    Ok(Parts {
        message,
        claims,
        signature,
        header: decoded(header)?,
    })
}

impl Parts<'_> {
    /// Checks everything but the signature. `now` is in seconds since 1970.
    pub fn check_claims(self, settings: &JwtSettings, now: u64) -> Result<Unverified, AuthenticationFailure> {
        if self.header.crit || !settings.accepts_type(self.header.typ.as_deref()) {
            return Err(AuthenticationFailure::Invalid);
        }
        let claims: Claims = decoded(self.claims)?;
        if claims.iss != settings.issuer || !claims.aud.is_one_of(&settings.audiences) {
            return Err(AuthenticationFailure::Invalid);
        }
        let identity = identity("jwt", &claims.sub).ok_or(AuthenticationFailure::Invalid)?;
        Ok(Unverified {
            until: claims.until(settings, now)?,
            identity,
            message: self.message.to_owned(),
            signature: self.signature.to_owned(),
            algorithm: self.header.alg,
            key_id: self.header.kid,
        })
    }
}

impl JwtSettings {
    /// Whether a token with this `typ` is accepted. Types are media types: they are case-insensitive, and the prefix
    /// `application/` is optional.
    fn accepts_type(&self, actual: Option<&str>) -> bool {
        let bare = |name: &str| {
            let name = name.to_ascii_lowercase();
            name.strip_prefix("application/").map_or(name.clone(), str::to_owned)
        };
        let Some(wanted) = &self.token_type else { return true };
        actual.is_some_and(|actual| bare(actual) == bare(wanted))
    }
}

impl Claims {
    /// Checks the token's times and returns its expiry.
    fn until(&self, settings: &JwtSettings, now: u64) -> Result<u64, AuthenticationFailure> {
        let leeway = settings.leeway.as_secs();
        let latest = now.saturating_add(leeway);
        if self.nbf.map(seconds).transpose()?.is_some_and(|begin| begin > latest) {
            return Err(AuthenticationFailure::Invalid);
        }
        let mut end = seconds(self.exp)?;
        if let Some(age) = settings.max_age {
            let issued = seconds(self.iat.ok_or(AuthenticationFailure::Invalid)?)?;
            if issued > latest {
                return Err(AuthenticationFailure::Invalid);
            }
            end = end.min(issued.saturating_add(age.as_secs()));
        }
        let until = end.saturating_add(leeway);
        if now > until {
            Err(AuthenticationFailure::Expired)
        } else {
            Ok(until)
        }
    }
}

/// Parses a time of a token, which may have a fraction.
fn seconds(seconds_since_1970: f64) -> Result<u64, AuthenticationFailure> {
    // Accepts all realistic dates and rejects numbers that do not fit a `Duration`.
    let time = Duration::try_from_secs_f64(seconds_since_1970).map_err(|_| AuthenticationFailure::Invalid)?;
    Ok(time.as_secs())
}

fn decoded<T: DeserializeOwned>(part: &str) -> Result<T, AuthenticationFailure> {
    let json = URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_| AuthenticationFailure::Invalid)?;
    serde_json::from_slice(&json).map_err(|_| AuthenticationFailure::Invalid)
}
