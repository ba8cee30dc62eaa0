//! Etcd leases: taken from a pool of used ones where that is possible, for granting and revoking
//! them are the dearest calls that etcd has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::calls::Finishing;
use super::cluster_client::{Failure, ClusterClient};
use super::lease_keep_alive::LeaseKeepAlive;
use crate::backend::FINISHED_KEPT;

/// How many leases of one TTL are kept.
const POOLED: usize = 1024;
/// By how much the lease on which a holder's requests are remembered outlives the holder's own.
const REMEMBERED: Duration = FINISHED_KEPT.saturating_add(Duration::from_secs(5));

/// A lease that no key is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: i64,
    /// What etcd granted, in seconds.
    pub span_s: i64,
    /// When the last sign of life was sent that was answered, if that is known: it lives for its span
    /// from then on at the least.
    pub alive: Option<Instant>,
    /// It was used before.
    pub used: bool,
    /// The lease on which the requests of its holder are remembered, if there was any.
    pub memory: Option<i64>,
}

/// Leases for holders.
#[derive(Debug)]
pub struct Leases {
    link: Arc<ClusterClient>,
    pulse: LeaseKeepAlive,
    /// Each with the time at which it came.
    pool: Mutex<HashMap<Kind, Vec<(Lease, Instant)>>>,
}

/// Leases of one TTL, with or without one for what is remembered.
type Kind = (i64, bool);

/// A lease that was made; kept for the next one where nobody takes it any more.
struct Made {
    leases: Arc<Leases>,
    lease: Option<Lease>,
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.leases.put_back(lease);
        }
    }
}

/// Whole seconds that are at least as long.
pub fn seconds(ttl: Duration) -> i64 {
    let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(whole).unwrap_or(i64::MAX)
}

/// A span of etcd's as a time.
pub fn span(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

impl Leases {
    /// Must be called within a tokio runtime.
    pub fn new(link: Arc<ClusterClient>) -> Self {
        Self {
            pulse: LeaseKeepAlive::begin(&link),
            link,
            pool: Mutex::default(),
        }
    }

    /// A lease that lives for at least `ttl` from its next sign of life on, for a holder whose requests are to be
    /// remembered or not.
    ///
    /// # Cancellation safety
    /// Dropped while one is made, that is kept for the next one.
    pub async fn take(self: &Arc<Self>, ttl: Duration, remembered: bool) -> Result<Lease, Failure> {
        match self.pooled((seconds(ttl), remembered)) {
            Some(lease) => Ok(lease),
            None => self.make(ttl, remembered).await,
        }
    }

    /// The same, not used before.
    pub async fn make(self: &Arc<Self>, ttl: Duration, remembered: bool) -> Result<Lease, Failure> {
        let leases = Arc::clone(self);
        let made = Finishing::new(async move {
            let memory = async {
                match remembered {
                    true => leases.memory(seconds(ttl)).await.map(Some),
                    false => Ok(None),
                }
            };
            let (lease, memory) = tokio::try_join!(leases.fresh(ttl), memory)?;
            let lease = Some(Lease { memory, ..lease });
            Ok::<_, Failure>(Made { leases, lease })
        });
        let mut made = made.await?;
        let lost = || Failure::Unavailable("etcd: a lease was lost".into());
        made.lease.take().ok_or_else(lost)
    }

    /// A lease that lives for at least `ttl` from now on.
    pub async fn fresh(&self, ttl: Duration) -> Result<Lease, Failure> {
        let sent = Instant::now();
        let granted = self
            .link
            .call(|mut client| async move { client.lease_grant(seconds(ttl), None).await })
            .await?;
        Ok(Lease {
            id: granted.id(),
            span_s: granted.ttl(),
            alive: Some(sent),
            used: false,
            memory: None,
        })
    }

    /// A lease on which the requests of a holder with such a span are remembered after its end.
    pub async fn memory(&self, span_s: i64) -> Result<i64, Failure> {
        Ok(self.fresh(span(span_s) + REMEMBERED).await?.id)
    }

    /// Keeps a lease for the next one. Only for a lease that certainly no key is on, and that no
    /// step of unknown outcome names.
    pub fn put_back(&self, lease: Lease) {
        let mut pool = self.pool();
        let kept = pool.entry((lease.span_s, lease.memory.is_some())).or_default();
        if kept.len() < POOLED {
            kept.push((Lease { used: true, ..lease }, Instant::now()));
        }
    }

    /// Gives a lease a sign of life: it lives for its span from the sending of this on. False if it
    /// is dead, which is final; any failure says nothing.
    pub async fn keep_alive(&self, id: i64) -> Result<bool, Failure> {
        self.pulse.ask(id).await
    }

    /// Lets what is remembered of a holder's requests outlive its lease, if it has any. No safety rests on that.
    pub async fn keep_memory(&self, memory: Option<i64>) {
        if let Some(memory) = memory {
            let _ = self.keep_alive(memory).await;
        }
    }

    /// What is left of a lease; nothing if it is dead.
    pub async fn remaining(&self, id: i64) -> Result<Option<Duration>, Failure> {
        let asked = self
            .link
            .call(|mut client| async move { client.lease_time_to_live(id, None).await });
        match asked.await {
            Ok(left) => Ok((left.ttl() >= 0).then(|| span(left.ttl()))),
            Err(Failure::LeaseGone) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Ends a lease that only this replica uses.
    pub async fn revoke(&self, id: i64) -> Result<(), Failure> {
        let revoked = self
            .link
            .call(|mut client| async move { client.lease_revoke(id).await });
        match revoked.await {
            Ok(_) | Err(Failure::LeaseGone) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Forgets all kept leases: keys may be on them again.
    pub fn abandon(&self) {
        self.pool().clear();
    }

    fn pooled(&self, kind: Kind) -> Option<Lease> {
        let mut pool = self.pool();
        let kept = pool.get_mut(&kind)?;
        while let Some((lease, since)) = kept.pop() {
            // One that may be about to end would only cost a round trip.
            if since.elapsed() < span(kind.0) / 2 {
                return Some(lease);
            }
        }
        pool.remove(&kind);
        None
    }

    fn pool(&self) -> MutexGuard<'_, HashMap<Kind, Vec<(Lease, Instant)>>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
