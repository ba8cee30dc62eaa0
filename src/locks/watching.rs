//! The begin of a watch.

use std::future::ready;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::time::timeout;

use crate::backend::{BackendError, WatchEvent};

/// How long the store has for the first event: less than the time that clients give an answer.
const SHOWN_WITHIN: Duration = Duration::from_secs(4);

/// The same events, or an error if the first one does not come in time.
pub fn shown_in_time(
    mut seen: BoxStream<'static, Result<WatchEvent, BackendError>>,
) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
    let first = async move {
        match timeout(SHOWN_WITHIN, seen.next()).await {
            Ok(first) => stream::iter(first).chain(seen).boxed(),
            Err(_) => stream::once(ready(Err(BackendError::Unavailable {
                reason: format!("the store did not show the lock within {SHOWN_WITHIN:?}"),
            })))
            .boxed(),
        }
    };
    stream::once(first).flatten().boxed()
}
