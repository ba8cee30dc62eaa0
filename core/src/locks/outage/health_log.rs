//! Logs when the store of a namespace begins and ceases to serve, and why.

use humantime::format_duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backend::health_news::HealthNews;
use crate::backend::{Health, whole_seconds};
use crate::name::Namespace;

/// The log of a store's health: see [`HealthNews`].
#[derive(Debug)]
pub struct HealthLog {
    namespace: Namespace,
    /// The end of a draining namespace is no news.
    draining: CancellationToken,
    news: HealthNews,
}

impl HealthLog {
    /// The log of a namespace until it drains, whose store has this health at first.
    pub fn new(namespace: Namespace, draining: &CancellationToken, health: &Health) -> Self {
        Self {
            namespace,
            draining: draining.clone(),
            news: HealthNews::new(health),
        }
    }

    /// Notes this state, and logs it if that is due.
    pub fn update(&mut self, health: &Health) {
        self.news.update(health);
        self.write_due();
    }

    /// When there is something to log.
    pub fn due(&self) -> Option<Instant> {
        self.news.due().filter(|_| !self.draining.is_cancelled())
    }

    /// Logs what is due.
    pub fn write_due(&mut self) {
        if self.draining.is_cancelled() {
            return;
        }
        let namespace = &self.namespace;
        let Some((health, changes)) = self.news.take() else {
            return;
        };
        match health {
            Health::Serving => tracing::info!(%namespace, changes, "the store serves"),
            Health::Unavailable { reason } => tracing::warn!(%namespace, %reason, changes, "the store does not serve"),
            Health::Quarantined { until, reason } => {
                let left = format_duration(whole_seconds(until.saturating_duration_since(Instant::now())));
                tracing::warn!(
                    changes,
                    "namespace {namespace} grants nothing for another {left}: {reason}. \
                     If no lease can be left, end that: fencepost admit {namespace}"
                );
            }
        }
    }
}
