//! A held lock: renews its lease, reports its loss, and releases it.

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use super::calls::{CALL, time};
use super::error::{Error, Failed};
use super::keep_alive::{KeepAlive, KeptLease};
use super::lease_term::{LeaseState, LeaseTerm, Loss};
use crate::clock;
use crate::proto::Lease;

/// A held lock. Dropping it releases the lock in the background; a runtime that ends at once does not wait for that.
/// [`LockGuard::release`] returns when the lock was released. The runtime in which it was acquired keeps the lease, and must
/// be driven.
pub struct LockGuard {
    lease: Arc<Lease>,
    keep_alive: Arc<KeepAlive>,
    state: watch::Receiver<LeaseState>,
    /// Dropping it makes the task release the lease.
    stop: oneshot::Sender<Leave>,
    release_task: JoinHandle<Result<(), Error>>,
}

impl fmt::Debug for LockGuard {
    /// Without the id of the lease, with which anyone could release it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("lock", &self.lease.name)
            .field("fencing_token", &self.lease.fencing_token)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

/// The guard ends without a release.
#[derive(Debug)]
struct Leave;

impl LockGuard {
    /// Keeps a lease whose request was sent at `sent`.
    pub(super) fn new(keep_alive: Arc<KeepAlive>, lease: Lease, sent: Duration) -> Self {
        let term = LeaseTerm::granted(sent + time(lease.waited), time(lease.ttl));
        let (sender, state) = watch::channel(LeaseState::Held(term));
        let (stop, stopped) = oneshot::channel();
        let (sender, lease) = (Arc::new(sender), Arc::new(lease));
        let kept = keep_alive.keep(&lease.lease_id, term, Arc::clone(&sender));
        let release = release_when_stopped(stopped, Arc::clone(&keep_alive), kept, Arc::clone(&lease), sender);
        let release_task = tokio::spawn(release);
        Self {
            lease,
            keep_alive,
            state,
            stop,
            release_task,
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

    /// The fencing token, if the lease is still valid. It reads the clock, as [`LockGuard::is_held`] does.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the lease is or may be lost.
    pub fn check(&self) -> Result<u64, Error> {
        if self.is_held() {
            return Ok(self.fencing_token());
        }
        let cause = match &*self.state.borrow() {
            LeaseState::Lost(loss) => loss.cause().to_owned(),
            LeaseState::Held(_) => Loss::Unrenewed.cause().to_owned(),
        };
        Err(Error::LeaseLost { cause })
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

    /// Extends the lease to `ttl` from now, if it ends sooner. Later renewals are for this TTL.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], [`Error::Unreachable`], and [`Error::Refused`] for a TTL beyond the namespace's bounds.
    ///
    /// # Cancellation safety
    /// When dropped, the lease may have been extended.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        let renewed = self.keep_alive.open_calls()?.renew(&self.lease.lease_id, Some(ttl));
        renewed.await.map(drop)
    }

    /// Ends the renewals without a release: the lock stays held until the lease's TTL is over.
    pub async fn leave(self) {
        // Both fail only if the runtime of the task has ended, and its renewals with it.
        let _ = self.stop.send(Leave);
        let _ = self.release_task.await;
    }

    /// Releases the lock and waits for the result. Where other guards of this client have the same lease, because their
    /// requests had the same request id, the last of them releases it.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the lease had ended before: another claim may have held the lock at the same time.
    /// [`Error::Unreachable`] when no server answered: the lease then expires.
    ///
    /// # Cancellation safety
    /// When dropped, the lock is released in the background.
    pub async fn release(self) -> Result<(), Error> {
        drop(self.stop);
        match self.release_task.await {
            Ok(released) => released,
            Err(ended) => Err(Failed::refused("RUNTIME_ENDED", &ended.to_string()).error),
        }
    }
}

/// Logs once that the lease is or may be lost.
async fn log_loss_of(lease: &Lease, mut state: watch::Receiver<LeaseState>) -> Infallible {
    if let Ok(state) = state.wait_for(|state| matches!(state, LeaseState::Lost(_))).await
        && let LeaseState::Lost(loss) = &*state
    {
        log_loss(lease, loss);
    }
    pending().await
}

fn log_loss(lease: &Lease, loss: &Loss) {
    let (namespace, lock, token) = (&lease.namespace, &lease.name, lease.fencing_token);
    warn!(namespace, lock, token, cause = loss.cause(), "lease lost");
}

/// Keeps the lease until its guard stops it, then releases it unless the guard leaves it.
///
/// # Errors
/// The errors of the Release.
async fn release_when_stopped(
    stopped: oneshot::Receiver<Leave>,
    keep_alive: Arc<KeepAlive>,
    kept: KeptLease,
    lease: Arc<Lease>,
    state: Arc<watch::Sender<LeaseState>>,
) -> Result<(), Error> {
    let mut closing = keep_alive.closing();
    let is_left = tokio::select! {
        // First, because a guard may end when it is lost.
        biased;
        never = log_loss_of(&lease, state.subscribe()) => match never {},
        // It fails when the guard is dropped, which stops this task too.
        left = stopped => left.is_ok(),
        () = closing.closed() => false,
    };
    let is_last = kept.stop();
    let (mut cause, mut end) = (None, Duration::ZERO);
    state.send_if_modified(|current| match current {
        LeaseState::Held(term) => {
            end = term.end;
            let is_over = end <= clock::since_boot();
            let loss = if is_over { Loss::Unrenewed } else { Loss::GivenBack };
            if is_over {
                log_loss(&lease, &loss);
                cause = Some(loss.cause().to_owned());
            }
            *current = LeaseState::Lost(loss);
            true
        }
        LeaseState::Lost(loss) => {
            cause = Some(loss.cause().to_owned());
            false
        }
    });
    match cause {
        // The server may count it longer, and nobody waits for the answer.
        Some(cause) if cause == Loss::Unrenewed.cause() => {
            tokio::spawn(async move { keep_alive.calls().release(&lease.lease_id, CALL).await });
            Err(lost_unrenewed())
        }
        Some(cause) => Err(Error::LeaseLost { cause }),
        // The lease is also that of another guard, whose request found it.
        None if !is_last || is_left => Ok(()),
        None => {
            let left = end.saturating_sub(clock::since_boot());
            match keep_alive.calls().release(&lease.lease_id, left).await {
                // The lease has ended meanwhile.
                Err(Error::Unreachable { .. }) if end <= clock::since_boot() => Err(lost_unrenewed()),
                released => released,
            }
        }
    }
}

fn lost_unrenewed() -> Error {
    let cause = Loss::Unrenewed.cause().to_owned();
    Error::LeaseLost { cause }
}
