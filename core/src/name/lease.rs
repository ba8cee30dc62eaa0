//! Lease ids: opaque to clients, and sufficient for Renew and Release.

use super::encoding::{decode, encoded_len, hex, push_encoded, push_hex};
use super::{ClaimId, FencingToken, InvalidField, Kind, LockKey, LockName, MAX_LEASE_ID_BYTES, Namespace, Secret};

/// The content of a lease id: all that Renew and Release need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseKey {
    /// The lock that the lease is for.
    pub lock: LockKey,
    /// The kind of the claim that holds it.
    pub kind: Kind,
    /// The claim that holds it.
    pub claim: ClaimId,
    /// The claim's token.
    pub token: FencingToken,
    /// The secret of this hold of the claim.
    pub secret: Secret,
}

/// The version of the lease id format.
const LEASE_ID_VERSION: &str = "1";
/// The length of a lease id without namespace and name at most, in bytes.
const OTHER_BYTES: usize = 96;

impl LeaseKey {
    /// The lease id: self-contained, opaque to clients, and secret.
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

    /// The length of the id of a lease of this lock at most, in bytes.
    pub fn id_bytes(namespace: &str, name: &str) -> usize {
        (namespace.len() + encoded_len(name) + OTHER_BYTES).min(MAX_LEASE_ID_BYTES)
    }

    /// Parses a lease id.
    ///
    /// # Errors
    /// [`InvalidField`] for anything that [`Self::to_lease_id`] did not write.
    pub fn parse(lease_id: &str) -> Result<Self, InvalidField> {
        let bad = || {
            InvalidField::new(
                "lease_id",
                "is not a lease id: send the lease_id that Acquire returned, unchanged",
            )
        };
        if lease_id.len() > MAX_LEASE_ID_BYTES {
            return Err(bad());
        }
        // A lease has exactly one id: other versions and non-canonical spellings are refused.
        let mut parts = lease_id.split(':');
        let mut part = || parts.next().ok_or_else(bad);
        let [version, namespace, name, kind, claim, token, secret] =
            [part()?, part()?, part()?, part()?, part()?, part()?, part()?];
        if version != LEASE_ID_VERSION || parts.next().is_some() {
            return Err(bad());
        }
        Ok(Self {
            lock: LockKey {
                namespace: Namespace::new(namespace).map_err(|_| bad())?,
                name: decode(name)
                    .and_then(|name| LockName::new(&name).ok())
                    .ok_or_else(bad)?,
            },
            kind: Kind::from_letter(kind).ok_or_else(bad)?,
            claim: ClaimId::from_bytes(hex(claim).ok_or_else(bad)?),
            token: decimal(token).and_then(|n| FencingToken::new(n).ok()).ok_or_else(bad)?,
            secret: Secret::from_bytes(hex(secret).ok_or_else(bad)?),
        })
    }
}

/// Parses a number in canonical form: without a sign or leading zeros.
fn decimal(text: &str) -> Option<u64> {
    let first = text.bytes().next()?;
    matches!(first, b'1'..=b'9').then(|| text.parse().ok())?
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
    fn a_lease_id_round_trips_for_every_lock_name() {
        for name in ["a", "a/b", "../a", "{a}", "a:b", "%41", "ö €", &"ü".repeat(256)] {
            let id = lease(name).to_lease_id();
            assert!(id.len() <= MAX_LEASE_ID_BYTES, "{}", id.len());
            let limit = LeaseKey::id_bytes(lease(name).lock.namespace.as_str(), name);
            assert!((limit - OTHER_BYTES..=limit).contains(&id.len()), "{}", id.len());
            assert_eq!(LeaseKey::parse(&id).as_ref(), Ok(&lease(name)), "{id}");
        }
    }

    #[test]
    fn a_lease_id_has_one_canonical_form() {
        let id = lease("a/b").to_lease_id();
        for changed in [
            id.replace("%2F", "%2f"),
            id.replace("a%2Fb", "%61%2Fb"),
            id.replace("a%2Fb", "a/b"),
            id.replace("a%2Fb", "a%2"),
            id.to_uppercase(),
            id.replace("abab", "ABAB"),
            format!("{id} "),
            format!("{id}:"),
            id.replacen("1:", "2:", 1),
            id.replace(":p:", ":q:"),
            id.replace(&FencingToken::MAX.to_string(), "0"),
            id.replace(&FencingToken::MAX.to_string(), "+5"),
            id.replace(&FencingToken::MAX.to_string(), "05"),
            id.replace(&FencingToken::MAX.to_string(), ""),
            id.replace(&FencingToken::MAX.to_string(), "18446744073709551616"),
            String::new(),
            "x".repeat(MAX_LEASE_ID_BYTES + 1),
        ] {
            assert_eq!(LeaseKey::parse(&changed).unwrap_err().field, "lease_id", "{changed}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_lease_id_that_parses_is_in_its_canonical_form(at in 0_usize..200, by in "[0-9a-fA-F%:/_+ü-]{0,3}", cut in 0_usize..4) {
            let mut id = lease("a/b%ö").to_lease_id();
            let (at, end) = (at.min(id.len()), (at + cut).min(id.len()));
            id.replace_range(at..end.max(at), &by);
            if let Ok(key) = LeaseKey::parse(&id) {
                proptest::prop_assert_eq!(key.to_lease_id(), id);
            }
        }
    }

    // G33
    #[test]
    fn a_secret_is_redacted_in_debug_output() {
        assert!(!format!("{:?}", lease("a")).contains("abab"));
    }
}
