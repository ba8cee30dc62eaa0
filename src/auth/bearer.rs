//! Static bearer tokens, of which only the hash is kept.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::name::Identity;

/// The SHA-256 of a bearer token.
pub(super) type Hash = [u8; 32];

/// The hash of a presented token.
pub(super) fn hash(token: &[u8]) -> Hash {
    Sha256::digest(token).into()
}

/// A static token: the name of its identity, and its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BearerHash {
    name: String,
    hash: Hash,
}

/// Why a text is not a static token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a name of 1 to 200 bytes, a colon, and the SHA-256 of the token as 64 hexadecimal digits")]
pub struct BadBearer;

impl BearerHash {
    /// Parses `name:hash`.
    ///
    /// # Errors
    /// [`BadBearer`].
    pub fn parse(text: &str) -> Result<Self, BadBearer> {
        let (name, digits) = text.rsplit_once(':').ok_or(BadBearer)?;
        let name = name.trim();
        if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
            return Err(BadBearer);
        }
        Ok(Self {
            name: name.to_owned(),
            hash: unhex(digits.trim()).ok_or(BadBearer)?,
        })
    }

    /// The hash.
    pub(super) fn hash(&self) -> Hash {
        self.hash
    }

    /// Whether the other one is for the same token, whatever its name.
    pub fn has_hash_of(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

fn unhex(digits: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    if digits.len() != 2 * hash.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(hash)
}

/// All static tokens, by their hash. The lookup time may reveal how many leading bytes of a hash match. This is
/// harmless, because a caller cannot choose the hash of a presented token, and a part of a hash reveals nothing about
/// its token.
#[derive(Debug, Default)]
pub(super) struct Bearers {
    all: HashMap<Hash, Identity>,
}

impl Bearers {
    /// Keeps the tokens whose names form an identity. Of several with the same hash the first one counts.
    pub(super) fn new(all: impl IntoIterator<Item = BearerHash>) -> Self {
        let mut by_hash = HashMap::new();
        for bearer in all {
            if let Some(identity) = super::identity("token", &bearer.name) {
                by_hash.entry(bearer.hash).or_insert(identity);
            }
        }
        Self { all: by_hash }
    }

    /// The tokens that `others` contains with the same identity.
    pub(super) fn retained(&self, others: &Self) -> Self {
        let all = self
            .all
            .iter()
            .filter(|(hash, identity)| others.all.get(*hash) == Some(identity));
        Self {
            all: all.map(|(hash, identity)| (*hash, identity.clone())).collect(),
        }
    }

    /// The identity of the token with this hash.
    pub(super) fn identity_of(&self, presented: &Hash) -> Option<Identity> {
        self.all.get(presented).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 of `secret`.
    const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    #[test]
    fn a_token_is_found_by_its_hash() {
        let bearers = Bearers::new([
            BearerHash::parse(&format!("other:{}", "0".repeat(64))).unwrap(),
            BearerHash::parse(&format!("ci:{}", SECRET.to_uppercase())).unwrap(),
        ]);
        let verified = bearers.identity_of(&hash(b"secret"));
        assert_eq!(verified.map(|id| id.as_str().to_owned()).as_deref(), Some("token:ci"));
        assert_eq!(bearers.identity_of(&hash(b"secrets")), None);
        let twice = ["a", "b"].map(|name| BearerHash::parse(&format!("{name}:{SECRET}")).unwrap());
        let verified = Bearers::new(twice).identity_of(&hash(b"secret"));
        assert_eq!(verified.map(|id| id.as_str().to_owned()).as_deref(), Some("token:a"));
        assert_eq!(Bearers::default().identity_of(&hash(b"secret")), None);
    }

    #[test]
    fn a_line_that_is_not_a_name_and_a_hash_is_refused() {
        for bad in [
            "",
            "ci",
            "ci:",
            "ci:secret",
            &format!(":{SECRET}"),
            &format!("ci:{}", &SECRET[1..]),
            &format!("ci:{}é", &SECRET[2..]),
            &format!("a\u{7}:{SECRET}"),
            &format!("{}:{SECRET}", "x".repeat(201)),
        ] {
            assert_eq!(BearerHash::parse(bad), Err(BadBearer), "{bad:?}");
        }
    }
}
