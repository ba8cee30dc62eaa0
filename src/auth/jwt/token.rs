//! A signed token before its signature is verified: what its header and its claims say is read and judged
//! first, because that costs a hundredth of a signature.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};

use super::JwtSettings;
use crate::auth::{Unproven, identity};
use crate::name::Identity;

/// The longest token that is read, in bytes.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// A token whose claims are good, if its signature is.
#[derive(Debug)]
pub struct Unverified {
    /// The header and the claims, as they were signed.
    pub message: String,
    /// The signature in base64.
    pub signature: String,
    /// By what kind of key it says that it is signed.
    pub algorithm: Algorithm,
    /// By which key it says so, if it does.
    pub key_id: Option<String>,
    /// Whom it proves.
    pub identity: Identity,
    /// Until when, in seconds since 1970.
    pub until: u64,
}

/// The header of a token.
#[derive(Debug, Deserialize)]
pub(super) struct Header {
    pub alg: Algorithm,
    pub kid: Option<String>,
    typ: Option<String>,
    /// What must be understood: nothing of that kind is.
    #[serde(default, deserialize_with = "present")]
    crit: bool,
}

fn present<'de, D: Deserializer<'de>>(there: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(there).map(|_| true)
}

/// What a token says.
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
    /// Its header.
    pub header: Header,
}

/// Reads the header of a token.
pub(super) fn parts(token: &[u8]) -> Result<Parts<'_>, Unproven> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(Unproven::Invalid);
    }
    let token = str::from_utf8(token).map_err(|_| Unproven::Invalid)?;
    let (message, signature) = token.rsplit_once('.').ok_or(Unproven::Invalid)?;
    let (header, claims) = message.split_once('.').ok_or(Unproven::Invalid)?;
    // No base64 has a dot in it, so a fourth part is refused with the claims.
    Ok(Parts {
        message,
        claims,
        signature,
        header: decoded(header)?,
    })
}

impl Parts<'_> {
    /// Judges all but the signature, at this moment in seconds since 1970.
    pub fn judge(self, settings: &JwtSettings, now: u64) -> Result<Unverified, Unproven> {
        if self.header.crit || !settings.takes_type(self.header.typ.as_deref()) {
            return Err(Unproven::Invalid);
        }
        let claims: Claims = decoded(self.claims)?;
        if claims.iss != settings.issuer || !claims.aud.is_one_of(&settings.audiences) {
            return Err(Unproven::Invalid);
        }
        let identity = identity("jwt", &claims.sub).ok_or(Unproven::Invalid)?;
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
    /// Whether a token may say this of its type. Types are media types, in any case, of which `application/` may
    /// be left out.
    fn takes_type(&self, shown: Option<&str>) -> bool {
        let bare = |name: &str| {
            let name = name.to_ascii_lowercase();
            name.strip_prefix("application/").map_or(name.clone(), str::to_owned)
        };
        let Some(wanted) = &self.token_type else { return true };
        shown.is_some_and(|shown| bare(shown) == bare(wanted))
    }
}

impl Claims {
    /// Until when the token counts.
    fn until(&self, settings: &JwtSettings, now: u64) -> Result<u64, Unproven> {
        let leeway = settings.leeway.as_secs();
        let latest = now.saturating_add(leeway);
        if self.nbf.map(seconds).transpose()?.is_some_and(|begin| begin > latest) {
            return Err(Unproven::Invalid);
        }
        let mut end = seconds(self.exp)?;
        if let Some(age) = settings.max_age {
            let issued = seconds(self.iat.ok_or(Unproven::Invalid)?)?;
            if issued > latest {
                return Err(Unproven::Invalid);
            }
            end = end.min(issued.saturating_add(age.as_secs()));
        }
        let until = end.saturating_add(leeway);
        if now > until { Err(Unproven::Expired) } else { Ok(until) }
    }
}

/// A time of a token, which may have a fraction.
fn seconds(time: f64) -> Result<u64, Unproven> {
    // Far beyond all times of day, and far below what a conversion can hold.
    let time = Duration::try_from_secs_f64(time).map_err(|_| Unproven::Invalid)?;
    Ok(time.as_secs())
}

fn decoded<T: DeserializeOwned>(part: &str) -> Result<T, Unproven> {
    let json = URL_SAFE_NO_PAD.decode(part).map_err(|_| Unproven::Invalid)?;
    serde_json::from_slice(&json).map_err(|_| Unproven::Invalid)
}
