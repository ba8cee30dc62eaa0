//! Watches the locks that have waiters of this replica, with one etcd watch per lock. The lock is read once after its
//! watch was opened, and again every 3 s, because released versions of etcd have lost events.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Event, WatchOptions, WatchResponse, WatchStream};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use super::LockTable;
use crate::backend::etcd::cluster::client::{ANSWER_BYTES, ClusterClient};
use crate::backend::etcd::cluster::{Failure, failure};
use crate::backend::etcd::data::keys::LockKeys;
use crate::backend::etcd::data::view::{Entry, Step, View};
use crate::name::LockName;

/// How soon a watch that broke is opened again.
const AGAIN: Duration = Duration::from_millis(100);
/// How often a watch checks whether it still has waiters.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// After how many of these checks the lock is read again.
const READ_EVERY: u32 = 3;

impl LockTable {
    /// Watches a lock until no waiter of this replica is left.
    pub(super) async fn follow(self: Arc<Self>, name: LockName) {
        let keys = self.keys.lock(&name);
        let mut ticks = interval(CHECK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        while !self.unwatch_if_unused(&name) {
            if self.follow_events(&keys, &name, &mut ticks).await.is_err() {
                self.with(&name, |state| state.view = None);
                sleep(AGAIN).await;
            }
        }
    }

    /// Ends the watch if it has no waiters, or the namespace is closed. True if it ended.
    pub(super) fn unwatch_if_unused(&self, name: &LockName) -> bool {
        self.with(name, |state| {
            let is_unused = state.own_waiters.is_empty() || self.closed.is_cancelled();
            if is_unused {
                (state.view, state.is_watched) = (None, false);
            }
            is_unused
        })
    }

    /// Follows one etcd watch, until it breaks or no waiter is left.
    async fn follow_events(&self, keys: &LockKeys, name: &LockName, ticks: &mut Interval) -> Result<(), Failure> {
        let mut events = open(&self.link, keys).await?;
        self.read(keys, name).await?;
        let mut ticked = 0;
        loop {
            tokio::select! {
                message = next_message(&mut events) => self.apply(keys, name, message?.events())?,
                _ = ticks.tick() => {
                    if self.with(name, |state| state.own_waiters.is_empty()) {
                        return Ok(());
                    }
                    ticked += 1;
                    if ticked % READ_EVERY == 0 {
                        self.read(keys, name).await?;
                    }
                }
            }
        }
    }

    /// Reads the lock, and notifies its waiters.
    async fn read(&self, keys: &LockKeys, name: &LockName) -> Result<(), Failure> {
        let view = View::fetch(&self.link, keys).await?;
        let due = self.with(name, |state| {
            state.update(view);
            let all: Vec<_> = state.own_waiters.keys().copied().collect();
            state.due_after(all)
        });
        self.notify(name, due);
        Ok(())
    }

    fn apply(&self, keys: &LockKeys, name: &LockName, events: &[Event]) -> Result<(), Failure> {
        let due = self.with(name, |state| {
            let mut touched = Vec::new();
            for event in events {
                let Some(view) = &mut state.view else { break };
                match view.follow(keys, event)? {
                    Step::Changed(suffix) => touched.extend(view.waiters.get(suffix).and_then(Entry::waiter_id)),
                    Step::LeftQueue(entry) => touched.extend(entry.waiter_id()),
                    Step::Queued(_) | Step::Granted(_) | Step::Ended(_) | Step::Nothing => {}
                }
            }
            Ok::<_, Failure>(state.due_after(touched))
        });
        self.notify(name, due?);
        Ok(())
    }
}

/// Opens a watch of a lock's keys from the current revision on, and returns once etcd has created it. (Etcd serves a
/// watch from an earlier revision with a loop that runs every 100 ms.)
pub async fn open(link: &ClusterClient, keys: &LockKeys) -> Result<WatchStream, Failure> {
    open_range(link, keys.all().to_owned(), keys.behind()).await
}

/// The same for a range of keys.
pub async fn open_range(link: &ClusterClient, first: String, behind: Vec<u8>) -> Result<WatchStream, Failure> {
    let options = WatchOptions::new().with_range(behind);
    let opened = link.call(|client| async move {
        let mut watch = client.watch_client().max_decoding_message_size(ANSWER_BYTES);
        let mut stream = watch.watch(first, Some(options)).await?;
        let created = stream.message().await?;
        Ok((stream, created))
    });
    match opened.await? {
        (stream, Some(created)) if created.created() && !created.canceled() => Ok(stream),
        _ => Err(Failure::Unavailable("etcd: a watch was refused".into())),
    }
}

/// The next message of a watch.
///
/// # Errors
/// When the watch ended.
pub async fn next_message(events: &mut WatchStream) -> Result<WatchResponse, Failure> {
    let message = events.message().await.map_err(|error| failure(&error))?;
    let message = message.filter(|message| !message.canceled());
    message.ok_or_else(|| Failure::Unavailable("etcd: a watch ended".into()))
}
