//! Ends the leases that this replica has watched for their whole life.
//!
//! The lease is read before it is deleted, because another replica may have renewed it; a refused deletion would take
//! the other steps of its commit along.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use super::Replica;
use super::end::Ending;
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::backend::tree::leases::Lease;
use crate::backend::tree::store::Failure;
use crate::claim::Cause;

/// How many leases are ended at once.
const AT_ONCE: usize = 256;
/// The pause after a failure.
const AGAIN: Duration = Duration::from_millis(100);

impl Replica {
    /// See the module.
    pub async fn expire_all(self: Arc<Self>) {
        let mut connections = self.connections.current();
        let mut connected = None;
        loop {
            let ended = tokio::select! {
                biased;
                changed = connections.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = connections.borrow_and_update().clone();
                    if let Some(connection) = now.filter(|connection| connected != Some(connection.generation))
                        && connected.replace(connection.generation).is_some()
                    {
                        self.read_again(&connection).await;
                    }
                    continue;
                }
                ended = self.leases.ended(AT_ONCE) => ended,
                // Last, because renewals change holders too, and many of them must not delay an end.
                changed = self.leases.changed() => {
                    self.read_changed(&changed).await;
                    continue;
                }
            };
            let results = join_all(ended.iter().map(|lease| self.expire(lease))).await;
            if let Some(Err(failure)) = results.into_iter().find(Result::is_err) {
                tracing::debug!(%failure, "leases could not be ended yet");
                sleep(AGAIN).await;
            }
        }
    }

    /// Reads all known holders again over a new connection: an old copy of the store may have been put back, and a
    /// version may have been written twice. What is not read for a failure is read when it is needed.
    async fn read_again(&self, connection: &FencedConnection) {
        self.buckets.lock().clear();
        let known = self.leases.known_before(connection.generation);
        for some in known.chunks(AT_ONCE) {
            let read = some
                .iter()
                .map(|lease| self.read_holder(connection, &lease.lock, &lease.child));
            join_all(read).await;
        }
    }

    /// Reads holders that have another version. What is not read for a failure is read when its lease is over.
    async fn read_changed(&self, changed: &[Lease]) {
        let Ok(connection) = self.connections.ready().await else {
            return;
        };
        for some in changed.chunks(AT_ONCE) {
            let read = some
                .iter()
                .map(|lease| self.read_holder(&connection, &lease.lock, &lease.child));
            join_all(read).await;
        }
    }

    /// A lease as it may be ended, if it is over. An own one is not read: its deletion goes over the connection over which it
    /// was written, or not at all.
    async fn if_over(&self, connection: &FencedConnection, lease: &Lease) -> Result<Option<Lease>, Failure> {
        if lease.is_own {
            return Ok(Some(lease.clone()));
        }
        let now = self.read_holder(connection, &lease.lock, &lease.child).await?;
        Ok(now.filter(|now| self.leases.remaining(now).is_zero()))
    }

    /// Ends a lease that was seen for its whole life, unless it was renewed.
    pub async fn expire(&self, lease: &Lease) -> Result<(), Failure> {
        let connection = self.connections.ready().await?;
        // A deletion that is refused would take the other steps of its commit along.
        let Some(lease) = &self.if_over(&connection, lease).await? else {
            return Ok(());
        };
        let ending = Ending {
            lease,
            hold: None,
            cause: Cause::Expired,
            keep_for: None,
        };
        if self.end(ending, None).await?.is_none() {
            self.read_holder(&connection, &lease.lock, &lease.child).await?;
        }
        Ok(())
    }
}
