//! Authenticated identities.

use super::clock;
use crate::name::Identity;

/// An authenticated identity, and until when it is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticatedIdentity {
    /// The identity.
    pub identity: Identity,
    /// The expiry of its credentials.
    pub until: Until,
}

/// An expiry in seconds since 1970; `None`: no expiry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Until(pub Option<u64>);

impl Until {
    /// Whether the expiry has passed.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|until| clock::seconds() > until)
    }
}
