//! The token base: the number that fencing tokens are counted from. It also prevents grants by other releases of this
//! service.
//!
//! Every grant compares the record at the key of its format. The first format kept readers among the semaphore claims; the
//! second named the keys of claims by their ids, and had no record of a waiting request. Each had its base at another
//! key. The first replica of this format closes these bases: it writes a number that earlier releases parse as the largest
//! one and never write themselves, because of its leading zero. After that, none of their grants takes effect, and none of
//! them raises the base again; those of the second format say that a later release grants here. A later release can close
//! this one's base in the same way.
//!
//! Tokens rise over an old copy of etcd that is restored: each grant compares the base, which is raised to the time
//! of day on every connection, before the first grant and after the opening of the stream that breaks with the
//! connection. The pooled leases and the free key suffixes are discarded with each connection, and the session if
//! revisions fell.

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};

use crate::backend::clock::is_usable;

/// The value of a closed base.
const CLOSED: &str = "018446744073709551615";

/// The keys of a namespace's token bases and sessions.
#[derive(Debug, Clone)]
pub struct SessionKeys {
    root: String,
}

impl SessionKeys {
    /// The keys below a root that ends with a slash.
    pub fn new(root: String) -> Self {
        Self { root }
    }

    /// The token base, which is added to a grant's revision.
    pub fn base(&self) -> String {
        format!("{}token_base_3", self.root)
    }

    /// The token bases of the earlier formats.
    pub fn earlier_bases(&self) -> [String; 2] {
        ["base", "token_base"].map(|base| format!("{}{base}", self.root))
    }

    /// Exists while a replica's session lives.
    pub fn session(&self, lease: i64) -> String {
        format!("{}session/{lease:016x}", self.root)
    }
}

/// The value at the key of a base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// A number; zero if the key is absent.
    Open(u64),
    /// Another release grants in this namespace.
    Closed,
}

impl Base {
    pub fn read(kv: Option<&KeyValue>) -> Self {
        let text = kv.and_then(|kv| kv.value_str().ok()).unwrap_or_default();
        Self::parse(text)
    }

    fn parse(text: &str) -> Self {
        match text.starts_with('0') && text.len() > 1 {
            true => Self::Closed,
            false => Self::Open(text.parse().unwrap_or(0)),
        }
    }

    /// The base, if this release may grant.
    pub fn open(self) -> Option<u64> {
        match self {
            Self::Open(base) => Some(base),
            Self::Closed => None,
        }
    }
}

/// All bases, as they were read.
#[derive(Debug)]
pub struct Bases<'a> {
    pub keys: &'a SessionKeys,
    pub own: Option<&'a KeyValue>,
    /// In the order of [`SessionKeys::earlier_bases`].
    pub earlier: [Option<&'a KeyValue>; 2],
}

impl Bases<'_> {
    /// The highest base whose tokens are within their range at this revision; zero if there is none. None if a later
    /// release grants.
    pub fn highest(&self, revision: u64) -> Option<u64> {
        let own = Base::read(self.own).open()?;
        let bases = self.open_earlier().chain([own]);
        Some(bases.filter(|base| is_usable(*base, revision)).max().unwrap_or(0))
    }

    /// Whether this base is written, and those of the earlier formats are closed.
    pub fn is_written(&self, base: u64) -> bool {
        Base::read(self.own) == Base::Open(base) && self.open_earlier().next().is_none()
    }

    fn open_earlier(&self) -> impl Iterator<Item = u64> {
        self.earlier
            .into_iter()
            .filter_map(|earlier| Base::read(earlier).open())
    }

    /// The transaction that writes the base, if all keys are unchanged since they were read.
    pub fn raise(&self, base: u64) -> (Vec<Compare>, Vec<TxnOp>) {
        let unchanged = |key: String, kv: Option<&KeyValue>| {
            let modified = kv.map_or(0, KeyValue::mod_revision);
            Compare::mod_revision(key, CompareOp::Equal, modified)
        };
        let mut when = vec![unchanged(self.keys.base(), self.own)];
        let mut then = vec![TxnOp::put(self.keys.base(), base.to_string(), None)];
        for (key, earlier) in self.keys.earlier_bases().into_iter().zip(self.earlier) {
            when.push(unchanged(key.clone(), earlier));
            if Base::read(earlier).open().is_some() {
                then.push(TxnOp::put(key, CLOSED, None));
            }
        }
        (when, then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_releases_parse_a_closed_base_as_the_largest_number_and_never_write_it() {
        assert_eq!(Base::parse(CLOSED), Base::Closed);
        let as_parsed = CLOSED.parse::<u64>().unwrap();
        assert_eq!(as_parsed, u64::MAX);
        assert_ne!(as_parsed.to_string(), CLOSED);
        let open = [("", 0), ("0", 0), ("17", 17)];
        assert!(
            open.into_iter()
                .all(|(text, base)| Base::parse(text) == Base::Open(base))
        );
    }
}
