//! What a caller has proven, and what it has shown and not proven yet.

use std::sync::Arc;

use super::bearer::Hash;
use super::jwt::{Jwt, Unverified};
use super::{Unproven, clock};
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

/// What a caller shows.
#[derive(Debug)]
pub enum PresentedCredentials {
    /// It proves who the caller is.
    ProvenIdentity(ProvenIdentity),
    /// A signed token whose signature was verified before.
    Known(ProvenIdentity),
    /// A signed token that says whose it is.
    UnverifiedToken(UnverifiedToken),
}

/// A signed token whose claims are good. Its signature is to be verified.
#[derive(Debug)]
pub struct UnverifiedToken {
    pub(super) jwt: Arc<Jwt>,
    pub(super) hash: Hash,
    pub(super) token: Unverified,
}

impl UnverifiedToken {
    /// What it proved when its signature was verified before.
    pub fn remembered(&self) -> Option<Result<ProvenIdentity, Unproven>> {
        self.jwt.remembered(&self.hash)
    }

    /// Verifies its signature, which takes the processor for a tenth of a millisecond or so.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn verify(self) -> Result<ProvenIdentity, Unproven> {
        self.remembered()
            .unwrap_or_else(|| self.jwt.verify(&self.hash, self.token))
    }
}
