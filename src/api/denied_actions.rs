//! Sums up the denied admin actions of each identity for the audit: anybody who is authenticated may call, and could
//! otherwise fill the log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::name::Identity;
use crate::telemetry::{self, AUDIT};

/// How long the denials behind one that has its own line are summed up.
const INTERVAL: Duration = Duration::from_secs(10);
/// How many identities are told apart.
const MAX_IDENTITIES: usize = 1024;
/// The name of all others.
const OTHERS: &str = "others";

/// How many actions of each identity were denied behind the one that has its own line.
#[derive(Debug, Clone, Default)]
pub(super) struct DeniedActions(Arc<Mutex<HashMap<String, u64>>>);

impl DeniedActions {
    /// Counts a denied action. Returns whether it gets no line of its own, but is in the next sum of its identity. Must be
    /// called within a tokio runtime.
    pub(super) fn sums(&self, identity: &Identity) -> bool {
        let mut counts = self.0.lock();
        let identity = match identity.as_str() {
            known if counts.contains_key(known) || counts.len() < MAX_IDENTITIES => known,
            _ => OTHERS,
        };
        if let Some(count) = counts.get_mut(identity) {
            *count += 1;
            return true;
        }
        counts.insert(identity.to_owned(), 0);
        let sum = Sum {
            counts: self.clone(),
            identity: identity.to_owned(),
        };
        tokio::spawn(async move {
            sleep(INTERVAL).await;
            while sum.is_without_place() {
                sleep(INTERVAL).await;
            }
        });
        false
    }
}

/// Writes the sum of an identity when it is dropped, also at the end of the process.
struct Sum {
    counts: DeniedActions,
    identity: String,
}

impl Sum {
    /// Whether there is a sum, and nobody reads the audit.
    fn is_without_place(&self) -> bool {
        self.counts.0.lock().get(&self.identity).is_some_and(|count| *count > 0)
            && telemetry::reserve_audit_line().is_none()
    }
}

impl Drop for Sum {
    fn drop(&mut self) {
        let count = self.counts.0.lock().remove(&self.identity).unwrap_or_default();
        if count > 0 {
            let identity = &self.identity;
            tracing::info!(target: AUDIT, action = "denied", ?identity, count, "more admin actions were denied within 10s");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // G187
    #[tokio::test(start_paused = true)]
    async fn denials_behind_the_first_are_summed_up_for_each_identity() {
        let denied = DeniedActions::default();
        let (one, other) = (
            Identity::authenticated("token:one"),
            Identity::authenticated("token:other"),
        );
        assert!(!denied.sums(&one));
        assert!(!denied.sums(&other));
        assert!((0..1000).all(|_| denied.sums(&one)));
        assert_eq!(denied.0.lock().get("token:one"), Some(&1000));
        sleep(INTERVAL * 2).await;
        assert!(denied.0.lock().is_empty(), "the sum was written");
        assert!(!denied.sums(&one), "the next one has its own line");
    }

    #[tokio::test(start_paused = true)]
    async fn identities_beyond_a_thousand_share_a_sum() {
        let denied = DeniedActions::default();
        for number in 0..3000 {
            denied.sums(&Identity::authenticated(&format!("token:{number}")));
        }
        let counts = denied.0.lock();
        assert_eq!((counts.len(), counts.get(OTHERS)), (MAX_IDENTITIES + 1, Some(&1975)));
    }
}
