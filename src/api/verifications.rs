//! Tokens of one connection whose signatures are to be verified: one after another, in the order of their calls.
//!
//! A flood of forged tokens therefore has one verification under way for each of its connections, and keeps back
//! the calls of these connections alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::{Auth, ProvenIdentity, PresentedCredentials, Unproven};
use crate::error::Error;

/// How many calls of one connection may wait for a verification.
const MAX_WAITING: usize = 4096;

/// The verifications of one connection.
#[derive(Debug)]
pub(super) struct Verifications {
    turn: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Default for Verifications {
    fn default() -> Self {
        Self {
            turn: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
        }
    }
}

/// The turn of a call among those of its connection that show signed tokens.
#[derive(Debug)]
pub(super) struct VerificationTurn(
    #[allow(dead_code, reason = "the next call waits until it is dropped")] Option<OwnedSemaphorePermit>,
);

/// Counts a call that waits.
struct WaitingCount(Arc<Verifications>);

impl Drop for WaitingCount {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Verifications {
    /// Whether calls of the connection wait: a later one must not overtake them.
    pub(super) fn is_busy(&self) -> bool {
        self.turn.available_permits() == 0
    }

    /// Whom a token proves, verified in turn. The next call of the connection has its turn when the answer's
    /// [`VerificationTurn`] is dropped.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`]; [`Error::Overloaded`] where too many calls of the connection wait already.
    ///
    /// # Cancellation safety
    /// Dropped, the call gives its turn up.
    pub(super) async fn proven(self: Arc<Self>, auth: Auth, shown: PresentedCredentials) -> Result<(ProvenIdentity, VerificationTurn), Error> {
        let waiting = WaitingCount(Arc::clone(&self));
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            let what = format!("{MAX_WAITING} calls of this connection wait until their tokens are verified");
            return Err(Error::Overloaded { what });
        }
        let turn = VerificationTurn(Arc::clone(&self.turn).acquire_owned().await.ok());
        drop(waiting);
        let proven = match shown {
            PresentedCredentials::ProvenIdentity(proven) | PresentedCredentials::Known(proven) => Ok(proven),
            PresentedCredentials::UnverifiedToken(signed) => match signed.remembered() {
                Some(known) => known,
                None => auth.verify(signed).await,
            },
        };
        let proven = proven.map_err(unproven)?;
        Ok((proven, turn))
    }
}

/// The error of a caller that has not proven who it is.
pub(super) fn unproven(cause: Unproven) -> Error {
    Error::Unauthenticated { cause }
}
