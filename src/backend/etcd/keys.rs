//! Where everything is kept: `<root>/<namespace>/…`.
//!
//! A lock's claims lie under `lock/<name><TAB>`. No name holds a tab, for it is a control character
//! (`LockName` refuses those), and its byte sorts before all that names are made of. So the first
//! tab of a key ends the name: names need no encoding, none reaches into another whatever slashes
//! it has, and the order of the keys is the order of the names.

use crate::name::{CallId, ClaimId, Kind, LockName, Namespace, Secret};

/// Parts a lock's name from what follows.
const TAB: char = '\t';

/// The keys of a namespace.
#[derive(Debug, Clone)]
pub struct Keys {
    root: String,
}

impl Keys {
    pub fn new(root: &str, namespace: &Namespace) -> Self {
        Self {
            root: format!("{}/{namespace}/", root.trim_end_matches('/')),
        }
    }

    /// What is added to a grant's revision to make its token.
    pub fn base(&self) -> String {
        format!("{}base", self.root)
    }

    /// That a replica's session lives.
    pub fn session(&self, lease: i64) -> String {
        format!("{}session/{lease:016x}", self.root)
    }

    /// That a call must have no effect any more.
    pub fn mark(&self, call: CallId) -> String {
        format!("{}mark/{call}", self.root)
    }

    /// How the request of a claim ended.
    pub fn request(&self, claim: ClaimId) -> String {
        format!("{}request/{claim}", self.root)
    }

    /// The holds of a lock that have ended.
    pub fn ends(&self, name: &LockName) -> String {
        format!("{}end/{name}{TAB}", self.root)
    }

    /// How a hold ended.
    pub fn end(&self, name: &LockName, secret: &Secret) -> String {
        let secret = u128::from_be_bytes(*secret.as_bytes());
        format!("{}{secret:032x}", self.ends(name))
    }

    /// Where the locks begin.
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

/// What a key of a lock stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRole {
    /// A claim that holds.
    Holder(ClaimId),
    /// A claim that waits.
    Waiter(ClaimId),
}

impl LockKeys {
    /// What all of them begin with.
    pub fn all(&self) -> &str {
        &self.prefix
    }

    /// The first key behind all of them.
    pub fn behind(&self) -> Vec<u8> {
        behind(&self.prefix)
    }

    pub fn holders(&self) -> String {
        format!("{}h/", self.prefix)
    }

    pub fn exclusive_holders(&self) -> String {
        format!("{}h/x/", self.prefix)
    }

    pub fn other_holders(&self) -> String {
        format!("{}h/s/", self.prefix)
    }

    pub fn waiters(&self) -> String {
        format!("{}q/", self.prefix)
    }

    pub fn holder(&self, kind: Kind, claim: ClaimId) -> String {
        let holders = match kind {
            Kind::Exclusive => self.exclusive_holders(),
            Kind::Shared | Kind::Semaphore => self.other_holders(),
        };
        format!("{holders}{claim}")
    }

    pub fn waiter(&self, claim: ClaimId) -> String {
        format!("{}{claim}", self.waiters())
    }

    /// What one of these keys stands for.
    pub fn stand(&self, key: &[u8]) -> Option<KeyRole> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let (stage, claim) = rest.rsplit_once('/')?;
        let id = u128::from_str_radix(claim, 16).ok()?;
        let claim = ClaimId::from_bytes(id.to_be_bytes());
        Some(match stage {
            "q" => KeyRole::Waiter(claim),
            _ => KeyRole::Holder(claim),
        })
    }
}

/// The first key behind all that begin with `prefix`. No UTF-8 ends in a byte that cannot be raised.
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
    fn the_keys_of_locks_are_in_the_order_of_their_names() {
        let keys = Keys::new("/fencepost", &Namespace::new("a").unwrap());
        let mut names = ["A", "a", "a!", "a/1", "ab", "b", "~", "ü", "ü/"];
        names.sort_unstable();
        let all: Vec<_> = names.iter().map(|text| keys.lock(&name(text)).waiters()).collect();
        assert!(all.is_sorted());
    }

    #[test]
    fn no_character_that_a_name_may_have_is_or_sorts_before_the_tab() {
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
    fn a_key_says_what_it_stands_for() {
        let keys = Keys::new("/fencepost/", &Namespace::new("a").unwrap());
        let lock = keys.lock(&name("../h/x"));
        let id = ClaimId::from_bytes([9; 16]);
        let holder = lock.holder(Kind::Shared, id);
        assert_eq!(lock.stand(holder.as_bytes()), Some(KeyRole::Holder(id)));
        assert_eq!(lock.stand(lock.waiter(id).as_bytes()), Some(KeyRole::Waiter(id)));
        assert_eq!(keys.name_of(holder.as_bytes()), Some(name("../h/x")));
        assert_eq!(keys.lock(&name("..")).stand(holder.as_bytes()), None);
    }
}
