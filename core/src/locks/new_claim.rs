//! Builds the claims of calls.

use tokio::time::Instant;

use super::{Acquire, NamespaceState, ids};
use crate::backend::{ClaimLimits, NewClaim, WaitPolicy};
use crate::error::Error;
use crate::name::{CallId, ClaimId, Mode, Secret};

impl NamespaceState {
    /// Builds the claim of a call. Checks the call against the namespace's limits and the backend's capabilities.
    pub fn claim(&self, request: &Acquire, arrived: Instant) -> Result<NewClaim, Error> {
        let limits = self.limits.load();
        limits.name(&request.lock)?;
        let ttl = limits.ttl(request.ttl)?;
        self.check_capabilities(request)?;
        let [random_id, call, secret] = ids::random()?;
        let named = request.claim();
        Ok(NewClaim {
            id: named.unwrap_or(ClaimId::from_bytes(random_id)),
            call: CallId::from_bytes(call),
            secret: Secret::from_bytes(secret),
            retryable: named.is_some(),
            stream: None,
            owner: request.owner.clone(),
            identity: request.identity.clone(),
            mode: request.mode,
            reentrant: request.reentrant,
            ttl,
            metadata: request.metadata.clone(),
            wait_policy: if request.wait.is_zero() {
                WaitPolicy::NoWait
            } else {
                WaitPolicy::Wait
            },
            limits: ClaimLimits {
                queue: limits.queue,
                finished: limits.finished,
                holds: limits.holds,
            },
            arrived,
        })
    }

    fn check_capabilities(&self, request: &Acquire) -> Result<(), Error> {
        let unsupported = |what: &str| {
            Err(Error::Unsupported {
                what: format!("{what} on a namespace of kind {}", self.capabilities.kind),
            })
        };
        if request.mode != Mode::Exclusive && !self.capabilities.sharing {
            return unsupported(&format!("mode {}", request.mode.as_str()));
        }
        if request.reentrant && !self.capabilities.reentry {
            return unsupported("re-entry");
        }
        Ok(())
    }

    /// The same claim with a fresh call id and secret, and a fresh claim id unless a request id determines it.
    pub fn with_fresh_ids(&self, claim: NewClaim) -> Result<NewClaim, Error> {
        let [random_id, call, secret] = ids::random()?;
        Ok(NewClaim {
            id: if claim.retryable {
                claim.id
            } else {
                ClaimId::from_bytes(random_id)
            },
            call: CallId::from_bytes(call),
            secret: Secret::from_bytes(secret),
            ..claim
        })
    }
}
