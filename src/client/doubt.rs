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
use super::guard::Held;
use crate::api::proto::watch_lock_response::Event;
use crate::api::proto::{ChangeKind, WatchLockResponse};

/// How long a lease is held before its lock is watched, because most leases are released sooner.
const WATCH_AFTER: Duration = Duration::from_millis(500);
/// The first and the longest pause before a watch that ended is reopened. Meanwhile only renewals detect a loss.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Notifies `doubt` whenever the lease may have ended; only a renewal can verify that. Holders of a shared lock do not
/// watch it, because each would receive the changes of all the others.
pub(super) async fn watch(calls: &Calls, held: &Held, doubt: &Notify) -> Infallible {
    if !held.alone {
        return pending().await;
    }
    sleep(WATCH_AFTER).await;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Ok(events) = calls.watch(&held.namespace, &held.name).await {
            let mut events = pin!(events);
            while let Some(Ok(message)) = events.next().await {
                pause = FIRST_PAUSE;
                if has_ended(&message, held.token) {
                    doubt.notify_one();
                }
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
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
