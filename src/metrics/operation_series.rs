//! The series of the operations of one namespace's backend.
//!
//! It looks at every exclusive grant: a token that is not above the last one of its lock is an alert.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{Histogram, IntCounter};
use tokio::time::Instant;

use super::NamespaceMetrics;
use super::last_tokens::{Granted, LastTokens};
use crate::backend::{BackendError, Grant, NewClaim, ReleaseTarget, Released};
use crate::claim::Cause;
use crate::measured::{Operation, OperationMetrics};
use crate::name::{LockName, Mode};
use crate::telemetry::traces;
use crate::traces::Traced;

/// The `kind` label of errors.
const KINDS: [&str; 6] = [
    "unavailable",
    "not_sent",
    "no_quorum",
    "quarantined",
    "unsupported",
    "broken",
];
/// The `cause` label of ended leases.
const CAUSES: [&str; 5] = ["expired", "released", "forced", "taken_back", "unknown"];

/// The `operation` label, in the order of [`Operation`].
const OPERATIONS: [&str; 9] = [
    "acquire",
    "promote",
    "release",
    "renew",
    "update_metadata",
    "inspect",
    "holder",
    "list",
    "admit",
];

/// The series of the operations.
pub struct OperationSeries {
    namespace: Arc<NamespaceMetrics>,
    seconds: [Histogram; OPERATIONS.len()],
    errors: [IntCounter; KINDS.len()],
    ended: [IntCounter; CAUSES.len()],
    lost: [IntCounter; CAUSES.len()],
    tokens: Mutex<LastTokens>,
}

impl OperationSeries {
    /// The series of this namespace.
    pub fn of(namespace: Arc<NamespaceMetrics>) -> Self {
        let (all, kind) = (&*namespace.all.inner, namespace.capabilities.kind);
        let name = namespace.name.as_str();
        Self {
            seconds: OPERATIONS.map(|operation| all.stores.step_seconds.with_label_values(&[name, kind, operation])),
            errors: KINDS.map(|error| all.stores.step_errors.with_label_values(&[name, kind, error])),
            ended: CAUSES.map(|cause| all.leases.ended.with_label_values(&[name, cause])),
            lost: CAUSES.map(|cause| all.leases.lost.with_label_values(&[name, cause])),
            tokens: Mutex::default(),
            namespace,
        }
    }

    fn count_error(&self, error: &BackendError) {
        let kind = match error {
            BackendError::Unavailable { .. } => 0,
            BackendError::NotSent { .. } => 1,
            BackendError::NoQuorum { .. } => 2,
            BackendError::Quarantined { .. } => 3,
            BackendError::Unsupported { .. } => 4,
            BackendError::Broken { .. } => 5,
        };
        self.errors[kind].inc();
    }
}

impl OperationMetrics for OperationSeries {
    fn traced(&self, operation: Operation) -> Option<Traced> {
        let namespace = &self.namespace;
        traces::step(
            OPERATIONS[operation as usize],
            namespace.capabilities.kind,
            namespace.name.as_str(),
        )
    }

    fn ended(&self, operation: Operation, took: Duration, error: Option<&BackendError>) {
        self.seconds[operation as usize].observe(took.as_secs_f64());
        if let Some(error) = error {
            self.count_error(error);
        }
    }

    fn granted(&self, lock: &LockName, claim: &NewClaim, grant: &Grant, sent: Instant, is_known: bool) {
        let now = Instant::now();
        let granted = Granted {
            lock,
            secret: grant.secret,
            token: grant.token,
            sent,
            arrived: claim.arrived,
            alone: claim.mode == Mode::Exclusive && !claim.reentrant,
            is_known,
        };
        let observed = self.tokens.lock().granted(&granted, now);
        if observed.regression {
            self.namespace.regressions.inc();
            let (namespace, token) = (&self.namespace.name, grant.token);
            tracing::error!(%namespace, ?lock, %token, "a fencing token did not increase");
        }
        if observed.new {
            self.namespace.granted.inc();
            self.namespace.wait_seconds.observe(grant.waited.as_secs_f64());
        }
        if let Some(released) = observed.released {
            let took = now.saturating_duration_since(released);
            self.namespace.hand_off_seconds.observe(took.as_secs_f64());
        }
    }

    fn released(&self, lock: &LockName, target: ReleaseTarget<'_>, released: Released, sent: Instant) {
        let is_hold = matches!(target, ReleaseTarget::Hold(_) | ReleaseTarget::Keeping(..));
        match released {
            // A claim that only waited had no lease.
            Released::Ended(Cause::Cancelled) => {}
            Released::Ended(cause) => self.ended[cause_index(Some(cause))].inc(),
            Released::EndedBefore(cause) if is_hold && cause != Cause::Released => {
                self.lost[cause_index(Some(cause))].inc();
            }
            Released::Nothing if is_hold => self.lost[cause_index(None)].inc(),
            Released::EndedBefore(_) | Released::Nothing | Released::Adopted => {}
        }
        if matches!(released, Released::Ended(_)) && matches!(target, ReleaseTarget::Hold(_) | ReleaseTarget::Forced(_))
        {
            self.tokens.lock().released(lock, sent);
        }
    }

    fn lost(&self, cause: Option<Cause>) {
        self.lost[cause_index(cause)].inc();
    }
}

fn cause_index(cause: Option<Cause>) -> usize {
    match cause {
        Some(Cause::Expired) => 0,
        Some(Cause::Released) => 1,
        Some(Cause::Forced) => 2,
        Some(Cause::Undone) => 3,
        Some(Cause::Cancelled) | None => 4,
    }
}
