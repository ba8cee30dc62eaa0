//! What is remembered of holds that have ended, for a while: keys on the leases of a bucket for
//! each second, bounded in number. No safety rests on them.
//!
//! Etcd itself says of an expiry only that the key is gone. So a grant writes down of its request that it holds, on a
//! lease that outlives the holder's by as long as ends are remembered: where the holder is gone and nothing else was
//! written over that, it ran out. Of any other lease the history of etcd tells ([`super::holder_history`]). And the replica that
//! granted a lease looks when its time is over, and writes down what it finds, so that the number is bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{PutOptions, Txn, TxnOp};
use futures::future::{BoxFuture, FutureExt, Shared};
use tokio::time::Instant;

use super::keys::Keys;
use super::leases::{Leases, span};
use super::cluster_client::{Failure, ClusterClient};
use super::record::{Claim, End, Hold, Request};
use super::view::Entry;
use crate::backend::{FINISHED_KEPT, NewClaim};
use crate::claim::Cause;
use crate::name::{ClaimId, LeaseKey, LockName};

mod expired;

/// How long one bucket is filled.
const BUCKET: Duration = Duration::from_secs(1);
/// How often it is looked for leases whose time is over.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How many ends are forgotten in one step at most.
const FORGOTTEN_AT_ONCE: usize = 4;
/// How many holds that end in one step are written down with it, the latest ones: etcd limits the
/// operations of a step. The others follow.
const REMEMBERED_AT_ONCE: usize = 16;
/// From how many keys on a step forgets no more.
const FORGOTTEN_KEYS: usize = 2 * REMEMBERED_AT_ONCE;

/// See the module.
#[derive(Debug)]
pub struct History {
    keys: Keys,
    link: Arc<ClusterClient>,
    leases: Arc<Leases>,
    bucket: Mutex<Option<Bucket>>,
    /// What this replica wrote, the oldest first.
    written: Mutex<VecDeque<(Instant, Vec<String>)>>,
    /// What this replica granted and has not seen end.
    granted: Mutex<HashMap<ClaimId, Granted>>,
}

/// The lease of a bucket, which the first one who needs it asks for and all others wait for too.
#[derive(Debug, Clone)]
struct Bucket {
    lease: Shared<BoxFuture<'static, Result<i64, Failure>>>,
    since: Instant,
}

#[derive(Debug, Clone)]
struct Granted {
    name: LockName,
    entry: Entry,
    due: Instant,
    /// When this replica heard of it last.
    seen: Instant,
    /// When the last sign of life of its lease was sent, if that is known.
    alive: Option<Instant>,
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

    /// Notes a grant of this replica, whose lease had its last sign of life then.
    pub fn granted_on(&self, name: &LockName, entry: &Entry, alive: Instant) {
        self.note(name, entry, Some(alive));
    }

    /// Notes a holder that this replica has seen.
    pub fn granted(&self, name: &LockName, entry: &Entry) {
        self.note(name, entry, None);
    }

    fn note(&self, name: &LockName, entry: &Entry, alive: Option<Instant>) {
        let granted = Granted {
            name: name.clone(),
            entry: entry.clone(),
            due: Instant::now() + span(entry.claim.span_s),
            seen: Instant::now(),
            alive,
        };
        let mut all = lock(&self.granted);
        // Names are used again: what is heard late of an earlier holder says nothing of this one.
        if all
            .get(&entry.id)
            .is_none_or(|known| known.entry.token() <= entry.token())
        {
            all.insert(entry.id, granted);
        }
    }

    /// A holder as this replica last saw it; it may have changed since.
    pub fn known(&self, lease: &LeaseKey) -> Option<Entry> {
        let granted = lock(&self.granted);
        let known = granted
            .get(&lease.claim)
            .filter(|known| known.name == lease.lock.name)?;
        known.entry.hold_of(lease).is_some().then(|| known.entry.clone())
    }

    /// How long a holder that this replica granted may still live, unless another renewed it.
    pub fn left(&self, claim: &ClaimId) -> Option<Duration> {
        let granted = lock(&self.granted);
        let left = granted.get(claim)?.due.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Forgets a holder, for its end was seen; when the last sign of life of its lease was sent, if
    /// that is known. (Its name may be another's by now.)
    pub fn ended(&self, holder: &Entry) -> Option<Instant> {
        let mut granted = lock(&self.granted);
        granted
            .get(&holder.id)
            .filter(|known| known.entry.created == holder.created)?;
        granted.remove(&holder.id)?.alive
    }

    /// What a step that ends these holds of a claim writes down with it.
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
            // A take-back forgets the request.
            if hold.retryable && cause != Cause::TakenBack {
                puts.push(self.keys.request(hold.id));
            }
        }
        let put = |key: &String| TxnOp::put(key.clone(), end.clone(), Some(PutOptions::new().with_lease(bucket)));
        let mut ops: Vec<_> = puts.iter().map(put).collect();
        if cause == Cause::TakenBack {
            ops.extend(self.forget_requests(holds));
        }
        let requests = holds.iter().map(|hold| self.keys.request(hold.id));
        let own: Vec<_> = puts.iter().cloned().chain(requests).collect();
        ops.extend(self.make_room(entry.claim.finished_limit as usize, &own));
        self.note_written(puts);
        Ok(ops)
    }

    /// What a grant writes down: where its holder is gone and nothing else was written since, it ran out.
    pub fn holds(&self, claim: &Claim) -> Vec<TxnOp> {
        let holds = claim.holds.iter().rev().take(REMEMBERED_AT_ONCE);
        holds.filter_map(|hold| self.hold(claim, hold.id)).collect()
    }

    /// The same for one hold.
    pub fn hold(&self, claim: &Claim, id: ClaimId) -> Option<TxnOp> {
        let hold = claim.hold(&id).filter(|hold| hold.retryable)?;
        let on_memory = PutOptions::new().with_lease(claim.memory()?);
        let (secret, base) = (hold.secret, claim.base);
        let holds = Request::Holds { secret, base }.encode();
        Some(TxnOp::put(self.keys.request(id), holds, Some(on_memory)))
    }

    /// What a step that ends these holds does for nothing to be remembered of their requests.
    pub fn forget_requests(&self, holds: &[Hold]) -> Vec<TxnOp> {
        let requests = latest(holds).iter().filter(|hold| hold.retryable);
        requests
            .map(|hold| TxnOp::delete(self.keys.request(hold.id), None))
            .collect()
    }

    /// Writes down the ends for which the step itself had no room. A step that was made is not undone
    /// where this fails: no safety rests on it.
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

    /// What has to go to make room for one end more; nothing of what the step writes itself.
    fn make_room(&self, limit: usize, keys: &[String]) -> Vec<TxnOp> {
        let mut written = lock(&self.written);
        let mut gone = Vec::new();
        for _ in 0..FORGOTTEN_AT_ONCE {
            if gone.len() >= FORGOTTEN_KEYS {
                break;
            }
            let full = written.len() >= limit;
            // What is old ends with its bucket, and its request may be another claim's by now.
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

    fn note_written(&self, keys: Vec<String>) {
        lock(&self.written).push_back((Instant::now(), keys));
    }

    /// The lease of this second's bucket.
    async fn bucket(&self) -> Result<i64, Failure> {
        // One question for all: a store that is away is to be told of to each in time, and not to one after another.
        let granting = {
            let mut bucket = lock(&self.bucket);
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

    /// Forgets the bucket, for its lease is dead.
    pub fn rotate_bucket(&self) {
        *lock(&self.bucket) = None;
    }
}

/// Whether the request of a call is remembered.
pub fn is_remembered(new: &NewClaim) -> bool {
    new.retryable && new.limits.finished > 0
}

/// Those of which the end is remembered where all end at once.
fn latest(holds: &[Hold]) -> &[Hold] {
    &holds[holds.len().saturating_sub(REMEMBERED_AT_ONCE)..]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;
    use crate::name::{Kind, LockKey, Namespace};

    fn nowhere() -> History {
        let link = Arc::new(ClusterClient::new(&Settings::new(vec!["http://127.0.0.1:1".into()])));
        let leases = Arc::new(Leases::new(Arc::clone(&link)));
        History::new(Keys::new("r", &Namespace::new("n").unwrap()), link, leases)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_the_limit_goes_and_what_is_old_is_left_to_its_lease() {
        let ends = nowhere();
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
        assert!(ends.make_room(1, &[]).is_empty(), "it may be of another claim");
        assert!(lock(&ends.written).is_empty());
    }

    #[tokio::test]
    async fn what_is_heard_of_an_earlier_claim_of_a_name_does_not_hide_the_later_one() {
        let namespace = Namespace::new("n").unwrap();
        let ends = nowhere();
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
        ends.granted_on(&name, &later, Instant::now());
        ends.granted(&name, &earlier);
        assert!(ends.known(&lease(&later)).is_some());
        assert!(ends.known(&lease(&earlier)).is_none());
        // Revisions fall with an old copy that was put back, and the base rises.
        let restored = holder(2_000, 3);
        ends.granted(&name, &restored);
        assert!(ends.known(&lease(&restored)).is_some());
    }
}
