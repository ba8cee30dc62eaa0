//! Records the claims that other servers forcibly release, while a stream keeps leases of the namespace.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{BoxStream, StreamExt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Ledger;
use crate::backend::{Backend, Forced};
use crate::supervisor::supervise;

/// The pause before a stream that ended is opened again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the stream stays open after the last watched lease, because others may follow.
const LINGER: Duration = Duration::from_secs(5);

/// Records the forced releases of `backend` in `ledger` while the ends of leases are watched, until the ledger is dropped.
/// What is missed meanwhile, the next renewal finds. Must be called within a tokio runtime.
pub fn record(backend: &Arc<dyn Backend>, ledger: &Arc<Ledger>) {
    let watched = (Arc::downgrade(backend), Arc::downgrade(ledger), ledger.is_watched());
    supervise("forced releases", watched, |(backend, ledger, is_watched)| {
        record_while_watched(backend, ledger, is_watched).boxed()
    });
}

async fn record_while_watched(
    backend: &Weak<dyn Backend>,
    ledger: &Weak<Ledger>,
    is_watched: &mut watch::Receiver<bool>,
) {
    while is_watched.wait_for(|is_watched| *is_watched).await.is_ok() {
        let Some(forced) = backend.upgrade().and_then(|backend| backend.forced()) else {
            return;
        };
        let record = |forced: Forced| {
            if let Some(ledger) = ledger.upgrade() {
                ledger.forced_elsewhere(&forced.lock, forced.token);
            }
        };
        tokio::select! {
            () = record_all(forced, record) => sleep(PAUSE).await,
            () = until_unwatched(is_watched) => {}
        }
    }
}

async fn record_all(mut forced: BoxStream<'static, Forced>, record: impl Fn(Forced)) {
    while let Some(claim) = forced.next().await {
        record(claim);
    }
}

/// Returns when no lease has been watched for some time, or the ledger was dropped.
async fn until_unwatched(is_watched: &mut watch::Receiver<bool>) {
    loop {
        if is_watched.wait_for(|is_watched| !is_watched).await.is_err() {
            return;
        }
        let watched_again = is_watched.wait_for(|is_watched| *is_watched);
        if !matches!(timeout(LINGER, watched_again).await, Ok(Ok(_))) {
            return;
        }
    }
}
