//! How long a waiting call tolerates a store that does not serve.
//!
//! A step counts from its beginning, because a store that hangs fails it only after a time. A call that arrives
//! during an outage counts from the moment at which the health changed: in a long outage it fails with its first
//! step, and holds no permit for 5 s.
//!
//! Usually only the first waiter of a lock asks the store. If it hangs, the waiters would fail one after the other.
//! So all ask once the store has not served for 2 s; a hung step then fails them together after 5 s. Where the store
//! still serves their lock, as a cluster may without one of its nodes, they go on.
//!
//! An attempt of unknown outcome is undone before the next one. If the undo finds that another call has adopted the
//! claim, the attempt ends with SUPERSEDED.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::local_waiters::LocalWaiters;
use crate::backend::{BackendError, Health, Notification};
use crate::name::Namespace;
use crate::supervisor::supervise;

mod health_log;

use self::health_log::HealthLog;

/// How long a waiting call tolerates an unavailable store.
pub const OUTAGE_TOLERANCE: Duration = Duration::from_secs(5);
/// How long the first step of a waiting call may take while the store does not serve.
const STEP_TOLERANCE: Duration = Duration::from_secs(3);
/// The delay between attempts on an unavailable store.
pub const RETRY_DELAY: Duration = Duration::from_millis(100);

/// When the store stopped serving, as its health says; absent while it serves.
#[derive(Debug, Clone, Default)]
pub(super) struct NotServingSince(Arc<Mutex<Option<Instant>>>);

impl NotServingSince {
    /// Follows the health of a store until the store is dropped, and logs it. While the store does not serve, all waiting
    /// calls try their promotion once, in time for those that get no answer to fail together.
    pub fn follow(
        mut health: watch::Receiver<Health>,
        waiters: &Arc<LocalWaiters>,
        (namespace, draining): (Namespace, &CancellationToken),
    ) -> Self {
        let (since, waiters) = (Self::default(), Arc::clone(waiters));
        since.update(&health.borrow_and_update());
        let log = HealthLog::new(namespace, draining, &health.borrow());
        let following = Following {
            since: since.clone(),
            health,
            waiters,
            log,
        };
        supervise("health", following, |following| following.run().boxed());
        since
    }

    fn update(&self, health: &Health) {
        let mut since = self.0.lock();
        *since = (*health != Health::Serving).then(|| since.unwrap_or_else(Instant::now));
    }

    pub fn get(&self) -> Option<Instant> {
        *self.0.lock()
    }
}

/// See [`NotServingSince::follow`].
struct Following {
    since: NotServingSince,
    health: watch::Receiver<Health>,
    waiters: Arc<LocalWaiters>,
    log: HealthLog,
}

impl Following {
    async fn run(&mut self) {
        // A change that was seen by an earlier run may have had no effect.
        self.health.mark_changed();
        let mut tried = None;
        loop {
            let of_outage = self.since.get().filter(|since| tried != Some(*since));
            let try_at = of_outage.map(|since| since + (OUTAGE_TOLERANCE - STEP_TOLERANCE));
            tokio::select! {
                biased;
                changed = self.health.changed() => match changed {
                    Ok(()) => {
                        let health = self.health.borrow_and_update().clone();
                        self.since.update(&health);
                        self.log.update(&health);
                    }
                    Err(_) => return,
                },
                () = sleep_until_some(self.log.due()) => self.log.write_due(),
                () = sleep_until_some(try_at) => {
                    tried = of_outage;
                    self.waiters.deliver(&Notification::Gap);
                }
            }
        }
    }
}

/// The outage of the store that a waiting call is in, if any.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    last: Option<BackendError>,
}

impl Outage {
    /// An outage that is already going on, if `since` is set: a call counts from its beginning, so it fails at once in a
    /// long outage.
    pub fn since(since: Option<Instant>) -> Self {
        Self { since, last: None }
    }

    /// Counts the outage of a step that begins now from when the store stopped serving, if it did. However long ago that
    /// was, the first step has 3 s: a store may serve some locks and others not.
    pub fn began_by(&mut self, not_serving_since: Option<Instant>) {
        let now = Instant::now();
        let most = OUTAGE_TOLERANCE - STEP_TOLERANCE;
        let since = not_serving_since.map(|since| now - now.duration_since(since).min(most));
        self.since = self.since.into_iter().chain(since).min();
    }

    /// When to give up a step. Absent outside of an outage.
    pub fn give_up_at(&self) -> Option<Instant> {
        self.since.map(|since| since + OUTAGE_TOLERANCE)
    }

    /// Whether to tolerate this error of a step that began at that moment: it is transient, the outage has lasted less
    /// than 5 s, and it is not known to last longer. It counts from the beginning of the step, because a store that hangs
    /// fails a step only after a time.
    pub fn tolerates(&mut self, error: &BackendError, began: Instant) -> bool {
        let since = *self.since.get_or_insert(began);
        self.last = Some(error.clone());
        let left = match error {
            BackendError::Quarantined { left, .. } => *left,
            _ => Duration::ZERO,
        };
        error.is_transient() && since.elapsed() + left < OUTAGE_TOLERANCE
    }

    /// Records that the store has not answered at all: nobody knows whether the lock is held.
    pub fn begin(&mut self) {
        self.last.get_or_insert_with(|| BackendError::Unavailable {
            reason: "the store did not answer within the wait".into(),
        });
    }

    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// The last error that was tolerated.
    pub fn last_error(&self) -> Option<&BackendError> {
        self.last.as_ref()
    }
}

pub(super) async fn sleep_until_some(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}
