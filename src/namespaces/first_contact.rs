//! Whether the store of each namespace has served, or was in quarantine, once since the start.
//!
//! A server that is ready before that takes the place of one that serves: a rolling restart with a wrong name of a database
//! would replace them all. The time is bounded, so that servers which start during an outage of a store come up.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use super::Namespaces;
use crate::backend::Health;

impl Namespaces {
    /// The namespaces whose stores are waited for, by name. The server is not ready while there are any.
    pub fn not_yet_served(&self) -> Vec<String> {
        self.not_yet_served.lock().iter().cloned().collect()
    }

    /// Waits for the stores of the present namespaces, for at most this time, and for none if it is zero. The server is not
    /// ready from the call on until the returned future has ended.
    pub fn await_stores(&self, limit: Duration) -> impl Future<Output = ()> + Send + 'static {
        let (namespaces, all) = (self.clone(), self.all());
        if !limit.is_zero() {
            let names = all.iter().map(|locks| locks.namespace().to_string());
            self.not_yet_served.lock().extend(names);
        }
        async move {
            let contacts = all.into_iter().map(|locks| {
                namespaces
                    .clone()
                    .await_store(locks.namespace().to_string(), locks.health())
            });
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

    async fn await_store(self, namespace: String, mut health: tokio::sync::watch::Receiver<Health>) {
        let _ = health
            .wait_for(|health| !matches!(health, Health::Unavailable { .. }))
            .await;
        self.not_yet_served.lock().remove(&namespace);
        self.changed.send_replace(());
    }
}
