//! Ids that the service generates: claim ids, call ids, and the secrets of holds.

use std::fmt;

/// Declares types of 128 bits, which stores keep as bytes.
macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $id:ident,)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $id([u8; 16]);

        impl $id {
            /// The value with these bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The bytes, as stores keep them.
            pub fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }
    )+};
}

/// Shows ids.
macro_rules! shown {
    ($($id:ident),+) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", u128::from_be_bytes(self.0))
            }
        }

        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($id), "({})"), self)
            }
        }
    )+};
}

ids! {
    /// The id of a claim and of its first hold. It is random, or derived from a request id, so that every replica can
    /// compute it without reading the store.
    ClaimId,
    /// The random id of an Acquire call. Several calls may work on one claim.
    CallId,
    /// Proves that a caller owns a hold: 128 random bits. Inspection, logs and metrics never contain it, and its `Debug`
    /// hides it.
    Secret,
}

shown!(ClaimId, CallId);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
