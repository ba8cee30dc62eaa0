//! The words of the service as types: text comes in through the constructors, and what has come
//! in is valid from then on.
//!
//! Nothing here knows a clock, a task or a store; only `std` is imported.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

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
/// The largest limit of a semaphore.
pub const MAX_SEMAPHORE_LIMIT: u32 = 1_000_000;
/// The longest `lease_id`, in bytes: an encoded name of the longest kind and the fixed parts.
pub const MAX_LEASE_ID_BYTES: usize = 2048;

/// A value that a caller sent and that is outside its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField {
    /// The field's name in the API.
    pub field: &'static str,
    /// What is wrong and what the bounds are, in words.
    pub problem: String,
}

impl InvalidField {
    /// Names the field and says what is wrong with it.
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

/// A named set of locks that share one backend: `[a-z0-9][a-z0-9._-]{0,62}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// Checks the spelling of a namespace.
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

    /// The namespace as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a lock inside its namespace: 1 to 512 bytes without control characters, compared
/// byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// Checks a lock name.
    ///
    /// # Errors
    /// [`InvalidField`] when it is empty, longer than [`MAX_NAME_BYTES`] or holds a control
    /// character (Unicode Cc).
    pub fn new(text: &str) -> Result<Self, InvalidField> {
        check_text("name", text, MAX_NAME_BYTES)?;
        Ok(Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name in letters that every store accepts in a key or a path: `A-Z a-z 0-9 _ -` stand
    /// for themselves, any other byte is `%` and two digits. Different names stay different.
    pub fn encoded(&self) -> String {
        encode(&self.0)
    }
}

impl std::borrow::Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A lock: its namespace and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey {
    /// The set of locks that it belongs to.
    pub namespace: Namespace,
    /// Its name there.
    pub name: LockName,
}

/// Who asks for a lock: a label chosen by the caller and shown to operators, 1 to 256 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// Checks an owner label.
    ///
    /// # Errors
    /// [`InvalidField`] when it is empty, longer than [`MAX_OWNER_BYTES`] or holds a control
    /// character.
    pub fn new(text: &str) -> Result<Self, InvalidField> {
        check_text("owner", text, MAX_OWNER_BYTES)?;
        Ok(Self(text.into()))
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who the caller was proven to be; empty without authentication.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

impl Identity {
    /// Nobody in particular: a caller that was not authenticated.
    pub fn anonymous() -> Self {
        Self::default()
    }

    /// What an authenticator proved.
    pub fn proven(text: &str) -> Self {
        Self(text.into())
    }

    /// The identity as text; empty for an anonymous caller.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a caller names its request by, so that a retry finds its own claim: 1 to 128 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Checks a request id.
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

/// What a claim says about itself to operators: at most 16 entries and 4 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata(Arc<[(String, String)]>);

impl Metadata {
    /// Checks and sorts the entries.
    ///
    /// # Errors
    /// [`InvalidField`] past [`MAX_METADATA_ENTRIES`] or [`MAX_METADATA_BYTES`].
    pub fn new(entries: impl IntoIterator<Item = (String, String)>) -> Result<Self, InvalidField> {
        let mut entries: Vec<_> = entries.into_iter().collect();
        let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        if entries.len() > MAX_METADATA_ENTRIES || bytes > MAX_METADATA_BYTES {
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

    /// The entries, by key.
    pub fn entries(&self) -> &[(String, String)] {
        &self.0
    }
}

/// How much of a lock a claim takes, and so with whom it can share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// All of it.
    Exclusive,
    /// One of very many.
    Shared,
    /// `permits` of `limit`.
    Semaphore {
        /// How many this claim takes, 1 to `limit`.
        permits: u32,
        /// How many there are, 1 to [`MAX_SEMAPHORE_LIMIT`].
        limit: u32,
    },
}

/// "MAX" in the words of the rule: what an exclusive claim takes.
const ALL_PERMITS: u64 = 1 << 40;

impl Mode {
    /// Checks a semaphore's permits and limit.
    ///
    /// # Errors
    /// [`InvalidField`] unless `1 <= permits <= limit <= MAX_SEMAPHORE_LIMIT`.
    pub fn semaphore(permits: u32, limit: u32) -> Result<Self, InvalidField> {
        if limit == 0 || limit > MAX_SEMAPHORE_LIMIT {
            return Err(InvalidField::new(
                "mode.semaphore.limit",
                format!("must be 1 to {MAX_SEMAPHORE_LIMIT}, not {limit}"),
            ));
        }
        if permits == 0 || permits > limit {
            return Err(InvalidField::new(
                "mode.semaphore.permits",
                format!("must be 1 to the limit of {limit}, not {permits}"),
            ));
        }
        Ok(Self::Semaphore { permits, limit })
    }

    /// How many permits a claim of this mode takes.
    pub fn permits(self) -> u64 {
        match self {
            Self::Exclusive => ALL_PERMITS,
            Self::Shared => 1,
            Self::Semaphore { permits, .. } => permits.into(),
        }
    }

    /// How many permits there are for claims of this mode.
    pub fn limit(self) -> u64 {
        match self {
            Self::Exclusive | Self::Shared => ALL_PERMITS,
            Self::Semaphore { limit, .. } => limit.into(),
        }
    }

    /// Whether two claims of these modes may stand in one queue: exclusive with anything, shared
    /// with shared, semaphore with semaphore of the same limit.
    pub fn mixes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Exclusive, _) | (_, Self::Exclusive) | (Self::Shared, Self::Shared) => true,
            (Self::Semaphore { limit: a, .. }, Self::Semaphore { limit: b, .. }) => a == b,
            _ => false,
        }
    }

    /// The word for this mode: `exclusive`, `shared` or `semaphore`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Semaphore { .. } => "semaphore",
        }
    }

    fn letter(self) -> &'static str {
        match self {
            Self::Exclusive => "x",
            Self::Shared => "s",
            Self::Semaphore { .. } => "p",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Semaphore { permits, limit } => write!(f, "semaphore {permits} of {limit}"),
            plain => f.write_str(plain.word()),
        }
    }
}

/// What kind of key a holder has in a store that keeps exclusive holders apart; part of a
/// lease id, so that a renewal finds the key without a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An exclusive claim.
    Exclusive,
    /// A shared claim.
    Shared,
    /// A semaphore claim.
    Semaphore,
}

impl From<Mode> for Kind {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Semaphore { .. } => Self::Semaphore,
        }
    }
}

impl Kind {
    fn letter(self) -> &'static str {
        match self {
            Self::Exclusive => Mode::Exclusive.letter(),
            Self::Shared => Mode::Shared.letter(),
            Self::Semaphore => "p",
        }
    }

    fn from_letter(text: &str) -> Option<Self> {
        [Self::Exclusive, Self::Shared, Self::Semaphore]
            .into_iter()
            .find(|kind| kind.letter() == text)
    }
}

/// How long a lease lives after its grant or its last renewal; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// A positive time to live; a namespace's bounds are checked by its limits.
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

/// A number that rises with every grant of a lock: 1 to 2^53 - 1, on a scale of microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The largest token: what a double still holds exactly.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Checks the bounds of a token.
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

/// The id of a claim, and of the hold with which it began: random, or derived from a request id,
/// so that every replica can name the claim before it has seen it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// An id made elsewhere.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id's bytes, for stores.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimId({self})")
    }
}

/// The random id of one Acquire call, apart from the claim that it works on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId([u8; 16]);

impl CallId {
    /// An id made elsewhere.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The id's bytes, for stores.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallId({self})")
    }
}

/// What proves that a caller owns a hold: 128 random bits, never shown by inspection, logs or
/// metrics (its `Debug` hides them).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Secret([u8; 16]);

impl Secret {
    /// A secret made elsewhere.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The secret's bytes, for stores.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

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

impl LeaseKey {
    /// The lease id: opaque to clients, self-contained, and secret.
    pub fn to_lease_id(&self) -> String {
        format!(
            "{LEASE_ID_VERSION}:{}:{}:{}:{}:{}:{:032x}",
            self.lock.namespace,
            self.lock.name.encoded(),
            self.kind.letter(),
            self.claim,
            self.token,
            u128::from_be_bytes(self.secret.0),
        )
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
        let parts: Vec<&str> = lease_id.split(':').collect();
        let &[LEASE_ID_VERSION, namespace, name, kind, claim, token, secret] = parts.as_slice() else {
            return Err(bad());
        };
        let key = Self {
            lock: LockKey {
                namespace: Namespace::new(namespace).map_err(|_| bad())?,
                name: decode(name)
                    .and_then(|name| LockName::new(&name).ok())
                    .ok_or_else(bad)?,
            },
            kind: Kind::from_letter(kind).ok_or_else(bad)?,
            claim: ClaimId(hex(claim).ok_or_else(bad)?),
            token: token
                .parse()
                .ok()
                .and_then(|n| FencingToken::new(n).ok())
                .ok_or_else(bad)?,
            secret: Secret(hex(secret).ok_or_else(bad)?),
        };
        // One lease has one id: spellings that only happen to parse are refused.
        if key.to_lease_id() == lease_id {
            Ok(key)
        } else {
            Err(bad())
        }
    }
}

fn hex(text: &str) -> Option<[u8; 16]> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes))?
}

fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') {
            out.push(byte.into());
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            out.push('%');
            out.push(DIGITS[usize::from(byte >> 4)].into());
            out.push(DIGITS[usize::from(byte & 15)].into());
        }
    }
    out
}

/// Undoes [`LockName::encoded`]; nothing for text that it did not write.
pub fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
            out.push(digit(bytes.next()?)? << 4 | digit(bytes.next()?)?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), InvalidField> {
    check_length(field, text, max)?;
    if text.chars().any(char::is_control) {
        return Err(InvalidField::new(field, "must not hold control characters"));
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

    fn lease(name: &str) -> LeaseKey {
        LeaseKey {
            lock: LockKey {
                namespace: Namespace::new("a.b-c").unwrap(),
                name: LockName::new(name).unwrap(),
            },
            kind: Kind::Semaphore,
            claim: ClaimId([7; 16]),
            token: FencingToken::new(FencingToken::MAX).unwrap(),
            secret: Secret([0xab; 16]),
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

    #[test]
    fn names_have_bounds() {
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
    }

    #[test]
    fn modes_mix_as_promised() {
        let five = Mode::semaphore(1, 5).unwrap();
        let six = Mode::semaphore(1, 6).unwrap();
        assert!(Mode::Exclusive.mixes(five) && five.mixes(Mode::Exclusive));
        assert!(five.mixes(Mode::semaphore(5, 5).unwrap()));
        assert!(!five.mixes(six) && !five.mixes(Mode::Shared) && !Mode::Shared.mixes(five));
    }
}
