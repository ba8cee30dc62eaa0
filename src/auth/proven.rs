//! Authenticated identities, and credentials that are not verified yet.

use std::sync::Arc;

use super::bearer::Hash;
use super::jwt::{Jwt, Unverified};
use super::{Unproven, clock};
use crate::name::Identity;

/// An authenticated identity, and until when it is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenIdentity {
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

/// The credentials that a caller presented.
#[derive(Debug)]
pub enum PresentedCredentials {
    /// They establish the caller's identity.
    ProvenIdentity(ProvenIdentity),
    /// A JWT whose signature was verified before.
    Known(ProvenIdentity),
    /// A JWT whose signature was not verified yet.
    UnverifiedToken(UnverifiedToken),
}

/// A JWT whose claims were accepted and whose signature is to be verified.
#[derive(Debug)]
pub struct UnverifiedToken {
    pub(super) jwt: Arc<Jwt>,
    pub(super) hash: Hash,
    pub(super) token: Unverified,
}

impl UnverifiedToken {
    /// The cached result, if its signature was verified before.
    pub fn remembered(&self) -> Option<Result<ProvenIdentity, Unproven>> {
        self.jwt.remembered(&self.hash)
    }

    /// Verifies its signature, which takes about 0.1 ms of processor time.
    ///
    /// # Errors
    /// [`Unproven`].
    pub fn verify(self) -> Result<ProvenIdentity, Unproven> {
        self.remembered()
            .unwrap_or_else(|| self.jwt.verify(&self.hash, self.token))
    }
}
