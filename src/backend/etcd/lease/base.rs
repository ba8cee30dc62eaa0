//! The token base: the number that fencing tokens are counted from. It also prevents grants by other releases of this
//! service.
//!
//! Every grant compares it. A later release closes the base with a number that no release writes, because of its leading
//! zero. After that, no grant of this release takes effect, and none of its servers raises the base again.
//!
//! Tokens rise over an old copy of etcd that is restored: each grant compares the base, which is raised to the time
//! of day on every connection, before the first grant and after the opening of the stream that breaks with the
//! connection. The pooled leases and the free key suffixes are discarded with each connection, and the session if
//! revisions fell.

use etcd_client::KeyValue;

/// The keys of a namespace's token base and sessions.
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
        format!("{}token_base", self.root)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_leading_zero_is_a_closed_base() {
        assert_eq!(Base::parse("018446744073709551615"), Base::Closed);
        let open = [("", 0), ("0", 0), ("17", 17)];
        assert!(
            open.into_iter()
                .all(|(text, base)| Base::parse(text) == Base::Open(base))
        );
    }
}
