//! How the store is, as the sum of its nodes.

use std::sync::Arc;

use futures::future::select_all;
use tokio::sync::watch;
use tokio::time::Instant;

use super::nodes::Nodes;
use crate::backend::Health;

/// Sums the nodes' health up, and logs what happens to each.
pub async fn watch_over(voters: Arc<Nodes>, told: watch::Sender<Health>) {
    let mut all: Vec<watch::Receiver<Health>> = voters.all.iter().map(|voter| voter.node.health()).collect();
    let mut before: Vec<Option<Health>> = vec![None; all.len()];
    loop {
        let now: Vec<Health> = all.iter_mut().map(|one| one.borrow_and_update().clone()).collect();
        for ((voter, was), is) in voters.all.iter().zip(&mut before).zip(&now) {
            if was.as_ref() != Some(is) {
                let node = &voter.name;
                match is {
                    Health::Serving => tracing::info!(%node, "the node votes"),
                    Health::Quarantined { until, reason } => {
                        let left = until.saturating_duration_since(Instant::now());
                        tracing::warn!(%node, ?left, %reason, "the node is in quarantine");
                    }
                    Health::Unavailable { reason } => tracing::warn!(%node, %reason, "the node is away"),
                }
                *was = Some(is.clone());
            }
        }
        let sum = voters.sum(&now);
        told.send_if_modified(|old| {
            let changed = *old != sum;
            *old = sum;
            changed
        });
        let changes = all.iter_mut().map(|one| Box::pin(one.changed()));
        if select_all(changes).await.0.is_err() {
            return;
        }
    }
}
