//! The locks of a namespace that are in use, page by page.

use std::time::Duration;

use super::Engine;
use super::root::LockRecord;
use super::store::{Root, Stamp};
use crate::backend::{Backend, BackendError, InspectLimit, LockPage, LockSummary, PageRequest};
use crate::name::LockName;

/// How many roots are read at once: at least, and at most.
const LISTED: (usize, usize) = (64, 256);
/// How many roots a page reads at most: those of locks that are not in use are not in the page.
const LOOKED: usize = 1_000;

impl Engine {
    /// A page of the locks whose names begin with `prefix`.
    pub(super) async fn page(&self, prefix: &str, page: PageRequest) -> Result<LockPage, BackendError> {
        let mut locks: Vec<LockSummary> = Vec::new();
        let mut after = page.after;
        let (mut looked, size) = (0, (page.size + 1).clamp(LISTED.0, LISTED.1));
        loop {
            let found = self.core.store.list(prefix, after.as_deref(), size).await?;
            let is_last = found.len() < size;
            for (lock, root, now) in found {
                let name = lock.as_str().to_owned();
                let summary = match looked < LOOKED {
                    true => self.summary(lock, &root, now).await?,
                    false => return Ok(LockPage { locks, next: after }),
                };
                if summary.is_some() && locks.len() == page.size {
                    return Ok(LockPage { locks, next: after });
                }
                locks.extend(summary);
                (looked, after) = (looked + 1, Some(name));
            }
            if is_last {
                return Ok(LockPage { locks, next: None });
            }
        }
    }

    /// A lock of a list; absent if it is not in use. An end that is found is written before it is shown.
    async fn summary(&self, lock: LockName, root: &Root, now: Stamp) -> Result<Option<LockSummary>, BackendError> {
        // A root that cannot be read concerns its own lock alone.
        let record = match LockRecord::read(root) {
            Ok(record) => record,
            Err(error) => {
                self.core.unreadable.note(lock.as_str(), &error);
                return Ok(None);
            }
        };
        let clock = Duration::from_micros(now.clock.0);
        let has_lost = || record.waiters().any(|waiter| self.core.is_lost(waiter.replica));
        let mut summary = LockSummary {
            holders: record.queue.holders(),
            waiters: record.queue.waiters(),
            first: record.queue.first_holder(clock),
            lock,
        };
        if record.first_end().is_some_and(|ends| ends <= clock) || has_lost() {
            let first = InspectLimit { holders: 1, waiters: 0 };
            let queue = match self.inspect(&summary.lock, first).await {
                Err(error @ BackendError::Broken { .. }) => {
                    self.core.unreadable.note(summary.lock.as_str(), &error);
                    return Ok(None);
                }
                queue => queue?,
            };
            (summary.holders, summary.waiters) = (queue.holder_count, queue.waiter_count);
            summary.first = queue.holders.into_iter().next();
        }
        Ok((summary.holders + summary.waiters > 0).then_some(summary))
    }
}
