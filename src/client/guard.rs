//! A held lock: renews its lease, reports its loss, and releases it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::calls::Calls;
use super::error::{Error, Failed};
use super::keep_alive::{LeaseState, LeaseTerm, Loss, keep};
use crate::api::proto::Lease;
use crate::clock;

/// A held lock. Dropping it releases the lock in the background; a runtime that ends at once does not wait for that.
/// [`LockGuard::release`] returns when the lock was released.
#[derive(Debug)]
pub struct LockGuard {
    lease: Lease,
    state: watch::Receiver<LeaseState>,
    /// Dropping it makes the keep-alive task release the lease.
    stop: oneshot::Sender<()>,
    keep_alive_task: JoinHandle<Result<(), Error>>,
}

/// The lease and lock of a guard.
#[derive(Debug)]
pub(super) struct Held {
    pub lease_id: String,
    pub namespace: String,
    pub name: String,
    pub token: u64,
    /// Whether the lock is held exclusively.
    pub alone: bool,
}

impl LockGuard {
    pub(super) fn new(calls: Arc<Calls>, lease: Lease, alone: bool, term: LeaseTerm) -> Self {
        let (state_sender, state) = watch::channel(LeaseState::Held(term));
        let (stop, stopped) = oneshot::channel();
        let held = Held {
            lease_id: lease.lease_id.clone(),
            namespace: lease.namespace.clone(),
            name: lease.name.clone(),
            token: lease.fencing_token,
            alone,
        };
        let keep_alive_task = tokio::spawn(keep(calls, held, term, state_sender, stopped));
        Self {
            lease,
            state,
            stop,
            keep_alive_task,
        }
    }

    /// The lease as it was granted.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The fencing token, which the protected resource compares. It increases with every grant of the lock.
    pub fn fencing_token(&self) -> u64 {
        self.lease.fencing_token
    }

    /// Whether the lease is still valid. It reads the clock, so that the result is correct even if no task has run
    /// meanwhile.
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// The time until the lease may be lost if no renewal succeeds; zero once it is or may be lost.
    pub fn remaining(&self) -> Duration {
        match &*self.state.borrow() {
            LeaseState::Held(term) => term.end.saturating_sub(clock::since_boot()),
            LeaseState::Lost(_) => Duration::ZERO,
        }
    }

    /// The end of [`LockGuard::remaining`], on the clock [since boot](clock::since_boot).
    pub fn end(&self) -> Duration {
        clock::since_boot() + self.remaining()
    }

    /// Resolves when the lease is or may be lost, and when it was released. May be called repeatedly; the future may
    /// outlive the guard.
    ///
    /// # Cancellation safety
    /// Dropping the future has no effect.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        self.ending(Duration::ZERO)
    }

    /// Resolves like [`LockGuard::lost`], and also when less than `before` of the lease's time is left. For callers
    /// that need time to stop.
    ///
    /// # Cancellation safety
    /// Dropping the future has no effect.
    pub fn ending(&self, before: Duration) -> impl Future<Output = Loss> + Send + use<> {
        let mut state = self.state.clone();
        async move {
            loop {
                let end = match &*state.borrow_and_update() {
                    LeaseState::Held(term) => term.end,
                    LeaseState::Lost(loss) => return loss.clone(),
                };
                tokio::select! {
                    changed = state.changed() => if changed.is_err() {
                        return Loss::GivenBack;
                    },
                    () = clock::sleep_until(end.saturating_sub(before)) => return Loss::Unrenewed,
                }
            }
        }
    }

    /// Resolves at the next renewal. Returns the new end of the lease's time, on the clock [since
    /// boot](clock::since_boot), or `None` once the lease is lost.
    pub async fn renewed(&mut self) -> Option<Duration> {
        self.state.changed().await.ok()?;
        match &*self.state.borrow_and_update() {
            LeaseState::Held(term) => Some(term.end),
            LeaseState::Lost(_) => None,
        }
    }

    /// Releases the lock and waits for the result.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the lease had ended before: another claim may have held the lock at the same time.
    /// [`Error::Unreachable`] when no server answered: the lease then expires.
    ///
    /// # Cancellation safety
    /// When dropped, the lock is released in the background.
    pub async fn release(self) -> Result<(), Error> {
        drop(self.stop);
        match self.keep_alive_task.await {
            Ok(released) => released,
            Err(ended) => Err(Failed::refused("RUNTIME_ENDED", &ended.to_string()).error),
        }
    }
}
