//! The credentials that a caller presents: an authenticated identity, or a token whose signature is to be verified.

use std::sync::Arc;

use super::AuthenticationFailure;
use super::authenticated_identity::AuthenticatedIdentity;
use super::bearer::Hash;
use super::jwt::{Jwt, Unverified};

/// The credentials that a caller presents.
#[derive(Debug)]
pub enum PresentedCredentials {
    /// They authenticate the caller.
    Verified(AuthenticatedIdentity),
    /// A signed token whose signature was verified before.
    Cached(AuthenticatedIdentity),
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
    pub fn remembered(&self) -> Option<Result<AuthenticatedIdentity, AuthenticationFailure>> {
        self.jwt.remembered(&self.hash)
    }

    /// Verifies its signature, which takes the processor for a tenth of a millisecond or so.
    ///
    /// # Errors
    /// [`AuthenticationFailure`].
    pub fn verify(self) -> Result<AuthenticatedIdentity, AuthenticationFailure> {
        self.remembered()
            .unwrap_or_else(|| self.jwt.verify(&self.hash, self.token))
    }
}
