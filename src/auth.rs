//! Who a caller is, and what it may do.
//!
//! An identity is proven by a bearer token or by the certificate of the connection, and is text that
//! begins with how it was proven: `uri:`, `dns:` or `cn:` by a certificate, `token:` by a static
//! token, `jwt:` by a signed one. What an identity may do is said by [`rules`], which are pure.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

pub use self::bearer::{BadBearer, BearerHash};
pub use self::bearer_file::{BadLine, BearerFileError};
pub use self::jwt::{JwtError, JwtSettings};
pub use self::policy::{AnonymousAccess, Policy, PolicyError, PolicySettings};
pub use self::proven::{ProvenIdentity, PresentedCredentials, UnverifiedToken, Until};
pub use self::rules::{BadPattern, Denied, Missing, Pattern, Rule, Rules, Verb};
use crate::name::Identity;

mod bearer;
mod bearer_file;
pub mod certificate;
mod clock;
mod jwt;
mod policy;
mod proven;
pub mod rules;

/// The longest identity, in bytes: as long as an owner.
const MAX_IDENTITY_BYTES: usize = crate::name::MAX_OWNER_BYTES;

/// The policy of a server, which can be swapped while it runs. Clones share it.
#[derive(Debug, Clone)]
pub struct Auth {
    /// Nothing: nobody is authenticated, and everybody may do everything. Never held for longer than
    /// it takes to read or replace it.
    policy: Arc<RwLock<Option<Arc<Policy>>>>,
    /// One permit for each signature that may be verified at once.
    verifying: Arc<Semaphore>,
}

impl Default for Auth {
    /// Half of the processors verify at most: a flood of forged tokens leaves the other half to callers.
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            policy: Arc::default(),
            verifying: Arc::new(Semaphore::new((processors / 2).max(1))),
        }
    }
}

impl Auth {
    /// Goes by this policy, or by none.
    pub fn new(policy: Option<Policy>) -> Self {
        let auth = Self::default();
        auth.replace(policy);
        auth
    }

    /// Goes by another policy from now on. Calls under way finish by the one that they began with.
    pub fn replace(&self, policy: Option<Policy>) {
        let mut current = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        *current = policy.map(Arc::new);
    }

    /// Verifies the signature of a token, in turn: signatures take processor time, which is bounded.
    ///
    /// # Errors
    /// [`Unproven`].
    ///
    /// # Cancellation safety
    /// Dropped, a verification that has begun goes on for the fraction of a millisecond that it takes.
    pub async fn verify(&self, signed: UnverifiedToken) -> Result<ProvenIdentity, Unproven> {
        // It is never closed.
        let permit = Arc::clone(&self.verifying).acquire_owned().await;
        let verified = spawn_blocking(move || {
            let _permit = permit;
            signed.verify()
        });
        verified.await.unwrap_or(Err(Unproven::Invalid))
    }

    /// The policy of this moment.
    pub fn policy(&self) -> Option<Arc<Policy>> {
        let current = self.policy.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }
}

/// Why it is not proven who a caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unproven {
    /// There is neither a bearer token nor a certificate with a name.
    Missing,
    /// What the caller shows is not accepted.
    Invalid,
    /// It was accepted once, and its time is over.
    Expired,
}

impl Unproven {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Missing, Self::Invalid, Self::Expired];

    /// The word for it in errors.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the call has no bearer token, and its connection no client certificate with a name",
            Self::Invalid => "the bearer token is not accepted",
            Self::Expired => "the bearer token, or the certificate of the connection, has expired",
        })
    }
}

/// The identity that was proven in this way, if it is one that can be shown.
fn identity(kind: &str, name: &str) -> Option<Identity> {
    let text = format!("{kind}:{name}");
    let fits = !name.is_empty() && text.len() <= MAX_IDENTITY_BYTES && !text.chars().any(char::is_control);
    fits.then(|| Identity::proven(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_says_how_it_was_proven_and_has_bounds() {
        assert_eq!(
            identity("uri", "spiffe://a/b").map(|id| id.as_str().to_owned()),
            Some("uri:spiffe://a/b".into())
        );
        for bad in ["", "a\n", "\u{85}", &"x".repeat(MAX_IDENTITY_BYTES)] {
            assert_eq!(identity("cn", bad), None, "{bad:?}");
        }
    }
}
