//! Ends the leases that this replica has watched for their whole life.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::sleep;

use super::Replica;
use crate::backend::zookeeper::client::Failure;
use crate::backend::zookeeper::leases::Lease;
use crate::claim::Cause;

/// How many leases are ended at once.
const AT_ONCE: usize = 256;
/// The pause after a failure.
const AGAIN: Duration = Duration::from_millis(100);

impl Replica {
    /// Ends leases until the namespace is closed.
    pub async fn expire_all(self: Arc<Self>) {
        let closed = self.epochs.closed().clone();
        let mut epochs = self.epochs.current();
        let mut session = None;
        let run = async {
            loop {
                let ended = tokio::select! {
                    ended = self.leases.ended(AT_ONCE) => ended,
                    changed = epochs.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        let now = epochs.borrow_and_update().as_ref().map(|epoch| epoch.session);
                        if let Some(now) = now {
                            // An old copy of the store may have been put back.
                            if session.replace(now).is_some_and(|before| before != now) {
                                self.leases.forget_all();
                                self.buckets.lock().clear();
                            }
                        }
                        continue;
                    }
                };
                let results = join_all(ended.iter().map(|lease| self.expire(lease))).await;
                if let Some(Err(failure)) = results.into_iter().find(Result::is_err) {
                    tracing::debug!(%failure, "leases could not be ended yet");
                    sleep(AGAIN).await;
                }
            }
        };
        closed.run_until_cancelled(run).await;
    }

    /// Ends a lease whose version was seen for its whole life, or reads the version that replaced it.
    pub async fn expire(&self, lease: &Lease) -> Result<(), Failure> {
        let epoch = self.epochs.ready().await?;
        if !self.end_all(&lease.lock, lease, Cause::Expired).await? {
            self.leases.forget(&lease.lock, &lease.child.name);
            self.read_holder(&epoch, &lease.lock, &lease.child).await?;
        }
        Ok(())
    }
}
