//! Detects leases that end early, because of a force-release or a store that lost them. The holder of an exclusive lock
//! watches it, and renews at once when it may have lost the lease.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures::stream::StreamExt;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::calls::Calls;
use super::held::Held;
use crate::api::proto::watch_lock_response::Event;
use crate::api::proto::{ChangeKind, WatchLockResponse};
use crate::backoff::Backoff;

/// How long a lease is held before its lock is watched, because most leases are released sooner.
const WATCH_AFTER: Duration = Duration::from_millis(500);
/// The pauses before a watch that ended is reopened. Meanwhile only renewals detect a loss.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));

/// Notifies `doubt` whenever the lease may have ended; only a renewal can verify that. Holders of a shared lock do not
/// watch it, because each would receive the changes of all the others.
pub(super) async fn watch(calls: &Calls, held: &Held, doubt: &Notify) -> Infallible {
    if !held.alone {
        return pending().await;
    }
    sleep(WATCH_AFTER).await;
    let mut backoff = BACKOFF;
    loop {
        if let Ok(events) = calls.watch(&held.namespace, &held.name).await {
            let mut events = pin!(events);
            while let Some(Ok(message)) = events.next().await {
                backoff.reset();
                if has_ended(&message, held.token) {
                    doubt.notify_one();
                }
            }
        }
        sleep(backoff.pause()).await;
    }
}

fn has_ended(message: &WatchLockResponse, token: u64) -> bool {
    match &message.event {
        Some(Event::State(state)) => state.holders.iter().all(|holder| holder.fencing_token != token),
        Some(Event::Change(change)) => {
            let ends = [
                ChangeKind::Released,
                ChangeKind::Expired,
                ChangeKind::Forced,
                ChangeKind::Left,
            ];
            change.fencing_token == token && ends.contains(&change.kind())
        }
        None => false,
    }
}
