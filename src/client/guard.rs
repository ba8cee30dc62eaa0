//! A lock that is held: it renews itself, tells when it is lost, and is given back in the end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::calls::Calls;
use super::error::{Error, Failed};
use super::keep_alive::{LeaseState, Loss, LeaseTerm, keep};
use crate::api::proto::Lease;
use crate::clock;

/// A lock that is held. Dropped, it gives the lock back in the background, which a runtime that ends
/// at once does not wait for; [`LockGuard::release`] says when that is done.
#[derive(Debug)]
pub struct LockGuard {
    lease: Lease,
    known: watch::Receiver<LeaseState>,
    /// Dropped, it tells the keeping task to give the lease back.
    stop: oneshot::Sender<()>,
    keeping: JoinHandle<Result<(), Error>>,
}

/// What a guard's lease is for.
#[derive(Debug)]
pub(super) struct Held {
    pub lease_id: String,
    pub namespace: String,
    pub name: String,
    pub token: u64,
    /// Nobody shares the lock with it.
    pub alone: bool,
}

impl LockGuard {
    pub(super) fn new(calls: Arc<Calls>, lease: Lease, alone: bool, term: LeaseTerm) -> Self {
        let (told, known) = watch::channel(LeaseState::Held(term));
        let (stop, stopped) = oneshot::channel();
        let held = Held {
            lease_id: lease.lease_id.clone(),
            namespace: lease.namespace.clone(),
            name: lease.name.clone(),
            token: lease.fencing_token,
            alone,
        };
        let keeping = tokio::spawn(keep(calls, held, term, told, stopped));
        Self {
            lease,
            known,
            stop,
            keeping,
        }
    }

    /// The lease as it was granted.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The number for the protected resource to compare: it rises with every grant of the lock.
    pub fn fencing_token(&self) -> u64 {
        self.lease.fencing_token
    }

    /// Whether the lease can be counted on at this moment. It looks at the clock, so it is true no
    /// longer than it may be, also where nothing else had time to run.
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// For how long the lease can be counted on if no renewal succeeds; zero once it is or may be lost.
    pub fn remaining(&self) -> Duration {
        match &*self.known.borrow() {
            LeaseState::Held(term) => term.end.saturating_sub(clock::since_boot()),
            LeaseState::Lost(_) => Duration::ZERO,
        }
    }

    /// The end of the time that [`LockGuard::remaining`] tells, on the clock
    /// [since boot](clock::since_boot).
    pub fn end(&self) -> Duration {
        clock::since_boot() + self.remaining()
    }

    /// Ready as soon as the lease is or may be lost, and when it was given back. May be asked for
    /// often, and outlives the guard.
    ///
    /// # Cancellation safety
    /// Dropped, it has done nothing.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        self.ending(Duration::ZERO)
    }

    /// Like [`LockGuard::lost`], and also ready when less than `before` is left of the time in which
    /// the lease can be counted on: for whoever needs a moment to stop.
    ///
    /// # Cancellation safety
    /// Dropped, it has done nothing.
    pub fn ending(&self, before: Duration) -> impl Future<Output = Loss> + Send + use<> {
        let mut known = self.known.clone();
        async move {
            loop {
                let end = match &*known.borrow_and_update() {
                    LeaseState::Held(term) => term.end,
                    LeaseState::Lost(loss) => return loss.clone(),
                };
                tokio::select! {
                    changed = known.changed() => if changed.is_err() {
                        return Loss::GivenBack;
                    },
                    () = clock::sleep_until(end.saturating_sub(before)) => return Loss::Unrenewed,
                }
            }
        }
    }

    /// Each time until which the lease can be counted on, from now on: a stream for whoever must
    /// know it elsewhere. Ready with the next one, on the clock [since boot](clock::since_boot), or
    /// with nothing once the lease is lost.
    pub async fn renewed(&mut self) -> Option<Duration> {
        self.known.changed().await.ok()?;
        match &*self.known.borrow_and_update() {
            LeaseState::Held(term) => Some(term.end),
            LeaseState::Lost(_) => None,
        }
    }

    /// Gives the lock back, and returns when that is done.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when the lease had ended before; what was done under it may have been
    /// done beside another holder. [`Error::Unreachable`] when nobody answered: the lease ends by itself.
    ///
    /// # Cancellation safety
    /// Dropped, the lock is given back all the same.
    pub async fn release(self) -> Result<(), Error> {
        drop(self.stop);
        match self.keeping.await {
            Ok(released) => released,
            Err(ended) => Err(Failed::refused("RUNTIME_ENDED", &ended.to_string()).error),
        }
    }
}
