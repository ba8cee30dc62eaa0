//! Etcd leases for holders. They come from a pool of used leases if possible, because granting and revoking leases are
//! the most expensive calls of etcd.
//!
//! A lease returns to the pool when this replica has read that the key on it is gone, and neither a second call nor a
//! lost answer touched it. Each lease outlives the TTL that is answered by a second ([`LEASE_MARGIN`]). Within that second
//! after a keep-alive, a grant needs no other one, which would cost etcd about as much as the grant.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::keep_alive::LeaseKeepAlive;
use crate::backend::FINISHED_KEPT;
use crate::backend::etcd::cluster::client::ClusterClient;
use crate::backend::etcd::cluster::{Failure, Finishing};
use crate::clock::since_boot;

pub mod base;
mod keep_alive;
pub mod session;

/// The seconds by which a lease outlives the TTL that is answered. Within this margin a grant reuses the last keep-alive;
/// another one would cost etcd about as much as the grant.
const LEASE_MARGIN_S: i64 = 1;
pub const LEASE_MARGIN: Duration = Duration::from_secs(LEASE_MARGIN_S.unsigned_abs());
/// How many leases of one TTL are pooled.
const POOLED: usize = 1024;
/// The time by which the lease with a holder's request records outlives the holder's own lease.
const REMEMBERED: Duration = FINISHED_KEPT.saturating_add(Duration::from_secs(5));
/// A grant reuses the last keep-alive of such a lease within this time, by which the lease lives longer.
const REQUEST_LEASE_FRESH: Duration = Duration::from_secs(20);

/// A lease without keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: i64,
    /// The TTL of a holder on it, in seconds: [`LEASE_MARGIN_S`] less than etcd granted.
    pub granted_ttl_s: i64,
    /// When the last answered keep-alive was sent, on [`since_boot`]'s clock, if known. The lease lives for at least
    /// `granted_ttl_s` and [`LEASE_MARGIN`] from then on.
    pub alive: Option<Duration>,
    /// It was used before.
    pub used: bool,
    /// The lease with the request records of its holder, if any.
    pub request_lease: Option<RequestLease>,
    /// The generation of the pool when the lease was made, or when the step began that freed it of its holder.
    pub generation: u64,
}

impl Lease {
    /// A lease that is freed of its holder by a step that began in this generation of the pool.
    pub fn freed(id: i64, granted_ttl_s: i64, request_lease: Option<i64>, generation: u64) -> Self {
        Self {
            id,
            granted_ttl_s,
            alive: None,
            used: true,
            request_lease: request_lease.map(|id| RequestLease { id, alive: None }),
            generation,
        }
    }

    /// Whether a holder that is granted now has its whole TTL without a keep-alive of its own.
    pub fn outlives_a_grant(&self, now: Duration) -> bool {
        self.alive.is_some_and(|alive| now <= alive + LEASE_MARGIN)
    }

    /// The same lease after keep-alives, if they were answered.
    pub fn kept_alive(self, alive: Option<Alive>) -> Self {
        let Some(alive) = alive else { return self };
        let of_requests = |request_lease: RequestLease| RequestLease {
            alive: alive.request_lease,
            ..request_lease
        };
        Self {
            alive: alive.lease,
            request_lease: self.request_lease.map(of_requests),
            ..self
        }
    }
}

/// A lease with request records. A holder's request must be remembered for as long as the holder lives: a retry that
/// finds neither would make a second claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLease {
    pub id: i64,
    /// As [`Lease::alive`].
    pub alive: Option<Duration>,
}

impl RequestLease {
    /// Whether it outlives a holder's lease whose keep-alive is sent now, without one of its own.
    pub fn outlives_a_grant(&self, now: Duration) -> bool {
        self.alive.is_some_and(|alive| now <= alive + REQUEST_LEASE_FRESH)
    }
}

/// When the last answered keep-alives of a lease and of its request records' lease were sent, as [`Lease::alive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alive {
    pub lease: Option<Duration>,
    pub request_lease: Option<Duration>,
}

/// Leases for holders.
#[derive(Debug)]
pub struct LeasePool {
    link: Arc<ClusterClient>,
    keep_alives: LeaseKeepAlive,
    pool: Mutex<Pool>,
}

/// Leases for later grants.
#[derive(Debug, Default)]
struct Pool {
    /// Each lease with the time at which it was pooled.
    kept: HashMap<Kind, Vec<(Lease, Instant)>>,
    /// How often the pool was abandoned. A lease of an earlier generation must not come back: a restored store may have
    /// keys on it.
    generation: u64,
}

impl Pool {
    fn put(&mut self, lease: Lease) {
        if lease.generation != self.generation {
            return;
        }
        let kept = self
            .kept
            .entry((lease.granted_ttl_s, lease.request_lease.is_some()))
            .or_default();
        if kept.len() < POOLED {
            kept.push((Lease { used: true, ..lease }, Instant::now()));
        }
    }

    fn take(&mut self, kind: Kind) -> Option<Lease> {
        let kept = self.kept.get_mut(&kind)?;
        while let Some((lease, since)) = kept.pop() {
            // A lease that may be about to expire would only cost a round trip.
            if since.elapsed() < ttl_of(kind.0) / 2 {
                return Some(lease);
            }
        }
        self.kept.remove(&kind);
        None
    }

    fn abandon(&mut self) {
        self.kept.clear();
        self.generation += 1;
    }
}

/// The TTL in seconds, and whether there is a lease for request records.
type Kind = (i64, bool);

/// A reserved lease without keys. Dropping this puts it into the pool.
#[derive(Debug)]
pub struct SpareLease {
    leases: Arc<LeasePool>,
    lease: Option<Lease>,
}

impl Drop for SpareLease {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.leases.put_back(lease);
        }
    }
}

/// A time in whole seconds, rounded up.
pub fn seconds(ttl: Duration) -> i64 {
    let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(whole).unwrap_or(i64::MAX)
}

/// A TTL of etcd, in seconds, as a duration.
pub fn ttl_of(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

impl LeasePool {
    /// Must be called within a tokio runtime.
    pub fn new(link: Arc<ClusterClient>) -> Self {
        Self {
            keep_alives: LeaseKeepAlive::begin(&link),
            link,
            pool: Mutex::default(),
        }
    }

    /// Takes a pooled lease or makes one. It lives for at least `ttl` from its next keep-alive on. With `remembered`,
    /// it comes with a lease for request records.
    ///
    /// # Cancellation safety
    /// Safe: a lease that is being made when this is dropped is put into the pool.
    pub async fn take(self: &Arc<Self>, ttl: Duration, remembered: bool) -> Result<Lease, Failure> {
        let pooled = self.pool.lock().take((seconds(ttl), remembered));
        match pooled {
            Some(lease) => Ok(lease),
            None => self.make(ttl, remembered).await,
        }
    }

    /// Reserves a lease for a later grant. Dropping the answer puts it into the pool.
    ///
    /// # Cancellation safety
    /// As [`Self::take`].
    pub async fn set_aside(self: &Arc<Self>, ttl: Duration, remembered: bool) -> Result<SpareLease, Failure> {
        Ok(SpareLease {
            lease: Some(self.take(ttl, remembered).await?),
            leases: Arc::clone(self),
        })
    }

    /// Makes a lease, as [`Self::take`] does, that was not used before.
    pub async fn make(self: &Arc<Self>, ttl: Duration, remembered: bool) -> Result<Lease, Failure> {
        let leases = Arc::clone(self);
        let made = Finishing::new(async move {
            let request_lease = async {
                match remembered {
                    true => leases.request_lease(seconds(ttl)).await.map(Some),
                    false => Ok(None),
                }
            };
            let (lease, request_lease) = tokio::try_join!(leases.for_holder(ttl), request_lease)?;
            Ok::<_, Failure>(SpareLease {
                lease: Some(Lease { request_lease, ..lease }),
                leases,
            })
        });
        let mut made = made.await?;
        let lost = || Failure::Unavailable("etcd: a lease was lost".into());
        made.lease.take().ok_or_else(lost)
    }

    /// Makes a lease for a holder, which lives for at least `ttl` and [`LEASE_MARGIN`] from now on.
    pub async fn for_holder(&self, ttl: Duration) -> Result<Lease, Failure> {
        let lease = self.fresh(ttl_of(seconds(ttl)) + LEASE_MARGIN).await?;
        Ok(Lease {
            granted_ttl_s: lease.granted_ttl_s - LEASE_MARGIN_S,
            ..lease
        })
    }

    /// Makes a lease that lives for at least `ttl` from now on.
    pub async fn fresh(&self, ttl: Duration) -> Result<Lease, Failure> {
        let (sent, generation) = (since_boot(), self.generation());
        let granted = self
            .link
            .call(|mut client| async move { client.lease_grant(seconds(ttl), None).await })
            .await?;
        Ok(Lease {
            id: granted.id(),
            granted_ttl_s: granted.ttl(),
            alive: Some(sent),
            used: false,
            request_lease: None,
            generation,
        })
    }

    /// Makes a lease for the request records of a holder whose lease has this TTL, in seconds.
    pub async fn request_lease(&self, granted_ttl_s: i64) -> Result<RequestLease, Failure> {
        let Lease { id, alive, .. } = self
            .fresh(ttl_of(granted_ttl_s) + REMEMBERED + REQUEST_LEASE_FRESH)
            .await?;
        Ok(RequestLease { id, alive })
    }

    /// The present generation of the pool.
    pub fn generation(&self) -> u64 {
        self.pool.lock().generation
    }

    /// Puts a lease into the pool, unless the pool was abandoned since its generation. It must certainly have no keys, and
    /// no step of unknown outcome may name it.
    pub fn put_back(&self, lease: Lease) {
        self.pool.lock().put(lease);
    }

    /// Sends a keep-alive: the lease lives for its TTL and [`LEASE_MARGIN`] from the sending on. False if it is dead, which is final.
    ///
    /// # Errors
    /// A failure says nothing about the lease.
    pub async fn keep_alive(&self, id: i64) -> Result<bool, Failure> {
        self.keep_alives.ask(id).await
    }

    /// Sends a keep-alive for the lease of request records, if any. False if it is dead.
    ///
    /// # Errors
    /// As [`Self::keep_alive`].
    pub async fn keep_request_lease_alive(&self, request_lease: Option<i64>) -> Result<bool, Failure> {
        match request_lease {
            Some(request_lease) => self.keep_alive(request_lease).await,
            None => Ok(true),
        }
    }

    /// Sends keep-alives for a holder's lease and for that of its request records, if any. False if one is dead.
    ///
    /// # Errors
    /// As [`Self::keep_alive`].
    pub async fn keep_both_alive(&self, id: i64, request_lease: Option<i64>) -> Result<bool, Failure> {
        let (request_lease, lease) =
            tokio::try_join!(self.keep_request_lease_alive(request_lease), self.keep_alive(id))?;
        Ok(request_lease && lease)
    }

    /// The time that a lease still lives, which may be longer than its holder's TTL. None if it is dead.
    pub async fn remaining(&self, id: i64) -> Result<Option<Duration>, Failure> {
        let asked = self
            .link
            .call(|mut client| async move { client.lease_time_to_live(id, None).await });
        match asked.await {
            Ok(left) => Ok((left.ttl() >= 0).then(|| ttl_of(left.ttl()))),
            Err(Failure::LeaseGone) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Revokes a lease that only this replica uses.
    pub async fn revoke(&self, id: i64) -> Result<(), Failure> {
        let revoked = self
            .link
            .call(|mut client| async move { client.lease_revoke(id).await });
        match revoked.await {
            Ok(_) | Err(Failure::LeaseGone) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Discards all pooled leases, because a restored store may have keys on them.
    pub fn abandon(&self) {
        self.pool.lock().abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_taken_before_the_pool_was_abandoned_does_not_come_back() {
        let lease = |generation| Lease {
            id: 1,
            granted_ttl_s: 30,
            alive: None,
            used: true,
            request_lease: None,
            generation,
        };
        let mut pool = Pool::default();
        let before = lease(pool.generation);
        pool.put(before);
        assert_eq!(pool.take((30, false)), Some(before));
        pool.abandon();
        pool.put(before);
        assert_eq!(pool.take((30, false)), None);
        let after = lease(pool.generation);
        pool.put(after);
        assert_eq!(pool.take((30, false)), Some(after));
    }
}
