//! Remembers how holds ended, in keys whose number is bounded and which expire. All keys of one second share a lease,
//! the bucket. Safety does not depend on them.
//!
//! The record of a request says where its claim is, and is written in the same transactions: on the session while the
//! claim waits, and then on a lease that outlives the holder's by as long as ends are remembered. If the holder is gone
//! and the record still names it, the hold expired. For other holds, etcd's history is read ([`super::expiries`]). The replica that
//! granted a lease checks it after its TTL, and records the expiry, so that the number of records is bounded.
//!
//! The ledger ([`crate::ledger`]) cannot replace this memory: transactions need stored records with their revisions,
//! also of holders that other replicas granted.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use futures::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::client::ClusterClient;
use crate::backend::etcd::data::conditions::put_on;
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::keys::Keys;
use crate::backend::etcd::data::record::{End, Hold, Request};
use crate::backend::etcd::data::view::Entry;
use crate::backend::etcd::lease::{Alive, LEASE_MARGIN, LeasePool, ttl_of};
use crate::backend::{FINISHED_KEPT, NewClaim};
use crate::claim::Cause;
use crate::name::{ClaimId, LeaseKey, LockName, Mode, Secret};

#[cfg(test)]
mod tests;

/// The time that one bucket is used for.
const BUCKET: Duration = Duration::from_secs(1);
/// How many remembered ends one step deletes at most.
const FORGOTTEN_AT_ONCE: usize = 4;
/// How many ended holds a step records at most, the latest ones, because etcd limits the operations of a transaction.
/// The others are recorded after the step.
pub(super) const REMEMBERED_AT_ONCE: usize = 16;
/// The number of deleted keys after which a step deletes no further end.
const FORGOTTEN_KEYS: usize = 2 * REMEMBERED_AT_ONCE;

/// See the module.
#[derive(Debug)]
pub struct History {
    pub(super) keys: Keys,
    pub(super) link: Arc<ClusterClient>,
    pub(super) leases: Arc<LeasePool>,
    bucket: Mutex<Option<Bucket>>,
    /// What this replica wrote, the oldest first.
    written: Mutex<VecDeque<(Instant, Vec<WrittenEnd>)>>,
    /// The holders that this replica granted or read, and whose end it has not observed.
    pub(super) granted: Mutex<Grants>,
}

/// A record of an end.
#[derive(Debug, Clone)]
pub(super) struct WrittenEnd {
    pub key: String,
    /// The record of a request may be a later claim's by now, so it is deleted only with this value.
    pub request: Option<Vec<u8>>,
}

/// The lease of a bucket. The first caller requests it, and all others wait for the same answer.
#[derive(Debug, Clone)]
struct Bucket {
    lease: Shared<BoxFuture<'static, Result<i64, Failure>>>,
    since: Instant,
}

impl History {
    pub fn new(keys: Keys, link: Arc<ClusterClient>, leases: Arc<LeasePool>) -> Self {
        Self {
            keys,
            link,
            leases,
            bucket: Mutex::default(),
            written: Mutex::default(),
            granted: Mutex::default(),
        }
    }

    /// Notes a holder that this replica has granted, read or changed. The last keep-alive of its lease was sent at
    /// `alive`, if known.
    pub fn note(&self, name: &LockName, entry: &Entry, alive: Option<Alive>) {
        let granted = Granted {
            name: name.clone(),
            entry: entry.clone(),
            due: Instant::now() + ttl_of(entry.claim.granted_ttl_s) + LEASE_MARGIN,
            seen: Instant::now(),
            alive,
        };
        let mut all = self.granted.lock();
        // Key suffixes are used again: a late note of an earlier holder does not replace a later one.
        if all
            .by_suffix
            .get(&entry.suffix)
            .is_none_or(|known| known.entry.token() <= entry.token())
        {
            all.insert(granted);
        }
    }

    /// Notes that this replica has rewritten the record of a holder, without a keep-alive of its lease.
    pub fn note_rewritten(&self, entry: &Entry) {
        if let Some(known) = self.granted.lock().by_suffix.get_mut(&entry.suffix)
            && known.entry.token() == entry.token()
            && known.entry.claim.holds == entry.claim.holds
        {
            known.entry = entry.clone();
        }
    }

    /// The holder of a lease, if known. It may have changed since.
    pub fn known(&self, lease: &LeaseKey) -> Option<Entry> {
        let granted = self.granted.lock();
        let suffix = granted.by_secret.get(&lease.secret)?;
        let known = granted
            .by_suffix
            .get(suffix)
            .filter(|known| known.name == lease.lock.name)?;
        known.entry.hold_of(lease).is_some().then(|| known.entry.clone())
    }

    /// The remaining TTL of a known holder, unless another replica renewed it; at its end, the rest of its lease.
    pub fn left(&self, suffix: KeySuffix) -> Option<Duration> {
        let granted = self.granted.lock();
        let known = granted.by_suffix.get(&suffix)?;
        let left = known.due.saturating_duration_since(Instant::now());
        let left = left.min(ttl_of(known.entry.claim.granted_ttl_s));
        (!left.is_zero()).then_some(left)
    }

    /// Forgets a holder whose end was observed. Returns when the last keep-alives of its leases were sent, if known. (A
    /// later holder under the same key suffix stays.)
    pub fn ended(&self, holder: &Entry) -> Option<Alive> {
        let mut granted = self.granted.lock();
        granted
            .by_suffix
            .get(&holder.suffix)
            .filter(|known| known.entry.created == holder.created)?;
        granted.remove(holder.suffix)?.alive
    }

    /// The writes by which a step that ends these holds records their end.
    pub async fn ops(
        &self,
        name: &LockName,
        entry: &Entry,
        holds: &[Hold],
        cause: Cause,
    ) -> Result<Vec<TxnOp>, Failure> {
        let Some(token) = entry.token().filter(|_| entry.claim.finished_limit > 0) else {
            return Ok(self.forget_requests(holds));
        };
        let bucket = self.bucket().await?;
        let end = End { cause, token }.encode();
        let mut written = Vec::new();
        for hold in latest(holds) {
            let key = self.keys.end(name, &hold.secret);
            written.push(WrittenEnd { key, request: None });
            // An undo deletes the request record.
            if hold.retryable && cause != Cause::Undone {
                let key = self.keys.request(hold.id);
                let request = Some(end.clone());
                written.push(WrittenEnd { key, request });
            }
        }
        let put = |written: &WrittenEnd| put_on(bucket, written.key.clone(), end.clone());
        let mut ops: Vec<_> = written.iter().map(put).collect();
        if cause == Cause::Undone {
            ops.extend(self.forget_requests(holds));
        }
        let requests = holds.iter().map(|hold| self.keys.request(hold.id));
        let own: Vec<_> = written.iter().map(|end| end.key.clone()).chain(requests).collect();
        ops.extend(self.make_room(entry.claim.finished_limit as usize, &own));
        self.note_written(written);
        Ok(ops)
    }

    /// The request records of a holder's holds.
    pub fn holds(&self, entry: &Entry) -> Vec<TxnOp> {
        let holds = entry.claim.holds.iter().rev().take(REMEMBERED_AT_ONCE);
        holds.filter_map(|hold| self.hold(entry, hold.id)).collect()
    }

    /// The same for one hold. Where ends are not remembered, the record is on the holder's own lease.
    pub fn hold(&self, entry: &Entry, id: ClaimId) -> Option<TxnOp> {
        let hold = entry.claim.hold(&id).filter(|hold| hold.retryable)?;
        let lease = entry.claim.request_lease().unwrap_or(entry.lease);
        Some(put_on(lease, self.keys.request(id), request_of(entry, hold)))
    }

    /// The deletes of the request records of these holds.
    pub fn forget_requests(&self, holds: &[Hold]) -> Vec<TxnOp> {
        let requests = latest(holds).iter().filter(|hold| hold.retryable);
        requests
            .map(|hold| TxnOp::delete(self.keys.request(hold.id), None))
            .collect()
    }

    /// Records the ends that did not fit into the step itself. A failure is only logged, because safety does not depend
    /// on these records.
    pub async fn remember_others(&self, name: &LockName, entry: &Entry, holds: &[Hold], cause: Cause) {
        let others = &holds[..holds.len() - latest(holds).len()];
        for some in others.rchunks(REMEMBERED_AT_ONCE) {
            let written = async {
                let ops = self.ops(name, entry, some, cause).await?;
                self.link.txn(Txn::new().and_then(ops)).await
            };
            if let Err(failure) = written.await {
                tracing::debug!(%failure, lock = %name, "not all ends are remembered");
                return;
            }
        }
    }

    /// The deletes that make room for one more end, except of keys that the step itself writes.
    pub(super) fn make_room(&self, limit: usize, keys: &[String]) -> Vec<TxnOp> {
        let mut written = self.written.lock();
        let mut gone: Vec<WrittenEnd> = Vec::new();
        for _ in 0..FORGOTTEN_AT_ONCE {
            if gone.len() >= FORGOTTEN_KEYS {
                break;
            }
            let full = written.len() >= limit;
            // Old records expire with their bucket.
            let old = |(at, _): &(Instant, _)| at.elapsed() > FINISHED_KEPT;
            let is_old = written.front().is_some_and(old);
            if !full && !is_old {
                break;
            }
            if let Some((_, keys)) = written.pop_front().filter(|_| !is_old) {
                gone.extend(keys);
            }
        }
        gone.retain(|end| !keys.contains(&end.key));
        let delete = |WrittenEnd { key, request }| match request {
            None => TxnOp::delete(key, None),
            Some(value) => {
                let same = Compare::value(key.clone(), CompareOp::Equal, value);
                TxnOp::txn(Txn::new().when([same]).and_then([TxnOp::delete(key, None)]))
            }
        };
        gone.into_iter().map(delete).collect()
    }

    pub(super) fn note_written(&self, ends: Vec<WrittenEnd>) {
        self.written.lock().push_back((Instant::now(), ends));
    }

    /// The lease of this second's bucket.
    pub(super) async fn bucket(&self) -> Result<i64, Failure> {
        // All callers share one request, so that each gets the error of an unavailable store in time.
        let granting = {
            let mut bucket = self.bucket.lock();
            let failed = |bucket: &Bucket| matches!(bucket.lease.peek(), Some(Err(_)));
            let current = bucket
                .take()
                .filter(|bucket| bucket.since.elapsed() < BUCKET && !failed(bucket));
            let current = current.unwrap_or_else(|| self.new_bucket());
            bucket.insert(current).lease.clone()
        };
        granting.await
    }

    fn new_bucket(&self) -> Bucket {
        let leases = Arc::clone(&self.leases);
        let granting = async move { Ok(leases.fresh(FINISHED_KEPT + BUCKET).await?.id) };
        Bucket {
            lease: granting.boxed().shared(),
            since: Instant::now(),
        }
    }

    /// Replaces the bucket with the next use, because its lease is dead.
    pub fn replace_history_lease(&self) {
        *self.bucket.lock() = None;
    }
}

/// Whether the request of a call is remembered.
pub fn is_remembered(new: &NewClaim) -> bool {
    new.retryable && new.limits.finished > 0
}

/// The record of a granted hold's request.
pub(super) fn request_of(entry: &Entry, hold: &Hold) -> Vec<u8> {
    let (secret, base, suffix) = (hold.secret, entry.claim.base, entry.suffix);
    Request::Holds { secret, base, suffix }.encode()
}

/// The holds whose ends are recorded if all end at once.
pub(super) fn latest(holds: &[Hold]) -> &[Hold] {
    &holds[holds.len().saturating_sub(REMEMBERED_AT_ONCE)..]
}

/// A holder's last known record.
#[derive(Debug, Clone)]
pub(super) struct Granted {
    pub name: LockName,
    pub entry: Entry,
    pub due: Instant,
    /// When this replica last granted, read or checked it.
    pub seen: Instant,
    /// When the last keep-alives of its leases were sent, if known.
    pub alive: Option<Alive>,
}

/// The holders that this replica has granted or read, and whose end it has not observed.
#[derive(Debug, Default)]
pub(super) struct Grants {
    pub(super) by_suffix: HashMap<KeySuffix, Granted>,
    /// The key suffixes of holds, by their secrets.
    by_secret: HashMap<Secret, KeySuffix>,
    /// The readers per lock, by the revision of their grant.
    readers: HashMap<LockName, BTreeSet<(i64, KeySuffix)>>,
}

impl Grants {
    /// Notes the time of a holder's expiry.
    pub(super) fn lives_until(&mut self, entry: &Entry, due: Instant) {
        let known = self.by_suffix.get_mut(&entry.suffix);
        if let Some(granted) = known.filter(|known| known.entry.created == entry.created) {
            granted.seen = Instant::now();
            granted.due = due;
        }
    }

    /// The number of known readers that hold a lock.
    pub(super) fn readers(&self, name: &LockName) -> usize {
        self.readers.get(name).map_or(0, BTreeSet::len)
    }

    /// The number of those that were granted after this revision.
    pub(super) fn readers_after(&self, name: &LockName, revision: i64) -> usize {
        let after = |(created, _): &&(i64, KeySuffix)| *created > revision;
        let readers = self.readers.get(name);
        readers.map_or(0, |readers| readers.iter().rev().take_while(after).count())
    }

    fn insert(&mut self, granted: Granted) {
        self.remove(granted.entry.suffix);
        if granted.entry.claim.terms.mode == Mode::Shared {
            let readers = self.readers.entry(granted.name.clone()).or_default();
            readers.insert((granted.entry.created, granted.entry.suffix));
        }
        let holds = &granted.entry.claim.holds;
        let suffixes = holds.iter().map(|hold| (hold.secret, granted.entry.suffix));
        self.by_secret.extend(suffixes);
        self.by_suffix.insert(granted.entry.suffix, granted);
    }

    fn remove(&mut self, suffix: KeySuffix) -> Option<Granted> {
        let gone = self.by_suffix.remove(&suffix)?;
        for hold in &gone.entry.claim.holds {
            self.by_secret.remove(&hold.secret);
        }
        if gone.entry.claim.terms.mode == Mode::Shared
            && let Some(readers) = self.readers.get_mut(&gone.name)
        {
            readers.remove(&(gone.entry.created, gone.entry.suffix));
            if readers.is_empty() {
                self.readers.remove(&gone.name);
            }
        }
        Some(gone)
    }
}
