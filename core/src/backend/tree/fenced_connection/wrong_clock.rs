//! What follows from a wall clock that is wrong, or far ahead of the tokens.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::token_base::read_number;
use super::{FencedConnection, FencedConnections};
use crate::backend::clock::{TokenClock, is_usable};
use crate::backend::failure::not_sent;
use crate::backend::tree::store::Failure;
use crate::backend::{BackendError, Health};

/// How often the wall clock is compared with the tokens.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

impl FencedConnections {
    /// Waits until the base should be settled again: the wall clock, which was wrong, is right or was admitted, or the
    /// tokens are far behind it.
    pub(super) async fn clock_calls_for_a_fence(&self) {
        loop {
            sleep(CLOCK_CHECK).await;
            let Some(connection) = self.current.borrow().clone() else {
                continue;
            };
            let calls = match connection.refusal {
                Some(_) => match self.reached_since(&connection).await {
                    Ok(reached) => self.clock.floor(self.now(), reached).is_ok(),
                    Err(_) => false,
                },
                None => TokenClock::should_raise(self.now(), connection.reached),
            };
            if calls {
                return;
            }
        }
    }

    /// What the tokens have reached by now: another server may have raised the base.
    async fn reached_since(&self, connection: &FencedConnection) -> Result<u64, Failure> {
        let read = self.tree.get(connection.generation, &self.paths.base()).await?;
        let Some((base, stat)) = read else {
            return Ok(connection.reached);
        };
        let (base, number) = (read_number(&base)?, stat.modified.unsigned_abs());
        let reached = if is_usable(base, number) { base + number } else { 0 };
        Ok(reached.max(connection.reached))
    }

    /// Whether nothing may be granted over the present connection because of the wall clock.
    pub fn is_refused(&self) -> bool {
        self.current
            .borrow()
            .as_ref()
            .is_some_and(|connection| connection.refusal.is_some())
    }

    /// Follows the wall clock although it is far ahead of the tokens, and waits until this replica serves.
    ///
    /// # Errors
    /// The errors of [`TokenClock::admit`]; [`BackendError::NotSent`] if the store does not answer in time.
    pub async fn admit_clock(&self) -> Result<(), BackendError> {
        self.clock.admit()?;
        self.fence_again.notify_one();
        let mut health = self.health.subscribe();
        let serves = timeout(self.timeout, health.wait_for(|health| *health == Health::Serving)).await;
        match serves {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(not_sent(self.says("the token base could not be raised in time"))),
        }
    }
}
