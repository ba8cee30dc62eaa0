//! What the calls of a namespace use of a limit, by identity: bytes of waiting calls, or kept places.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::name::Identity;

/// An amount in use.
#[derive(Debug, Default)]
pub struct InUse {
    all: usize,
    /// The amount of each identity that has any.
    by_identity: HashMap<Identity, usize>,
}

impl InUse {
    /// Adds to what an identity uses. Returns what all use, and what this identity does.
    pub fn add(&mut self, identity: &Identity, amount: usize) -> (usize, usize) {
        self.all += amount;
        let own = self.by_identity.entry(identity.clone()).or_default();
        *own += amount;
        (self.all, *own)
    }

    /// Removes what was added before.
    pub fn remove(&mut self, identity: &Identity, amount: usize) {
        self.all -= amount;
        if let Entry::Occupied(mut own) = self.by_identity.entry(identity.clone()) {
            *own.get_mut() -= amount;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_uses_nothing_is_forgotten() {
        let (mut bytes, one, other) = (
            InUse::default(),
            Identity::authenticated("a"),
            Identity::authenticated("b"),
        );
        assert_eq!(bytes.add(&one, 3), (3, 3));
        assert_eq!(bytes.add(&other, 4), (7, 4));
        assert_eq!(bytes.add(&one, 1), (8, 4));
        bytes.remove(&one, 3);
        bytes.remove(&one, 1);
        assert_eq!((bytes.all, bytes.by_identity.len()), (4, 1));
        bytes.remove(&other, 4);
        assert_eq!((bytes.all, bytes.by_identity.len()), (0, 0));
    }
}
