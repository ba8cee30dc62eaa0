//! The health of the store, computed from its nodes.

use std::sync::Arc;

use futures::future::select_all;
use tokio::sync::watch;
use tokio::time::Instant;

use super::nodes::Nodes;
use crate::backend::Health;

/// Computes the store's health from that of the nodes, and logs each node's changes.
pub async fn watch_over(nodes: Arc<Nodes>, sender: watch::Sender<Health>) {
    let mut all: Vec<watch::Receiver<Health>> = nodes.all.iter().map(|member| member.node.health()).collect();
    let mut before: Vec<Option<Health>> = vec![None; all.len()];
    loop {
        let now: Vec<Health> = all.iter_mut().map(|one| one.borrow_and_update().clone()).collect();
        for ((member, was), is) in nodes.all.iter().zip(&mut before).zip(&now) {
            if was.as_ref() != Some(is) {
                log(&member.name, is);
                *was = Some(is.clone());
            }
        }
        Health::report(&sender, nodes.overall(&now));
        let changes = all.iter_mut().map(|one| Box::pin(one.changed()));
        if select_all(changes).await.0.is_err() {
            return;
        }
    }
}

fn log(node: &str, health: &Health) {
    match health {
        Health::Serving => tracing::info!(%node, "the node is admitted"),
        Health::Quarantined { until, reason } => {
            let left = until.saturating_duration_since(Instant::now());
            tracing::warn!(%node, ?left, %reason, "the node is in quarantine");
        }
        Health::Unavailable { reason } => tracing::warn!(%node, %reason, "the node is unavailable"),
    }
}
