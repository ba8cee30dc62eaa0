//! The value types of the service. Their constructors validate, so that every value is valid.
//!
//! No clock, no task, no store: this module imports only `std`.

mod encoding;
mod ids;
mod lease;
mod mode;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::encoding::decode;
pub use self::ids::{CallId, ClaimId, Secret};
pub use self::lease::LeaseKey;
pub use self::mode::{Kind, Mode};

/// The longest lock name, in bytes of UTF-8; a namespace's limits may lower it.
pub const MAX_NAME_BYTES: usize = 512;
/// The longest owner label, in bytes.
pub const MAX_OWNER_BYTES: usize = 256;
/// The longest `request_id`, in bytes.
pub const MAX_REQUEST_ID_BYTES: usize = 128;
/// The most metadata entries of a claim.
pub const MAX_METADATA_ENTRIES: usize = 16;
/// The most bytes of a claim's metadata, keys and values together.
pub const MAX_METADATA_BYTES: usize = 4096;
/// The metadata entry that is the value of an election's leader.
const VALUE_KEY: &str = "value";
/// The largest limit of a semaphore.
pub const MAX_SEMAPHORE_LIMIT: u32 = 1_000_000;
/// The longest `lease_id`, in bytes: the longest encoded name and the fixed parts.
pub const MAX_LEASE_ID_BYTES: usize = 2048;

/// An invalid value that a caller sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField {
    /// The field's name in the API.
    pub field: &'static str,
    /// What is wrong, and what the bounds are, for people.
    pub problem: String,
}

impl InvalidField {
    /// An error for `field`, with a description of the problem.
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self {
            field,
            problem: problem.into(),
        }
    }
}

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for InvalidField {}

/// Shows types that are texts.
macro_rules! shown {
    ($($text:ident),+) => {$(
        impl $text {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $text {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )+};
}

shown!(Namespace, LockName, Owner);

/// A named set of locks that share one backend: `[a-z0-9][a-z0-9._-]{0,62}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Validates a namespace name.
    ///
    /// # Errors
    /// [`InvalidField`] for anything but `[a-z0-9][a-z0-9._-]{0,62}`.
    pub fn new(text: &str) -> Result<Self, InvalidField> {
        let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let rest = |b: u8| first(b) || matches!(b, b'.' | b'_' | b'-');
        let bytes = text.as_bytes();
        if bytes.len() > 63 || !bytes.first().copied().is_some_and(first) || !bytes.iter().copied().all(rest) {
            return Err(InvalidField::new(
                "namespace",
                "must be 1 to 63 characters [a-z0-9._-] and begin with a letter or digit",
            ));
        }
        Ok(Self(text.into()))
    }
}

/// The name of a lock inside its namespace: 1 to 512 bytes without control characters, compared
/// byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// Validates a lock name.
    ///
    /// # Errors
    /// [`InvalidField`] when it is empty, longer than [`MAX_NAME_BYTES`] or contains a control
    /// character (Unicode Cc).
    pub fn new(text: &str) -> Result<Self, InvalidField> {
        check_text("name", text, MAX_NAME_BYTES)?;
        Ok(Self(text.into()))
    }

    /// The name in characters that every store accepts in a key or a path: `A-Z a-z 0-9 _ -` are
    /// kept, any other byte becomes `%` and two hexadecimal digits. The encoding is injective.
    pub fn encoded(&self) -> String {
        encoding::encode(&self.0)
    }
}

impl std::borrow::Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A lock: its namespace and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name within the namespace.
    pub name: LockName,
}

/// A label for the caller of an Acquire, chosen by the caller and displayed to operators: 1 to 256
/// bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// Validates an owner label.
    ///
    /// # Errors
    /// [`InvalidField`] when it is empty, longer than [`MAX_OWNER_BYTES`] or contains a control
    /// character.
    pub fn new(text: &str) -> Result<Self, InvalidField> {
        check_text("owner", text, MAX_OWNER_BYTES)?;
        Ok(Self(text.into()))
    }
}

/// The authenticated identity of a caller; empty without authentication.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

impl Identity {
    /// The identity of an unauthenticated caller.
    pub fn anonymous() -> Self {
        Self::default()
    }

    /// An identity that an authenticator has established.
    pub fn authenticated(text: &str) -> Self {
        Self(text.into())
    }

    /// The identity as text; empty for an anonymous caller.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Identifies a request, so that a retry finds the claim of the first attempt: 1 to 128 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Validates a request id. Any text is one, also with control characters: it is only hashed into the claim's id,
    /// and never stored, shown or logged.
    ///
    /// # Errors
    /// [`InvalidField`] when it is empty or longer than [`MAX_REQUEST_ID_BYTES`].
    pub fn new(text: &str) -> Result<Self, InvalidField> {
        check_length("request_id", text, MAX_REQUEST_ID_BYTES)?;
        Ok(Self(text.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Information about a claim for operators, chosen by the caller: at most 16 entries and 4 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata(Arc<[(String, String)]>);

impl Metadata {
    /// Validates and sorts the entries.
    ///
    /// # Errors
    /// [`InvalidField`] past [`MAX_METADATA_ENTRIES`] or [`MAX_METADATA_BYTES`].
    pub fn new(entries: impl IntoIterator<Item = (String, String)>) -> Result<Self, InvalidField> {
        let mut entries: Vec<_> = entries.into_iter().collect();
        let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        // A leader's value may have all the bytes.
        let key_bytes = match entries.as_slice() {
            [(key, _)] if key == VALUE_KEY => key.len(),
            _ => 0,
        };
        if entries.len() > MAX_METADATA_ENTRIES || bytes - key_bytes > MAX_METADATA_BYTES {
            return Err(InvalidField::new(
                "metadata",
                format!(
                    "must be at most {MAX_METADATA_ENTRIES} entries and {MAX_METADATA_BYTES} bytes in all, \
                     not {} entries and {bytes} bytes",
                    entries.len()
                ),
            ));
        }
        entries.sort();
        Ok(Self(entries.into()))
    }

    /// The metadata of a candidate with this value: one entry.
    ///
    /// # Errors
    /// [`InvalidField`] past [`MAX_METADATA_BYTES`].
    pub fn of_value(value: String) -> Result<Self, InvalidField> {
        let bytes = value.len();
        Self::new([(VALUE_KEY.to_owned(), value)]).map_err(|_| {
            InvalidField::new(
                "value",
                format!("must be at most {MAX_METADATA_BYTES} bytes, not {bytes}"),
            )
        })
    }

    /// The value of a candidate; absent for other claims.
    pub fn value(&self) -> Option<&str> {
        let entry = self.0.iter().find(|(key, _)| key == VALUE_KEY);
        entry.map(|(_, value)| value.as_str())
    }

    /// The entries, sorted by key.
    pub fn entries(&self) -> &[(String, String)] {
        &self.0
    }

    /// The bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.len()).sum()
    }
}

/// The time to live of a lease after its grant or last renewal; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// Validates that the duration is positive. The namespace's limits check its bounds.
    ///
    /// # Errors
    /// [`InvalidField`] when it is zero.
    pub fn new(duration: Duration) -> Result<Self, InvalidField> {
        if duration.is_zero() {
            return Err(InvalidField::new("ttl", "must be positive"));
        }
        Ok(Self(duration))
    }

    /// The time to live as a duration.
    pub fn get(self) -> Duration {
        self.0
    }
}

/// A number that increases with every grant of a lock: 1 to 2^53 - 1, derived from microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

/// The number of the first placeholder.
const PLACEHOLDERS: u64 = 1 << 63;

impl FencingToken {
    /// The largest token: a double represents every integer up to it exactly.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Validates the bounds of a token.
    ///
    /// # Errors
    /// [`InvalidField`] for 0 and for anything above [`Self::MAX`].
    pub fn new(number: u64) -> Result<Self, InvalidField> {
        if number == 0 || number > Self::MAX {
            return Err(InvalidField::new(
                "fencing_token",
                format!("must be 1 to {}, not {number}", Self::MAX),
            ));
        }
        Ok(Self(number))
    }

    /// Stands for a token that the commit of its grant determines; see [`crate::queue`]. It is above all tokens, and never
    /// leaves the server.
    pub fn placeholder(ordinal: u32) -> Self {
        Self(PLACEHOLDERS + u64::from(ordinal))
    }

    /// The ordinal of a placeholder; absent for a token.
    pub fn ordinal(self) -> Option<u32> {
        u32::try_from(self.0.checked_sub(PLACEHOLDERS)?).ok()
    }

    /// The token as a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), InvalidField> {
    check_length(field, text, max)?;
    if text.chars().any(char::is_control) {
        return Err(InvalidField::new(field, "must not contain control characters"));
    }
    Ok(())
}

fn check_length(field: &'static str, text: &str, max: usize) -> Result<(), InvalidField> {
    if text.is_empty() || text.len() > max {
        return Err(InvalidField::new(
            field,
            format!("must be 1 to {max} bytes, not {}", text.len()),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_against_their_bounds() {
        for bad in ["", "a\u{0}", "a\n", "\u{85}", &"x".repeat(513)] {
            assert_eq!(LockName::new(bad).unwrap_err().field, "name");
        }
        for good in ["a", "\u{a0}", &"x".repeat(512)] {
            assert!(LockName::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "A", "-a", ".a", "a/b", "ä", &"x".repeat(64)] {
            assert_eq!(Namespace::new(bad).unwrap_err().field, "namespace");
        }
        assert!(Namespace::new(&"x".repeat(63)).is_ok());
        for bad in ["", &"x".repeat(129)] {
            assert_eq!(RequestId::new(bad).unwrap_err().field, "request_id");
        }
        // A request id is never shown.
        for good in ["a\n\u{0}\u{202e}", &"x".repeat(128)] {
            assert_eq!(RequestId::new(good).unwrap().as_str(), good);
        }
    }
}
