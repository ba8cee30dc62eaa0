//! The layout of the keys under `<root>/<namespace>/`.
//!
//! A lock's claims are under `lock/<name><TAB>`. No name contains a tab, because `LockName` refuses control characters,
//! and the tab sorts before all characters of names. So the first tab of a key ends the name. Therefore names need no
//! encoding, no lock's prefix covers another lock's keys, and the keys sort as the names do.
//!
//! Under a lock's prefix, its readers come first (`h/r/`), then its semaphore claims (`h/s/`), its exclusive holder
//! (`h/x/`) and its waiters (`q/`). So "the lock has only readers" is one condition on one range.
//!
//! A reader is granted under that condition without a read, and never fails because of another reader. Each has a
//! request of its own, because the token is the revision of the grant. A replica adds readers without counting up to
//! half of `queue_limit`, and counts beyond that.

use super::key_suffixes::KeySuffix;
use crate::backend::etcd::lease::base::SessionKeys;
use crate::name::{CallId, ClaimId, FencingToken, Kind, LockName, Namespace, Secret};

/// Separates a lock's name from the rest of the key.
const TAB: char = '\t';

/// The keys of a namespace.
#[derive(Debug, Clone)]
pub struct Keys {
    root: String,
    pub sessions: SessionKeys,
}

impl Keys {
    pub fn new(root: &str, namespace: &Namespace) -> Self {
        let root = format!("{}/{namespace}/", root.trim_end_matches('/'));
        let sessions = SessionKeys::new(root.clone());
        Self { root, sessions }
    }

    /// The cancel mark of a call.
    pub fn mark(&self, call: CallId) -> String {
        format!("{}mark/{call}", self.root)
    }

    /// The prefix of the records of forced releases.
    pub fn all_forced(&self) -> String {
        format!("{}forced/", self.root)
    }

    /// The record of the forced release of the claim with this token. Its value is the name of the lock.
    pub fn forced(&self, token: FencingToken) -> String {
        format!("{}{token}", self.all_forced())
    }

    /// The token that a record of a forced release names.
    pub fn forced_token(&self, key: &[u8]) -> Option<FencingToken> {
        let token = std::str::from_utf8(key).ok()?.strip_prefix(&self.all_forced())?;
        FencingToken::new(token.parse().ok()?).ok()
    }

    /// The record of a claim's request.
    pub fn request(&self, claim: ClaimId) -> String {
        format!("{}request/{claim}", self.root)
    }

    /// The prefix of a lock's ended holds.
    pub fn ends(&self, name: &LockName) -> String {
        format!("{}end/{name}{TAB}", self.root)
    }

    /// The record of a hold's end.
    pub fn end(&self, name: &LockName, secret: &Secret) -> String {
        let secret = u128::from_be_bytes(*secret.as_bytes());
        format!("{}{secret:032x}", self.ends(name))
    }

    /// The prefix of all locks.
    pub fn locks(&self) -> String {
        format!("{}lock/", self.root)
    }

    pub fn lock(&self, name: &LockName) -> LockKeys {
        LockKeys {
            prefix: format!("{}{name}{TAB}", self.locks()),
        }
    }

    /// The name of the lock that a key belongs to.
    pub fn name_of(&self, key: &[u8]) -> Option<LockName> {
        let text = std::str::from_utf8(key).ok()?;
        let (name, _) = text.strip_prefix(&self.locks())?.split_once(TAB)?;
        LockName::new(name).ok()
    }
}

/// The keys of a lock.
#[derive(Debug, Clone)]
pub struct LockKeys {
    prefix: String,
}

/// What a key of a lock is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRole {
    /// A claim that holds.
    Holder(KeySuffix),
    /// A claim that waits.
    Waiter(KeySuffix),
}

impl LockKeys {
    /// Their common prefix.
    pub fn all(&self) -> &str {
        &self.prefix
    }

    /// The end of their range, which is exclusive.
    pub fn behind(&self) -> Vec<u8> {
        behind(&self.prefix)
    }

    pub fn holders(&self) -> String {
        format!("{}h/", self.prefix)
    }

    pub fn exclusive_holders(&self) -> String {
        format!("{}h/x/", self.prefix)
    }

    pub fn semaphore_holders(&self) -> String {
        format!("{}h/s/", self.prefix)
    }

    pub fn readers(&self) -> String {
        format!("{}h/r/", self.prefix)
    }

    /// The range of all claims except holding readers: its first key and its exclusive end.
    pub fn all_but_readers(&self) -> (String, Vec<u8>) {
        (self.semaphore_holders(), self.behind())
    }

    pub fn waiters(&self) -> String {
        format!("{}q/", self.prefix)
    }

    pub fn holder(&self, kind: Kind, suffix: KeySuffix) -> String {
        let holders = match kind {
            Kind::Exclusive => self.exclusive_holders(),
            Kind::Semaphore => self.semaphore_holders(),
            Kind::Shared => self.readers(),
        };
        format!("{holders}{suffix}")
    }

    pub fn waiter(&self, suffix: KeySuffix) -> String {
        format!("{}{suffix}", self.waiters())
    }

    /// The role of one of these keys.
    pub fn role_of(&self, key: &[u8]) -> Option<KeyRole> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (stage, suffix) = rest.rsplit_once('/')?;
        let suffix = KeySuffix::parse(suffix)?;
        Some(match stage {
            "q" => KeyRole::Waiter(suffix),
            _ => KeyRole::Holder(suffix),
        })
    }
}

/// The exclusive end of the range of keys with `prefix`. The last byte can be raised, because UTF-8 never contains
/// 0xff.
pub fn behind(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn the_keys_of_locks_sort_as_their_names_do() {
        let keys = Keys::new("/fencepost", &Namespace::new("a").unwrap());
        let mut names = ["A", "a", "a!", "a/1", "ab", "b", "~", "ü", "ü/"];
        names.sort_unstable();
        let all: Vec<_> = names.iter().map(|text| keys.lock(&name(text)).waiters()).collect();
        assert!(all.is_sorted());
    }

    #[test]
    fn every_character_of_a_name_sorts_after_the_tab() {
        let mut allowed = 0;
        for character in char::MIN..=char::MAX {
            let Ok(name) = LockName::new(&character.to_string()) else {
                continue;
            };
            allowed += 1;
            assert!(name.as_str().bytes().all(|byte| byte > TAB as u8), "{character:?}");
        }
        // All but the control characters, of which there are 65.
        assert_eq!(allowed, (char::MIN..=char::MAX).count() - 65);
    }

    #[test]
    fn a_key_has_its_role() {
        let keys = Keys::new("/fencepost/", &Namespace::new("a").unwrap());
        let lock = keys.lock(&name("../h/x"));
        let id = KeySuffix::from_bytes([9; 16]);
        let holder = lock.holder(Kind::Shared, id);
        assert_eq!(lock.role_of(holder.as_bytes()), Some(KeyRole::Holder(id)));
        assert_eq!(lock.role_of(lock.waiter(id).as_bytes()), Some(KeyRole::Waiter(id)));
        assert_eq!(keys.name_of(holder.as_bytes()), Some(name("../h/x")));
        assert_eq!(keys.lock(&name("..")).role_of(holder.as_bytes()), None);
    }

    #[test]
    fn one_range_has_all_claims_except_holding_readers() {
        let keys = Keys::new("/fencepost", &Namespace::new("a").unwrap());
        let (lock, id) = (keys.lock(&name("b")), KeySuffix::from_bytes([255; 16]));
        let (first, behind) = lock.all_but_readers();
        let is_in = |key: String| first <= key && key.into_bytes() < behind;
        let others = [
            lock.holder(Kind::Exclusive, id),
            lock.holder(Kind::Semaphore, id),
            lock.waiter(id),
        ];
        assert!(others.into_iter().all(is_in));
        assert!(!is_in(lock.holder(Kind::Shared, id)));
        assert!(lock.holder(Kind::Shared, id).starts_with(&lock.holders()));
    }
}
