//! Being told at once that a lease has ended before its time, by force or by a store that lost it:
//! whoever holds a lock alone watches it.

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

/// How long a lease is held before it is watched: most are given back sooner.
const SETTLED: Duration = Duration::from_millis(500);
/// How soon a watch that ended is begun again: at first, and at last. Until then a renewal tells.
const AGAIN: Duration = Duration::from_millis(250);
const AT_LAST: Duration = Duration::from_secs(30);

/// Rings whenever a lease may have ended: only a renewal can tell. Those who share a lock do not watch
/// it, for each of them would be told of all the others.
pub(super) async fn watch(calls: &Calls, held: &Held, doubt: &Notify) -> Infallible {
    if !held.alone {
        return pending().await;
    }
    sleep(SETTLED).await;
    let mut again = AGAIN;
    loop {
        if let Ok(seen) = calls.watch(&held.namespace, &held.name).await {
            let mut seen = pin!(seen);
            while let Some(Ok(message)) = seen.next().await {
                again = AGAIN;
                if has_ended(&message, held.token) {
                    doubt.notify_one();
                }
            }
        }
        sleep(again).await;
        again = (again * 2).min(AT_LAST);
    }
}

fn has_ended(message: &WatchLockResponse, token: u64) -> bool {
    match &message.event {
        Some(Event::State(state)) => state.holders.iter().all(|holder| holder.fencing_token != token),
        Some(Event::Change(change)) => {
            let over = [
                ChangeKind::Released,
                ChangeKind::Expired,
                ChangeKind::Forced,
                ChangeKind::Left,
            ];
            change.fencing_token == token && over.contains(&change.kind())
        }
        None => false,
    }
}
