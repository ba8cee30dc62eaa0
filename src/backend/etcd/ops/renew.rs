//! Renewal: the keep-alive first, and then the check that the holder's key is on that lease. (In the other order, the
//! holder could move to another lease between the two.)

use std::time::Duration;

use etcd_client::{GetOptions, TxnOp};

use super::Replica;
use crate::backend::RenewOutcome;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::conditions::{put_on, unchanged};
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::keys::LockKeys;
use crate::backend::etcd::data::record::{Claim, Request};
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::{seconds, ttl_of};
use crate::backend::etcd::ops::grant::grant_of;
use crate::backend::etcd::txn::Answer;
use crate::name::{Kind, LeaseKey, LockName, Ttl};

/// How often a renewal is retried when the holder changed concurrently.
pub(super) const TRIES: usize = 16;

impl Replica {
    /// See [`crate::backend::Backend::renew`].
    pub async fn renew(&self, lease: &LeaseKey, ttl: Option<Ttl>) -> Result<RenewOutcome, Failure> {
        let mut known = self.known_holder(lease).await?;
        let lock = self.keys.lock(&lease.lock.name);
        for _ in 0..TRIES {
            let Some(entry) = known.filter(|entry| entry.hold_of(lease).is_some()) else {
                return Ok(RenewOutcome::Gone(self.history.of(lease).await?));
            };
            // The records must live for as long as the holder: a retry that finds neither would make a second claim.
            let is_remembered = self.leases.keep_request_lease_alive(entry.claim.request_lease());
            let (is_remembered, alive) = tokio::try_join!(is_remembered, self.keep_all(&entry))?;
            let now = self.holder_at(&lock, lease.kind, entry.suffix).await?;
            let kept = now.as_ref().filter(|now| alive && is_kept(&entry, now));
            if let Some(entry) = kept.filter(|entry| entry.hold_of(lease).is_some())
                && let Some((entry, left)) = self.prolong(&lease.lock.name, entry, ttl, is_remembered).await?
            {
                return Ok(RenewOutcome::Renewed(grant_of(
                    &entry,
                    lease.secret,
                    left,
                    Duration::ZERO,
                )?));
            }
            if !alive && now.as_ref().is_some_and(|now| now.lease == entry.lease) {
                // The lease is dead, and etcd is about to delete its key.
                tokio::time::sleep(Duration::from_millis(20)).await;
                known = self.holder_at(&lock, lease.kind, entry.suffix).await?;
                continue;
            }
            known = now;
        }
        Err(Failure::Unavailable("etcd: the holder changes too fast".into()))
    }

    /// The remaining TTL of a holder, by its lease or by the lease that it may be moved to if that is shorter. None if
    /// its own lease is dead.
    pub async fn remaining(&self, entry: &Entry) -> Result<Option<Duration>, Failure> {
        // Its lease may live longer than its TTL.
        let ttl = ttl_of(entry.claim.granted_ttl_s);
        let left = self.leases.remaining(entry.lease).await?.map(|left| left.min(ttl));
        if entry.claim.moving_to == 0 {
            return Ok(left);
        }
        let moving = self.leases.remaining(entry.claim.moving_to).await?;
        Ok(left.map(|left| moving.map_or(left, |moving| moving.min(left))))
    }

    /// The holder of a lease as it is known, or else as it is read.
    pub async fn known_holder(&self, lease: &LeaseKey) -> Result<Option<Entry>, Failure> {
        match self.history.known(lease) {
            Some(known) => Ok(Some(known)),
            None => self.holder(lease).await,
        }
    }

    /// Finds the holder of a lease: under the key suffix that the lease names, or where the record of its request says.
    async fn holder(&self, lease: &LeaseKey) -> Result<Option<Entry>, Failure> {
        let lock = self.keys.lock(&lease.lock.name);
        let suffix = KeySuffix::of_lease(lease.claim);
        let reads = [self.keys.request(lease.claim), lock.holder(lease.kind, suffix)];
        let reads = reads.map(|key| TxnOp::get(key, None)).into();
        let answer = Answer::read(&self.link, reads).await?;
        let [request, holder] = answer.reads.as_slice() else {
            return Err(Failure::no_answer());
        };
        let there = View::read(&lock, 0, holder.kvs())?.holders.get(suffix).cloned();
        let request = request.kvs().first();
        match request.and_then(|kv| Request::decode(kv.value()).ok()) {
            Some(Request::Holds { suffix, .. }) if there.is_none() => self.holder_at(&lock, lease.kind, suffix).await,
            _ => Ok(there),
        }
    }

    /// Reads a holder by its key.
    pub async fn holder_at(&self, lock: &LockKeys, kind: Kind, suffix: KeySuffix) -> Result<Option<Entry>, Failure> {
        let read = self.link.get(lock.holder(kind, suffix), GetOptions::new()).await?;
        Ok(View::read(lock, 0, read.kvs())?.holders.get(suffix).cloned())
    }

    /// Sends a keep-alive for every lease that a holder's record names. True if its own lives.
    async fn keep_all(&self, entry: &Entry) -> Result<bool, Failure> {
        if entry.claim.moving_to != 0 {
            self.leases.keep_alive(entry.claim.moving_to).await?;
        }
        self.leases.keep_alive(entry.lease).await
    }

    /// Gives a holder whose keep-alive was just answered the requested TTL, and new request records unless it
    /// `is_remembered`. Returns its record and TTL, or None if it changed concurrently.
    async fn prolong(
        &self,
        name: &LockName,
        entry: &Entry,
        ttl: Option<Ttl>,
        is_remembered: bool,
    ) -> Result<Option<(Entry, Duration)>, Failure> {
        let requested = ttl.map_or(entry.claim.ttl, Ttl::get);
        if seconds(requested) > entry.claim.granted_ttl_s {
            return self.move_lease(name, entry, requested).await;
        }
        let mut entry = entry.clone();
        if requested != entry.claim.ttl || !is_remembered {
            entry.claim.ttl = requested;
            if !is_remembered {
                entry.claim.request_lease = self.leases.request_lease(entry.claim.granted_ttl_s).await?.id;
            }
            let lease = entry.lease;
            if !self.put_holder(name, &mut entry, lease).await? {
                return Ok(None);
            }
        }
        self.history.note(name, &entry, None);
        let whole = ttl_of(entry.claim.granted_ttl_s);
        Ok(Some((entry, whole)))
    }

    /// Moves a holder to a lease of a longer TTL: announces the lease in the record, sends a keep-alive for it, then
    /// moves the key. After a step of unknown outcome, no lease is revoked.
    pub async fn move_lease(
        &self,
        name: &LockName,
        entry: &Entry,
        ttl: Duration,
    ) -> Result<Option<(Entry, Duration)>, Failure> {
        let lease = self.leases.for_holder(ttl).await?;
        let mut entry = entry.clone();
        entry.claim.not_poolable = true;
        entry.claim.moving_to = lease.id;
        if entry.claim.request_lease().is_some() {
            entry.claim.request_lease = self.leases.request_lease(lease.granted_ttl_s).await?.id;
        }
        let old = entry.lease;
        if !self.put_holder(name, &mut entry, old).await? || !self.leases.keep_alive(lease.id).await? {
            return Ok(None);
        }
        entry.claim = Claim {
            ttl,
            granted_ttl_s: lease.granted_ttl_s,
            moving_to: 0,
            ..entry.claim
        };
        if !self.put_holder(name, &mut entry, lease.id).await? {
            return Ok(None);
        }
        self.history.note(name, &entry, None);
        Ok(Some((entry, ttl_of(lease.granted_ttl_s))))
    }

    /// Writes a holder's record on a lease, if it is unchanged since it was read.
    pub(super) async fn put_holder(&self, name: &LockName, entry: &mut Entry, lease: i64) -> Result<bool, Failure> {
        let lock = self.keys.lock(name);
        let key = entry.holder_key(&lock);
        let when = vec![unchanged(key.clone(), entry)];
        let mut then = vec![put_on(lease, key, entry.claim.encode())];
        let moved = Entry { lease, ..entry.clone() };
        then.extend(self.history.holds(&moved));
        let answer = match self.step(&lock, when, then).await {
            Err(Failure::LeaseGone) => return Ok(false),
            answer => answer?,
        };
        if answer.succeeded {
            entry.modified = answer.revision;
            entry.lease = lease;
        }
        Ok(answer.succeeded)
    }
}

/// Whether every lease that a holder's record names now was named by its earlier record too, and its key is on the same
/// lease.
fn is_kept(before: &Entry, now: &Entry) -> bool {
    let moving = now.claim.moving_to;
    now.lease == before.lease && (moving == 0 || moving == before.claim.moving_to)
}
