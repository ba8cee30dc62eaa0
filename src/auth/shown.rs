//! What a caller shows: a proof, or a signed token whose signature is to be verified.

use std::sync::Arc;

use super::Unproven;
use super::bearer::Hash;
use super::jwt::{Jwt, Unverified};
use super::proven::ProvenIdentity;

/// What a caller shows.
#[derive(Debug)]
pub enum PresentedCredentials {
    /// It proves who the caller is.
    Verified(ProvenIdentity),
    /// A signed token whose signature was verified before.
    Cached(ProvenIdentity),
    /// A signed token that says whose it is.
    Unverified(UnverifiedToken),
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
