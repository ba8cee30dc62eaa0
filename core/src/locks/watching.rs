//! A watch over outages of its store.
//!
//! The stream of a store's watch ends with its first error; this module opens the next one.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::outage::{RETRY_DELAY, sleep_until_some};
use crate::backend::{Backend, BackendError, Health, InspectLimit, WatchEvent};
use crate::name::LockName;

/// How long the store has to show the lock at first and after a failure, and for how long it may hang: less than the time
/// that clients give an answer.
const SHOWN_WITHIN: Duration = Duration::from_secs(4);
/// How long a store that hangs has to show the lock after all.
const LAST_TRY: Duration = Duration::from_secs(1);

/// Watches a lock. A stream that fails is opened again, so a full state follows. The watch fails if the store does not
/// show the lock within 4 s.
pub(super) fn watch(
    backend: &Arc<dyn Backend>,
    lock: LockName,
) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
    let watching = Watching {
        health: backend.health(),
        backend: Arc::clone(backend),
        lock,
        events: None,
        shown_by: Some(Instant::now() + SHOWN_WITHIN),
    };
    stream::unfold(Some(watching), |watching| async move {
        let mut watching = watching?;
        let event = watching.next().await?;
        let goes_on = event.is_ok();
        Some((event, goes_on.then_some(watching)))
    })
    .boxed()
}

struct Watching {
    backend: Arc<dyn Backend>,
    health: watch::Receiver<Health>,
    lock: LockName,
    events: Option<BoxStream<'static, Result<WatchEvent, BackendError>>>,
    /// When the lock must have been shown: after the beginning, and after a failure.
    shown_by: Option<Instant>,
}

impl Watching {
    async fn next(&mut self) -> Option<Result<WatchEvent, BackendError>> {
        let mut last = None;
        loop {
            let events = self.events.get_or_insert_with(|| self.backend.watch(&self.lock));
            let event = tokio::select! {
                biased;
                event = events.next() => event?,
                () = sleep_until_some(self.shown_by) => return Some(Err(last.unwrap_or_else(not_shown))),
                error = hangs(&mut self.health, &*self.backend, &self.lock) => return Some(Err(error)),
            };
            let error = match event {
                Err(error) if error.is_transient() => error,
                event => {
                    self.shown_by = None;
                    return Some(event);
                }
            };
            self.events = None;
            let shown_by = *self.shown_by.get_or_insert_with(|| Instant::now() + SHOWN_WITHIN);
            if Instant::now() + RETRY_DELAY >= shown_by {
                return Some(Err(error));
            }
            last = Some(error);
            sleep(RETRY_DELAY).await;
        }
    }
}

/// Returns when the store has been unavailable for 4 s and does not show the lock, though the stream did not fail. A store
/// whose health is that of several servers may still serve this lock.
async fn hangs(health: &mut watch::Receiver<Health>, backend: &dyn Backend, lock: &LockName) -> BackendError {
    let is_unavailable = |health: &Health| matches!(health, Health::Unavailable { .. });
    loop {
        if health.wait_for(is_unavailable).await.is_err() {
            return pending().await;
        }
        let back = health.wait_for(|health| !is_unavailable(health));
        let is_back = timeout(SHOWN_WITHIN, back).await.is_ok();
        if is_back {
            continue;
        }
        match timeout(LAST_TRY, backend.inspect(lock, InspectLimit::of_each(0))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return error,
            Err(_) => return not_shown(),
        }
    }
}

fn not_shown() -> BackendError {
    BackendError::Unavailable {
        reason: "the store did not show the lock in time".into(),
    }
}
