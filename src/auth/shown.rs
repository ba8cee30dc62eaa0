//! What a caller shows: a proof, or a signed token whose signature is to be verified.

use std::sync::Arc;

use super::Unproven;
use super::bearer::Hash;
use super::jwt::{Jwt, Unverified};
use super::proven::Proven;

/// What a caller shows.
#[derive(Debug)]
pub enum Shown {
    /// It proves who the caller is.
    Proven(Proven),
    /// A signed token whose signature was verified before.
    Known(Proven),
    /// A signed token that says whose it is.
    Signed(Signed),
}

/// A signed token whose claims are good. Its signature is to be verified.
#[derive(Debug)]
pub struct Signed {
    pub(super) jwt: Arc<Jwt>,
    pub(super) hash: Hash,
    pub(super) token: Unverified,
}

impl Signed {
    /// What it proved when its signature was verified before.
    pub fn remembered(&self) -> Option<Result<Proven, Unproven>> {
        self.jwt.remembered(&self.hash)
    }

    /// Verifies its signature, which takes the processor for a tenth of a millisecond or so.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn verify(self) -> Result<Proven, Unproven> {
        self.remembered()
            .unwrap_or_else(|| self.jwt.verify(&self.hash, self.token))
    }
}
