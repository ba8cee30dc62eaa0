//! Authenticates and authorizes callers.
//!
//! A bearer token or the client certificate of the connection establishes an identity. The identity is text with a
//! prefix for its source: `uri:`, `dns:` or `cn:` for a certificate, `token:` for a static token, `jwt:` for a JWT.
//! [`rules`] define what an identity may do; they are pure.
//!
//! A bearer token takes precedence over a certificate, because the certificate may be a proxy's.

use std::sync::Arc;
use std::thread::available_parallelism;

pub use fencepost_core::auth::{AuthenticationFailure, BadPattern, Denied, Missing, Pattern, Rule, Rules, Verb, rules};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;

pub use self::authenticated_identity::{AuthenticatedIdentity, Until};
pub use self::bearer::{BadBearer, BearerHash};
pub use self::bearer_file::{BadLine, BearerFileError};
pub use self::jwt::{JwtError, JwtSettings};
pub use self::policy::{AnonymousAccess, Policy, PolicyError, PolicySettings};
pub use self::presented_credentials::{PresentedCredentials, UnverifiedToken};
use crate::name::Identity;

mod authenticated_identity;
mod bearer;
mod bearer_file;
pub mod certificate;
mod clock;
mod jwt;
mod policy;
mod presented_credentials;

/// The longest identity, in bytes: the same as for an owner.
const MAX_IDENTITY_BYTES: usize = crate::name::MAX_OWNER_BYTES;

/// The policy of a server. It can be replaced at run time. Clones share it.
#[derive(Debug, Clone)]
pub struct Auth {
    /// `None`: no authentication, and everything is allowed.
    policy: watch::Sender<Option<Arc<Policy>>>,
    /// One permit for each signature that may be verified at once.
    verifying: Arc<Semaphore>,
}

impl Default for Auth {
    /// At most half of the processors verify signatures, so that a flood of forged tokens leaves the other half to
    /// calls.
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            policy: watch::Sender::default(),
            verifying: Arc::new(Semaphore::new((processors / 2).max(1))),
        }
    }
}

impl Auth {
    /// Applies this policy, or none.
    pub fn new(policy: Option<Policy>) -> Self {
        let auth = Self::default();
        auth.replace(policy);
        auth
    }

    /// Replaces the policy. Calls in progress finish under the policy that they began with.
    pub fn replace(&self, policy: Option<Policy>) {
        self.policy.send_replace(policy.map(Arc::new));
    }

    /// Ready when another policy than `known` is in force.
    ///
    /// # Cancellation safety
    /// It may be dropped at any moment.
    pub async fn until_replaced(&self, known: Option<&Arc<Policy>>) {
        let is_another = |current: &Arc<Policy>| known.is_none_or(|known| !Arc::ptr_eq(known, current));
        let mut policy = self.policy.subscribe();
        // The sender lives as long as this.
        let _ = policy
            .wait_for(|current| current.as_ref().is_some_and(is_another))
            .await;
    }

    /// Verifies the signature of a token. Waits for a permit, because verification takes processor time, unless the token
    /// was verified before.
    ///
    /// # Errors
    /// [`AuthenticationFailure`].
    ///
    /// # Cancellation safety
    /// When dropped, a verification that has begun continues for the fraction of a millisecond that it takes.
    pub async fn verify(&self, token: UnverifiedToken) -> Result<AuthenticatedIdentity, AuthenticationFailure> {
        if let Some(known) = token.remembered() {
            return known;
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&self.verifying).acquire_owned().await;
        let verified = spawn_blocking(move || {
            let _permit = permit;
            token.verify()
        });
        verified.await.unwrap_or(Err(AuthenticationFailure::Invalid))
    }

    /// The current policy.
    pub fn policy(&self) -> Option<Arc<Policy>> {
        self.policy.borrow().clone()
    }
}

/// Builds an identity, or `None` if its name is empty, too long or contains control characters.
fn identity(kind: &str, name: &str) -> Option<Identity> {
    let text = format!("{kind}:{name}");
    let fits = !name.is_empty() && text.len() <= MAX_IDENTITY_BYTES && !text.chars().any(char::is_control);
    fits.then(|| Identity::authenticated(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_verified_by_half_of_the_processors_at_most() {
        let processors = available_parallelism().map_or(1, std::num::NonZero::get);
        let at_once = Auth::default().verifying.available_permits();
        assert!(
            at_once >= 1 && 2 * at_once <= processors.max(2),
            "{at_once} of {processors}"
        );
    }

    #[test]
    fn an_identity_is_prefixed_with_its_source_and_bounded() {
        assert_eq!(
            identity("uri", "spiffe://a/b").map(|id| id.as_str().to_owned()),
            Some("uri:spiffe://a/b".into())
        );
        for bad in ["", "a\n", "\u{85}", &"x".repeat(MAX_IDENTITY_BYTES)] {
            assert_eq!(identity("cn", bad), None, "{bad:?}");
        }
    }
}
