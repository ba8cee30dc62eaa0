//! The bytes of owner and metadata that waiting calls occupy, by identity.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::name::Identity;

/// The bytes of all waiters of a namespace.
#[derive(Debug, Default)]
pub struct BytesInUse {
    all: usize,
    /// The bytes of each identity that has any.
    by_identity: HashMap<Identity, usize>,
}

impl BytesInUse {
    /// Adds bytes of an identity. Returns the bytes of all waiters and those of this identity.
    pub fn add(&mut self, identity: &Identity, bytes: usize) -> (usize, usize) {
        self.all += bytes;
        let own = self.by_identity.entry(identity.clone()).or_default();
        *own += bytes;
        (self.all, *own)
    }

    /// Removes bytes of an identity that were added before.
    pub fn remove(&mut self, identity: &Identity, bytes: usize) {
        self.all -= bytes;
        if let Entry::Occupied(mut own) = self.by_identity.entry(identity.clone()) {
            *own.get_mut() -= bytes;
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
    fn an_identity_without_bytes_is_forgotten() {
        let (mut bytes, one, other) = (
            BytesInUse::default(),
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
