//! The health of the store, computed from its nodes.

use futures::future::select_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::nodes::Nodes;
use crate::backend::Health;
use crate::backend::health_news::HealthNews;

/// Computes the store's health from that of the nodes, and logs each node's changes.
pub async fn watch_over(nodes: &Nodes, sender: &watch::Sender<Health>) {
    let mut all: Vec<watch::Receiver<Health>> = nodes.all.iter().map(|member| member.node.health()).collect();
    let mut news: Vec<HealthNews> = all.iter().map(|one| HealthNews::new(&one.borrow())).collect();
    loop {
        let now: Vec<Health> = all.iter_mut().map(|one| one.borrow_and_update().clone()).collect();
        for ((member, news), is) in nodes.all.iter().zip(&mut news).zip(&now) {
            news.update(is);
            if let Some((health, changes)) = news.take() {
                log(&member.name, health, changes);
            }
        }
        Health::report(sender, nodes.overall(&now));
        let changes = all.iter_mut().map(|one| Box::pin(one.changed()));
        let due = news.iter().filter_map(HealthNews::due).min();
        tokio::select! {
            changed = select_all(changes) => {
                if changed.0.is_err() {
                    return;
                }
            }
            () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {}
        }
    }
}

fn log(node: &str, health: &Health, changes: Option<u32>) {
    match health {
        Health::Serving => tracing::info!(%node, changes, "the node is admitted"),
        Health::Quarantined { until, reason } => {
            let left = until.saturating_duration_since(Instant::now());
            tracing::warn!(%node, ?left, %reason, changes, "the node is in quarantine");
        }
        Health::Unavailable { reason } => tracing::warn!(%node, %reason, changes, "the node is unavailable"),
    }
}
