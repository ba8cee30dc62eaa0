//! Remembers how holds ended, in keys whose number is bounded and which expire. All keys of one second share a lease,
//! the bucket. Safety does not depend on them.
//!
//! For an expired hold, etcd shows only that the key is gone. So a grant records for its request that it holds, on a
//! lease that outlives the holder's by as long as ends are remembered. If the holder is gone and the record is
//! unchanged, the hold expired. For other holds, etcd's history is read ([`super::expiries`]). The replica that
//! granted a lease checks it after its TTL, and records the expiry, so that the number of records is bounded.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use futures::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::client::ClusterClient;
use crate::backend::etcd::data::conditions::put_on;
use crate::backend::etcd::data::keys::Keys;
use crate::backend::etcd::data::record::{Claim, End, Hold, Request};
use crate::backend::etcd::data::view::Entry;
use crate::backend::etcd::lease::{Leases, span};
use crate::backend::{FINISHED_KEPT, NewClaim};
use crate::claim::Cause;
use crate::name::{ClaimId, LeaseKey, LockName, Mode};

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
    pub(super) leases: Arc<Leases>,
    bucket: Mutex<Option<Bucket>>,
    /// What this replica wrote, the oldest first.
    written: Mutex<VecDeque<(Instant, Vec<String>)>>,
    /// The holders that this replica granted or read, and whose end it has not observed.
    pub(super) granted: Mutex<Grants>,
}

/// The lease of a bucket. The first caller requests it, and all others wait for the same answer.
#[derive(Debug, Clone)]
struct Bucket {
    lease: Shared<BoxFuture<'static, Result<i64, Failure>>>,
    since: Instant,
}

impl History {
    pub fn new(keys: Keys, link: Arc<ClusterClient>, leases: Arc<Leases>) -> Self {
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
    pub fn note(&self, name: &LockName, entry: &Entry, alive: Option<Instant>) {
        let granted = Granted {
            name: name.clone(),
            entry: entry.clone(),
            due: Instant::now() + span(entry.claim.span_s),
            seen: Instant::now(),
            alive,
        };
        let mut all = self.granted.lock();
        // Ids are reused: a late note of an earlier holder does not replace a later one.
        if all
            .by_claim
            .get(&entry.id)
            .is_none_or(|known| known.entry.token() <= entry.token())
        {
            all.insert(granted);
        }
    }

    /// The holder of a lease, if known. It may have changed since.
    pub fn known(&self, lease: &LeaseKey) -> Option<Entry> {
        let granted = self.granted.lock();
        let known = granted
            .by_claim
            .get(&lease.claim)
            .filter(|known| known.name == lease.lock.name)?;
        known.entry.hold_of(lease).is_some().then(|| known.entry.clone())
    }

    /// The number of known readers that hold a lock.
    pub fn readers(&self, name: &LockName) -> usize {
        self.granted.lock().readers(name)
    }

    /// The number of those that were granted after this revision.
    pub fn readers_after(&self, name: &LockName, revision: i64) -> usize {
        self.granted.lock().readers_after(name, revision)
    }

    /// The remaining TTL of a known holder, unless another replica renewed it.
    pub fn left(&self, claim: &ClaimId) -> Option<Duration> {
        let granted = self.granted.lock();
        let left = granted
            .by_claim
            .get(claim)?
            .due
            .saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Forgets a holder whose end was observed. Returns when the last keep-alive of its lease was sent, if known. (A
    /// later holder with the same id stays.)
    pub fn ended(&self, holder: &Entry) -> Option<Instant> {
        let mut granted = self.granted.lock();
        granted
            .by_claim
            .get(&holder.id)
            .filter(|known| known.entry.created == holder.created)?;
        granted.remove(&holder.id)?.alive
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
            return Ok(Vec::new());
        };
        let bucket = self.bucket().await?;
        let end = End { cause, token }.encode();
        let mut puts = Vec::new();
        for hold in latest(holds) {
            puts.push(self.keys.end(name, &hold.secret));
            // An undo deletes the request record.
            if hold.retryable && cause != Cause::Undone {
                puts.push(self.keys.request(hold.id));
            }
        }
        let put = |key: &String| put_on(bucket, key.clone(), end.clone());
        let mut ops: Vec<_> = puts.iter().map(put).collect();
        if cause == Cause::Undone {
            ops.extend(self.forget_requests(holds));
        }
        let requests = holds.iter().map(|hold| self.keys.request(hold.id));
        let own: Vec<_> = puts.iter().cloned().chain(requests).collect();
        ops.extend(self.make_room(entry.claim.finished_limit as usize, &own));
        self.note_written(puts);
        Ok(ops)
    }

    /// The request records that a grant writes. If a record is unchanged after its holder is gone, the hold expired.
    pub fn holds(&self, claim: &Claim) -> Vec<TxnOp> {
        let holds = claim.holds.iter().rev().take(REMEMBERED_AT_ONCE);
        holds.filter_map(|hold| self.hold(claim, hold.id)).collect()
    }

    /// The same for one hold.
    pub fn hold(&self, claim: &Claim, id: ClaimId) -> Option<TxnOp> {
        let hold = claim.hold(&id).filter(|hold| hold.retryable)?;
        let memory = claim.memory()?;
        let (secret, base) = (hold.secret, claim.base);
        let holds = Request::Holds { secret, base }.encode();
        Some(put_on(memory, self.keys.request(id), holds))
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
        let mut gone = Vec::new();
        for _ in 0..FORGOTTEN_AT_ONCE {
            if gone.len() >= FORGOTTEN_KEYS {
                break;
            }
            let full = written.len() >= limit;
            // Old records expire with their bucket, and their request key may be another claim's by now.
            let old = |(at, _): &(Instant, _)| at.elapsed() > FINISHED_KEPT;
            let is_old = written.front().is_some_and(old);
            if !full && !is_old {
                break;
            }
            if let Some((_, keys)) = written.pop_front().filter(|_| !is_old) {
                gone.extend(keys);
            }
        }
        gone.retain(|key| !keys.contains(key));
        gone.into_iter().map(|key| TxnOp::delete(key, None)).collect()
    }

    pub(super) fn note_written(&self, keys: Vec<String>) {
        self.written.lock().push_back((Instant::now(), keys));
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
    pub fn rotate_bucket(&self) {
        *self.bucket.lock() = None;
    }
}

/// Whether the request of a call is remembered.
pub fn is_remembered(new: &NewClaim) -> bool {
    new.retryable && new.limits.finished > 0
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
    /// When the last keep-alive of its lease was sent, if known.
    pub alive: Option<Instant>,
}

/// The holders that this replica has granted or read, and whose end it has not observed.
#[derive(Debug, Default)]
pub(super) struct Grants {
    pub(super) by_claim: HashMap<ClaimId, Granted>,
    /// Those that are readers, per lock, by the revision of their grant.
    readers: HashMap<LockName, BTreeSet<(i64, ClaimId)>>,
}

impl Grants {
    /// Notes the time of a holder's expiry.
    pub(super) fn lives_until(&mut self, entry: &Entry, due: Instant) {
        let known = self.by_claim.get_mut(&entry.id);
        if let Some(granted) = known.filter(|known| known.entry.created == entry.created) {
            granted.seen = Instant::now();
            granted.due = due;
        }
    }

    /// The number of known readers that hold a lock.
    fn readers(&self, name: &LockName) -> usize {
        self.readers.get(name).map_or(0, BTreeSet::len)
    }

    /// The number of those that were granted after this revision.
    fn readers_after(&self, name: &LockName, revision: i64) -> usize {
        let after = |(created, _): &&(i64, ClaimId)| *created > revision;
        let readers = self.readers.get(name);
        readers.map_or(0, |readers| readers.iter().rev().take_while(after).count())
    }

    fn insert(&mut self, granted: Granted) {
        self.remove(&granted.entry.id);
        if granted.entry.claim.mode == Mode::Shared {
            let readers = self.readers.entry(granted.name.clone()).or_default();
            readers.insert((granted.entry.created, granted.entry.id));
        }
        self.by_claim.insert(granted.entry.id, granted);
    }

    fn remove(&mut self, claim: &ClaimId) -> Option<Granted> {
        let gone = self.by_claim.remove(claim)?;
        if gone.entry.claim.mode == Mode::Shared
            && let Some(readers) = self.readers.get_mut(&gone.name)
        {
            readers.remove(&(gone.entry.created, gone.entry.id));
            if readers.is_empty() {
                self.readers.remove(&gone.name);
            }
        }
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::etcd::cluster::settings::Settings;
    use crate::name::{Kind, LockKey, Namespace};

    fn unreachable_history() -> History {
        let link = Arc::new(ClusterClient::new(&Settings::new(vec!["http://127.0.0.1:1".into()])));
        let leases = Arc::new(Leases::new(Arc::clone(&link)));
        History::new(Keys::new("r", &Namespace::new("n").unwrap()), link, leases)
    }

    #[tokio::test(start_paused = true)]
    async fn records_over_the_limit_are_deleted_and_old_ones_are_left_to_expire() {
        let ends = unreachable_history();
        let note = || ends.note_written(vec!["key".into()]);
        note();
        assert_eq!(ends.make_room(1, &[]).len(), 1);
        note();
        assert!(
            ends.make_room(1, &["key".into()]).is_empty(),
            "the step writes it itself"
        );
        note();
        tokio::time::advance(FINISHED_KEPT + Duration::from_millis(1)).await;
        assert!(ends.make_room(1, &[]).is_empty(), "it may be another claim's");
        assert!(ends.written.lock().is_empty());
    }

    #[tokio::test]
    async fn a_late_note_of_an_earlier_claim_of_an_id_does_not_replace_the_later_one() {
        let namespace = Namespace::new("n").unwrap();
        let ends = unreachable_history();
        let name = LockName::new("a").unwrap();
        let new = NewClaim::numbered(1);
        let holder = |base, created| Entry {
            id: new.id,
            claim: Claim {
                base,
                ..Claim::of(&new)
            },
            created,
            modified: created,
            is_earlier: false,
            lease: 1,
        };
        let lease = |entry: &Entry| LeaseKey {
            lock: LockKey {
                namespace: namespace.clone(),
                name: name.clone(),
            },
            kind: Kind::Exclusive,
            claim: entry.id,
            token: entry.token().unwrap(),
            secret: new.secret,
        };
        let (earlier, later) = (holder(1_000, 7), holder(1_000, 9));
        ends.note(&name, &later, Some(Instant::now()));
        ends.note(&name, &earlier, None);
        assert!(ends.known(&lease(&later)).is_some());
        assert!(ends.known(&lease(&earlier)).is_none());
        // Revisions fall when an old snapshot is restored, and the token base rises.
        let restored = holder(2_000, 3);
        ends.note(&name, &restored, None);
        assert!(ends.known(&lease(&restored)).is_some());
    }

    #[test]
    fn known_readers_are_counted_per_lock() {
        let (mut grants, name) = (Grants::default(), LockName::new("a").unwrap());
        let granted = |number, mode| {
            let new = NewClaim::numbered(number);
            let claim = Claim {
                mode,
                ..Claim::of(&new)
            };
            Granted {
                name: name.clone(),
                entry: Entry {
                    id: new.id,
                    claim,
                    created: 1,
                    modified: 1,
                    lease: 1,
                    is_earlier: false,
                },
                due: Instant::now(),
                seen: Instant::now(),
                alive: None,
            }
        };
        for number in [1, 2, 1] {
            grants.insert(granted(number, Mode::Shared));
        }
        grants.insert(granted(3, Mode::Exclusive));
        assert_eq!(
            [
                grants.readers(&name),
                grants.readers_after(&name, 0),
                grants.readers_after(&name, 1)
            ],
            [2, 2, 0]
        );
        for number in [1, 1, 2, 3] {
            grants.remove(&NewClaim::numbered(number).id);
        }
        assert_eq!(
            (grants.readers(&name), grants.readers.len(), grants.by_claim.len()),
            (0, 0, 0)
        );
    }
}
