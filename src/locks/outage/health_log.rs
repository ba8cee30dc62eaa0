//! Logs when the store of a namespace begins and ceases to serve.

use std::mem::{Discriminant, discriminant};

use humantime::format_duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backend::{Health, whole_seconds};
use crate::name::Namespace;

/// What was logged of a store's health. One line for each state: its reason may change often.
#[derive(Debug)]
pub struct HealthLog {
    namespace: Namespace,
    /// The end of a draining namespace is no news.
    draining: CancellationToken,
    logged: Option<Discriminant<Health>>,
}

impl HealthLog {
    /// The log of a namespace until it drains, whose store has this health at first. That it serves is no news.
    pub fn new(namespace: Namespace, draining: &CancellationToken, health: &Health) -> Self {
        Self {
            namespace,
            draining: draining.clone(),
            logged: (*health == Health::Serving).then(|| discriminant(health)),
        }
    }

    /// Logs this state, if it is another one than the last.
    pub fn update(&mut self, health: &Health) {
        let is = discriminant(health);
        if self.draining.is_cancelled() || self.logged.replace(is) == Some(is) {
            return;
        }
        let namespace = &self.namespace;
        match health {
            Health::Serving => tracing::info!(%namespace, "the store serves"),
            Health::Unavailable { reason } => tracing::warn!(%namespace, %reason, "the store does not serve"),
            Health::Quarantined { until, reason } => {
                let left = format_duration(whole_seconds(until.saturating_duration_since(Instant::now())));
                tracing::warn!(
                    "namespace {namespace} grants nothing for another {left}: {reason}. \
                     If no lease can be left, end that: fencepost admit {namespace}"
                );
            }
        }
    }
}
