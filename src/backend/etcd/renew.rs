//! Renewal: the sign of life first, and then the proof that the holder's key is on that very lease.
//! (The other order lets a change of lease slip between.)

use std::time::Duration;

use etcd_client::{GetOptions, PutOptions, TxnOp};

use super::Replica;
use super::grant::{grant_of, unchanged};
use super::keys::{LockKeys, behind};
use super::leases::{seconds, span};
use super::cluster_client::Failure;
use super::batch_packing::BatchClass;
use super::record::Claim;
use super::lock_watch;
use super::view::{Entry, View};
use crate::backend::RenewOutcome;
use crate::name::{ClaimId, Kind, LeaseKey, LockName, Ttl};

/// How often a renewal is tried against others that change the holder meanwhile.
const TRIES: usize = 16;

impl Replica {
    /// See [`crate::backend::Backend::renew`].
    pub async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, Failure> {
        let mut known = match self.ends.known(lease) {
            Some(known) => Some(known),
            None => self.holder(lease).await?,
        };
        for _ in 0..TRIES {
            let Some(entry) = known.filter(|entry| entry.hold_of(lease).is_some()) else {
                return Ok(RenewOutcome::Gone(self.ends.of(lease).await?));
            };
            let (alive, ()) = tokio::join!(self.keep_all(&entry), self.leases.keep_memory(entry.claim.memory()));
            let alive = alive?;
            let now = self.holder(lease).await?;
            let proven = now.as_ref().filter(|now| alive && is_kept(&entry, now));
            if let Some(entry) = proven.filter(|entry| entry.hold_of(lease).is_some())
                && let Some((entry, left)) = self.prolong(&lease.lock.name, entry, ttl).await?
            {
                return Ok(RenewOutcome::Renewed(grant_of(&entry, lease.secret, left, Duration::ZERO)?));
            }
            if !alive && now.as_ref().is_some_and(|now| now.lease == entry.lease) {
                // Dead for good, and its key is about to go.
                tokio::time::sleep(Duration::from_millis(20)).await;
                known = self.holder(lease).await?;
                continue;
            }
            known = now;
        }
        Err(Failure::Unavailable("etcd: the holder changes too fast".into()))
    }

    /// What is left of a holder's lease, or of the one that it may be moved to if that is less; nothing
    /// if its own is dead.
    pub async fn remaining(&self, entry: &Entry) -> Result<Option<Duration>, Failure> {
        let left = self.leases.remaining(entry.lease).await?;
        if entry.claim.moving_to == 0 {
            return Ok(left);
        }
        let moving = self.leases.remaining(entry.claim.moving_to).await?;
        Ok(left.map(|left| moving.map_or(left, |moving| moving.min(left))))
    }

    /// The holder of a lease as it is now.
    pub async fn holder(&self, lease: &LeaseKey) -> Result<Option<Entry>, Failure> {
        self.holder_at(&self.keys.lock(&lease.lock.name), lease.kind, lease.claim)
            .await
    }

    /// A holder as it is now, by its key.
    pub async fn holder_at(&self, lock: &LockKeys, kind: Kind, claim: ClaimId) -> Result<Option<Entry>, Failure> {
        let key = lock.holder(kind, claim);
        let read = self.link.get(key, GetOptions::new()).await?;
        let view = View::read(lock, 0, read.kvs()).map_err(|error| Failure::Refused(error.to_string()))?;
        Ok(view.holders.get(&claim).cloned())
    }

    /// Signs of life for every lease that a holder's record names; whether its own lives.
    async fn keep_all(&self, entry: &Entry) -> Result<bool, Failure> {
        if entry.claim.moving_to != 0 {
            self.leases.keep_alive(entry.claim.moving_to).await?;
        }
        self.leases.keep_alive(entry.lease).await
    }

    /// Gives a holder that was kept alive just now the TTL that was asked; what it has then, or
    /// nothing if it has changed meanwhile.
    async fn prolong(
        &self,
        name: &LockName,
        entry: &Entry,
        ttl: Option<Ttl>,
    ) -> Result<Option<(Entry, Duration)>, Failure> {
        let asked = ttl.map_or(entry.claim.ttl, Ttl::get);
        if seconds(asked) > entry.claim.span_s {
            return self.move_lease(name, entry, asked).await;
        }
        let mut entry = entry.clone();
        if asked != entry.claim.ttl {
            entry.claim.ttl = asked;
            let lease = entry.lease;
            if !self.put_holder(name, &mut entry, lease).await? {
                return Ok(None);
            }
        }
        self.ends.granted(name, &entry);
        let whole = span(entry.claim.span_s);
        Ok(Some((entry, whole)))
    }

    /// Moves a holder to a lease of a longer TTL: announces it in the record, keeps it alive, then
    /// moves the key. A step of unknown outcome revokes nothing.
    pub async fn move_lease(
        &self,
        name: &LockName,
        entry: &Entry,
        ttl: Duration,
    ) -> Result<Option<(Entry, Duration)>, Failure> {
        let lease = self.leases.fresh(ttl).await?;
        let mut entry = entry.clone();
        entry.claim.not_poolable = true;
        entry.claim.moving_to = lease.id;
        if entry.claim.memory().is_some() {
            entry.claim.memory = self.leases.memory(lease.span_s).await?;
        }
        let old = entry.lease;
        if !self.put_holder(name, &mut entry, old).await? {
            return Ok(None);
        }
        if !self.leases.keep_alive(lease.id).await? {
            return Ok(None);
        }
        entry.claim = Claim {
            ttl,
            span_s: lease.span_s,
            moving_to: 0,
            ..entry.claim
        };
        if !self.put_holder(name, &mut entry, lease.id).await? {
            return Ok(None);
        }
        self.ends.granted(name, &entry);
        Ok(Some((entry, span(lease.span_s))))
    }

    /// Writes a holder's record on a lease, if it is what was read.
    async fn put_holder(&self, name: &LockName, entry: &mut Entry, lease: i64) -> Result<bool, Failure> {
        let key = self.keys.lock(name).holder(entry.claim.mode.into(), entry.id);
        let put = TxnOp::put(
            key.clone(),
            entry.claim.encode(),
            Some(PutOptions::new().with_lease(lease)),
        );
        let when = vec![unchanged(key, entry)];
        let lock = self.keys.lock(name);
        let mut then = vec![put];
        if lease != entry.lease {
            then.extend(self.ends.holds(&entry.claim));
        }
        let answer = match self.step(&lock, BatchClass::Host, when, then, Vec::new()).await {
            Err(Failure::LeaseGone) => return Ok(false),
            answer => answer?,
        };
        if answer.succeeded {
            entry.modified = answer.revision;
            entry.lease = lease;
        }
        Ok(answer.succeeded)
    }

    /// The holders of a lock as they are now.
    pub async fn holders(&self, lock: &LockKeys) -> Result<View, Failure> {
        let holders = lock.holders();
        let (revision, kvs) = self.link.range(holders.as_str(), behind(&holders)).await?;
        View::read(lock, revision, &kvs).map_err(|error| Failure::Refused(error.to_string()))
    }

    /// A lock as it is now.
    pub async fn view(&self, name: &LockName) -> Result<View, Failure> {
        lock_watch::read(&self.link, &self.keys.lock(name)).await
    }
}

/// Whether every lease that a holder's record names now is one that its record named before, and its key
/// on the same one.
fn is_kept(before: &Entry, now: &Entry) -> bool {
    let moving = now.claim.moving_to;
    now.lease == before.lease && (moving == 0 || moving == before.claim.moving_to)
}
