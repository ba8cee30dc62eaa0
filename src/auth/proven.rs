//! What a caller has proven.

use super::clock;
use crate::name::Identity;

/// An identity, and until when its proof counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenIdentity {
    /// Who it is.
    pub identity: Identity,
    /// Until when that is proven.
    pub until: Until,
}

/// The end of a proof, in seconds since 1970; without one it has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Until(pub Option<u64>);

impl Until {
    /// Whether it is over.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|until| clock::seconds() > until)
    }
}
