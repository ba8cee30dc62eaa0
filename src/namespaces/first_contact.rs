//! Whether the store of each namespace has served, or was in quarantine, once since the start.
//!
//! A server that is ready before that takes the place of one that serves: a rolling restart with a wrong name of a database
//! would replace them all. The time is bounded, so that servers which start during an outage of a store come up.

use std::time::Duration;

use futures::future::join_all;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Namespaces;
use crate::backend::Health;

impl Namespaces {
    /// The namespaces whose stores are waited for, by name. The server is not ready while there are any.
    pub fn not_yet_served(&self) -> Vec<String> {
        self.not_yet_served.lock().iter().cloned().collect()
    }

    /// Waits for the stores of the present namespaces, for at most this time. The server is not ready from the call on until
    /// the returned future has ended; where each store serves already, or the time is zero, it is ready at once.
    pub fn await_stores(&self, limit: Duration) -> impl Future<Output = ()> + Send + 'static {
        let present = self.all().into_iter();
        let health = present.map(|locks| (locks.namespace().to_string(), locks.health()));
        let missing: Vec<_> = health
            .filter(|(_, health)| !limit.is_zero() && !has_answered(&health.borrow()))
            .collect();
        let names = missing.iter().map(|(namespace, _)| namespace.clone());
        self.not_yet_served.lock().extend(names);
        let namespaces = self.clone();
        async move {
            let contacts = missing.into_iter().map(|one| namespaces.clone().await_store(one));
            if timeout(limit, join_all(contacts)).await.is_ok() {
                return;
            }
            let missing = std::mem::take(&mut *namespaces.not_yet_served.lock());
            for namespace in missing {
                tracing::warn!(%namespace, "ready although the store has not served since the start: first_contact_timeout has passed");
            }
            namespaces.changed.send_replace(());
        }
    }

    async fn await_store(self, (namespace, mut health): (String, watch::Receiver<Health>)) {
        // The health of a namespace that was removed may end.
        let _ = health.wait_for(has_answered).await;
        self.not_yet_served.lock().remove(&namespace);
        self.changed.send_replace(());
    }
}

fn has_answered(health: &Health) -> bool {
    !matches!(health, Health::Unavailable { .. })
}
