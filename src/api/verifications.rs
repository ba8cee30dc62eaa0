//! Verifies the token signatures of one connection one at a time, in the order of the calls.
//!
//! A flood of forged tokens therefore has at most one verification in progress per connection, and delays only the
//! calls of these connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::{Auth, AuthenticatedIdentity, AuthenticationFailure, PresentedCredentials};
use crate::error::Error;

/// How many calls of one connection may wait for a verification.
const MAX_WAITING: usize = 4096;

/// The verifications of one connection.
#[derive(Debug)]
pub(super) struct Verifications {
    permit: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Default for Verifications {
    fn default() -> Self {
        Self {
            permit: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
        }
    }
}

/// The permit of a call to verify its token. The next call of the connection waits until it is dropped.
#[derive(Debug)]
pub(super) struct VerificationTurn(
    #[allow(dead_code, reason = "the next call waits until it is dropped")] Option<OwnedSemaphorePermit>,
);

/// Counts a waiting call until it is dropped.
struct WaitingCount(Arc<Verifications>);

impl Drop for WaitingCount {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Verifications {
    /// Whether a verification is in progress, or waits for its turn or its message. Later calls must not overtake it.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 || self.permit.available_permits() == 0
    }

    /// Waits for `message`, then verifies the credentials of the call, after those of calls whose message arrived
    /// earlier. A call that was verified before its message arrived would have no place in their order. The next call
    /// of the connection continues when the returned [`VerificationTurn`] is dropped.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`] if the token is not valid; [`Error::Overloaded`] if [`MAX_WAITING`] calls of the
    /// connection wait already.
    ///
    /// # Cancellation safety
    /// A dropped call leaves the queue, and the next one continues.
    pub(super) async fn authenticate(
        self: Arc<Self>,
        auth: Auth,
        presented: PresentedCredentials,
        message: impl Future<Output = ()>,
    ) -> Result<(AuthenticatedIdentity, VerificationTurn), Error> {
        let waiting = WaitingCount(Arc::clone(&self));
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            let what = format!("{MAX_WAITING} calls of this connection wait until their tokens are verified");
            return Err(Error::Overloaded { what });
        }
        message.await;
        let turn = VerificationTurn(Arc::clone(&self.permit).acquire_owned().await.ok());
        drop(waiting);
        let verified = match presented {
            PresentedCredentials::Verified(verified) | PresentedCredentials::Cached(verified) => Ok(verified),
            PresentedCredentials::Unverified(signed) => auth.verify(signed).await,
        };
        let verified = verified.map_err(unauthenticated)?;
        Ok((verified, turn))
    }
}

/// The error of a caller without valid credentials.
pub(super) fn unauthenticated(cause: AuthenticationFailure) -> Error {
    Error::Unauthenticated { cause }
}

#[cfg(test)]
mod tests {
    use futures::future::{Future, pending, poll_immediate, ready};

    use super::*;
    use crate::auth::Until;
    use crate::name::Identity;

    fn verified(
        one: &Arc<Verifications>,
    ) -> impl Future<Output = Result<(AuthenticatedIdentity, VerificationTurn), Error>> + use<> {
        let known = PresentedCredentials::Verified(AuthenticatedIdentity {
            identity: Identity::authenticated("jwt:a"),
            until: Until::default(),
        });
        Arc::clone(one).authenticate(Auth::default(), known, ready(()))
    }

    #[tokio::test]
    async fn the_calls_of_a_connection_are_verified_one_at_a_time_and_a_bounded_number_waits() {
        let connection = Arc::new(Verifications::default());
        let (_, turn) = verified(&connection).await.unwrap();
        assert!(connection.is_busy());
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(verified(&connection))).collect();
        for call in &mut waiting {
            assert!(poll_immediate(call).await.is_none(), "one at a time");
        }
        let refused = poll_immediate(verified(&connection)).await;
        assert!(matches!(refused, Some(Err(Error::Overloaded { .. }))));
        // A call that was dropped leaves its place, and the next one has its turn.
        drop(waiting.pop());
        let mut late = Box::pin(verified(&connection));
        assert!(poll_immediate(&mut late).await.is_none());
        drop(waiting);
        drop(turn);
        assert!(late.await.is_ok());
        assert!(!connection.is_busy());
    }

    #[tokio::test]
    async fn a_call_without_its_message_makes_a_connection_busy_and_delays_no_other() {
        let connection = Arc::new(Verifications::default());
        let known = PresentedCredentials::Verified(AuthenticatedIdentity {
            identity: Identity::authenticated("jwt:a"),
            until: Until::default(),
        });
        let mut late = Box::pin(Arc::clone(&connection).authenticate(Auth::default(), known, pending()));
        assert!(poll_immediate(&mut late).await.is_none());
        assert!(connection.is_busy());
        assert!(matches!(poll_immediate(verified(&connection)).await, Some(Ok(_))));
        drop(late);
        assert!(!connection.is_busy());
    }
}
