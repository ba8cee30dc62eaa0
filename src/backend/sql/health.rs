//! The quarantine after a promotion, the health, and what operators should know although the store serves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::dialect::{Connection, Dialect, Warning};
use super::error::SqlError;
use super::pool::{Pool, Working};
use super::rows::{micros, number};
use crate::backend::{BackendError, Health};

/// What the store says while it grants nothing.
const MAY_LACK: &str = "a standby was promoted, a copy of the database was restored, or its tables were lost: the last grants \
                        may be lost";

impl<D: Dialect> Pool<D> {
    /// The current health.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Whether commits that may grant are accepted.
    ///
    /// # Errors
    /// [`BackendError::Quarantined`].
    pub fn may_grant(&self) -> Result<(), BackendError> {
        match self.quarantined_until() {
            Some(until) => Err(BackendError::Quarantined {
                left: until.saturating_duration_since(Instant::now()),
                reason: MAY_LACK.into(),
            }),
            None => Ok(()),
        }
    }

    /// Ends the quarantine.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if there is none.
    pub async fn admit(self: &Arc<Self>) -> Result<(), BackendError> {
        if self.quarantined_until().is_none() {
            return Err(BackendError::Unsupported {
                what: "this database is not in quarantine",
            });
        }
        let admitted = self.run(|session: Working<D>| async move {
            session.connection.admit().await?;
            Ok(session.origin)
        });
        let of = admitted.await?;
        self.known.lock().note_admitted(of);
        self.report(None);
        Ok(())
    }

    fn quarantined_until(&self) -> Option<Instant> {
        let noted = self.known.lock().quarantine;
        let longest = Duration::from_micros(self.longest_ttl.load(Ordering::Acquire));
        let until = noted.map(|noted| noted.at + longest.saturating_sub(noted.passed));
        until.filter(|until| *until > Instant::now())
    }

    /// Raises the longest TTL. The connections are opened anew, and each tells the database before it is used.
    pub(super) fn raise_longest_ttl(&self, ttl: Duration) {
        let ttl = micros(ttl);
        if self.longest_ttl.fetch_max(ttl, Ordering::AcqRel) < ttl {
            self.drop_free();
        }
    }

    /// Tells the database the longest TTL, and learns that of other servers.
    pub(super) async fn share_longest_ttl(&self, connection: &D::Connection) -> Result<(), SqlError> {
        let own = number(self.longest_ttl.load(Ordering::Acquire));
        let longest = connection.raise_longest_ttl(own).await?;
        self.longest_ttl
            .fetch_max(longest.try_into().unwrap_or_default(), Ordering::AcqRel);
        Ok(())
    }

    /// Says how the database is. What keeps all commits from succeeding says more than how one of them failed.
    pub(super) fn report(&self, problem: Option<String>) {
        let cause = self.cause.lock().clone();
        let health = match (cause.or(problem), self.quarantined_until()) {
            (Some(problem), _) => Health::unavailable(problem),
            (None, Some(until)) => Health::Quarantined {
                until,
                reason: MAY_LACK.into(),
            },
            (None, None) => Health::Serving,
        };
        Health::report(&self.health, health);
    }

    /// What makes the database slow.
    pub fn warning(&self) -> Option<String> {
        let warnings = self.warnings.lock();
        let texts = warnings
            .iter()
            .map(|Warning { what, figures }| format!("{what} ({figures})"));
        texts.reduce(|all, text| format!("{all}; {text}"))
    }

    /// Notes what makes the database slow. The log tells of each once, as long as it lasts.
    pub(super) fn warn(&self, warnings: Vec<Warning>) {
        let mut known = self.warnings.lock();
        for Warning { what, figures } in &warnings {
            if known.iter().all(|known| known.what != *what) {
                tracing::warn!(%figures, "{what}");
            }
        }
        *known = warnings;
    }
}
