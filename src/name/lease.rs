//! Lease ids: opaque to clients, and all that Renew and Release need.

use super::encoding::{decode, hex, push_encoded, push_hex};
use super::{ClaimId, FencingToken, InvalidField, Kind, LockKey, LockName, MAX_LEASE_ID_BYTES, Namespace, Secret};

/// What Renew and Release need to know of a lease: all that its lease id says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseKey {
    /// The lock that the lease is for.
    pub lock: LockKey,
    /// What kind of claim holds it.
    pub kind: Kind,
    /// The claim that holds it.
    pub claim: ClaimId,
    /// The claim's token.
    pub token: FencingToken,
    /// The secret of this hold of the claim.
    pub secret: Secret,
}

/// The version of the text form of a lease id.
const LEASE_ID_VERSION: &str = "1";
/// How long it is beside the namespace and the name, in bytes, if the name needs no encoding.
const OTHER_BYTES: usize = 96;

impl LeaseKey {
    /// The lease id: opaque to clients, self-contained, and secret.
    pub fn to_lease_id(&self) -> String {
        let LockKey { namespace, name } = &self.lock;
        let mut id = String::with_capacity(namespace.as_str().len() + name.as_str().len() + OTHER_BYTES);
        id.push_str(LEASE_ID_VERSION);
        for part in [":", namespace.as_str(), ":"] {
            id.push_str(part);
        }
        push_encoded(&mut id, name.as_str());
        for part in [":", self.kind.letter(), ":"] {
            id.push_str(part);
        }
        push_hex(&mut id, self.claim.as_bytes());
        id.push(':');
        id.push_str(&self.token.to_string());
        id.push(':');
        push_hex(&mut id, self.secret.as_bytes());
        id
    }

    /// Reads a lease id.
    ///
    /// # Errors
    /// [`InvalidField`] for anything that [`Self::to_lease_id`] did not write.
    pub fn parse(lease_id: &str) -> Result<Self, InvalidField> {
        let bad = || {
            InvalidField::new(
                "lease_id",
                "is not a lease id: pass on what Acquire answered, unchanged",
            )
        };
        if lease_id.len() > MAX_LEASE_ID_BYTES {
            return Err(bad());
        }
        let mut parts = lease_id.split(':');
        let mut part = || parts.next().ok_or_else(bad);
        let [_, namespace, name, kind, claim, token, secret] =
            [part()?, part()?, part()?, part()?, part()?, part()?, part()?];
        let key = Self {
            lock: LockKey {
                namespace: Namespace::new(namespace).map_err(|_| bad())?,
                name: decode(name)
                    .and_then(|name| LockName::new(&name).ok())
                    .ok_or_else(bad)?,
            },
            kind: Kind::from_letter(kind).ok_or_else(bad)?,
            claim: ClaimId::from_bytes(hex(claim).ok_or_else(bad)?),
            token: token
                .parse()
                .ok()
                .and_then(|n| FencingToken::new(n).ok())
                .ok_or_else(bad)?,
            secret: Secret::from_bytes(hex(secret).ok_or_else(bad)?),
        };
        // One lease has one id: other versions, and spellings that only happen to parse, are refused.
        if key.to_lease_id() == lease_id {
            Ok(key)
        } else {
            Err(bad())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(name: &str) -> LeaseKey {
        LeaseKey {
            lock: LockKey {
                namespace: Namespace::new("a.b-c").unwrap(),
                name: LockName::new(name).unwrap(),
            },
            kind: Kind::Semaphore,
            claim: ClaimId::from_bytes([7; 16]),
            token: FencingToken::new(FencingToken::MAX).unwrap(),
            secret: Secret::from_bytes([0xab; 16]),
        }
    }

    #[test]
    fn a_lease_id_names_its_lease_whatever_the_lock_is_called() {
        for name in ["a", "a/b", "../a", "{a}", "a:b", "%41", "ö €", &"ü".repeat(256)] {
            let id = lease(name).to_lease_id();
            assert!(id.len() <= MAX_LEASE_ID_BYTES, "{}", id.len());
            assert_eq!(LeaseKey::parse(&id).as_ref(), Ok(&lease(name)), "{id}");
        }
    }

    #[test]
    fn a_lease_id_has_one_spelling() {
        let id = lease("a/b").to_lease_id();
        for changed in [
            id.replace("%2F", "%2f"),
            id.replace("a%2Fb", "%61%2Fb"),
            id.to_uppercase(),
            format!("{id} "),
            format!("{id}:"),
            id.replacen("1:", "2:", 1),
            id.replace(":p:", ":q:"),
            id.replace(&FencingToken::MAX.to_string(), "0"),
            id.replace(&FencingToken::MAX.to_string(), "+5"),
            String::new(),
            "x".repeat(MAX_LEASE_ID_BYTES + 1),
        ] {
            assert_eq!(LeaseKey::parse(&changed).unwrap_err().field, "lease_id", "{changed}");
        }
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        assert!(!format!("{:?}", lease("a")).contains("abab"));
    }
}
