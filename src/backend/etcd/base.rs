//! The base that tokens are counted from, as its key holds it, and what keeps other releases from granting beside this
//! one.
//!
//! Every grant compares the record at its release's key. Releases before kept readers among the semaphore claims and
//! their base at another key: the first replica of this release closes that one, with a number that they read as the
//! largest there is and never write themselves (for its leading zero). So none of their grants takes effect from then
//! on, and none of them raises it again. A later release can close this one's base in the same way.

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};

use super::keys::Keys;

/// What closes a base.
const CLOSED: &str = "018446744073709551615";

/// What is at the key of a base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// A number; zero where there is none.
    Open(u64),
    /// A later release grants here.
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

    /// What tokens are counted from, if this release may count.
    pub fn open(self) -> Option<u64> {
        match self {
            Self::Open(base) => Some(base),
            Self::Closed => None,
        }
    }
}

/// Both bases, as they were read.
#[derive(Debug)]
pub struct Bases<'a> {
    pub keys: &'a Keys,
    pub own: Option<&'a KeyValue>,
    pub earlier: Option<&'a KeyValue>,
}

impl Bases<'_> {
    /// What tokens are to be counted from, so that they lie above all that were given before and not below `floor`;
    /// nothing where a later release grants. The other answer is whether that stands there already.
    pub fn to_be(&self, floor: u64) -> Option<(u64, bool)> {
        let own = Base::read(self.own).open()?;
        let earlier = Base::read(self.earlier).open();
        let base = own.max(earlier.unwrap_or(0)).max(floor);
        Some((base, base == own && earlier.is_none()))
    }

    /// The step that writes it, if nobody has written since.
    pub fn raise(&self, base: u64) -> (Vec<Compare>, Vec<TxnOp>) {
        let unchanged = |key: String, kv: Option<&KeyValue>| {
            let modified = kv.map_or(0, KeyValue::mod_revision);
            Compare::mod_revision(key, CompareOp::Equal, modified)
        };
        let when = vec![
            unchanged(self.keys.base(), self.own),
            unchanged(self.keys.earlier_base(), self.earlier),
        ];
        let mut then = vec![TxnOp::put(self.keys.base(), base.to_string(), None)];
        if Base::read(self.earlier).open().is_some() {
            then.push(TxnOp::put(self.keys.earlier_base(), CLOSED, None));
        }
        (when, then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_that_is_closed_is_the_largest_for_releases_before_and_no_number_that_they_write() {
        assert_eq!(Base::parse(CLOSED), Base::Closed);
        let as_they_read = CLOSED.parse::<u64>().unwrap();
        assert_eq!(as_they_read, u64::MAX);
        assert_ne!(as_they_read.to_string(), CLOSED);
        let open = [("", 0), ("0", 0), ("17", 17)];
        assert!(
            open.into_iter()
                .all(|(text, base)| Base::parse(text) == Base::Open(base))
        );
    }
}
