//! What is remembered of holds that have ended, for a while: keys on the leases of a bucket for
//! each second, bounded in number. No safety rests on them.
//!
//! Etcd itself says of an expiry only that the key is gone. So the replica that granted a lease
//! looks when its time is over, and writes down what it finds.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use futures::future::{BoxFuture, FutureExt, Shared};
use tokio::time::{Instant, sleep};

use super::keys::Keys;
use super::leases::{Leases, span};
use super::link::{Failure, Link};
use super::record::{End, Hold};
use super::view::Entry;
use crate::backend::FINISHED_KEPT;
use crate::claim::Cause;
use crate::name::{ClaimId, LeaseKey, LockName};

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
pub struct Ends {
    keys: Keys,
    link: Arc<Link>,
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
    /// When the last sign of life of its lease was sent, if that is known.
    alive: Option<Instant>,
}

impl Ends {
    pub fn new(keys: Keys, link: Arc<Link>, leases: Arc<Leases>) -> Self {
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
        ops.extend(self.forget(entry.claim.finished_limit as usize, puts));
        Ok(ops)
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

    /// What has to go to make room for these.
    fn forget(&self, limit: usize, puts: Vec<String>) -> Vec<TxnOp> {
        let mut written = lock(&self.written);
        let mut gone = Vec::new();
        for _ in 0..FORGOTTEN_AT_ONCE {
            if gone.len() >= FORGOTTEN_KEYS {
                break;
            }
            let full = written.len() >= limit;
            let old = |(at, _): &(Instant, _)| at.elapsed() > FINISHED_KEPT + BUCKET;
            if !full && !written.front().is_some_and(old) {
                break;
            }
            // What is old has ended with its bucket.
            if let Some((_, keys)) = written.pop_front().filter(|_| full) {
                gone.extend(keys);
            }
        }
        gone.retain(|key| !puts.contains(key));
        written.push_back((Instant::now(), puts));
        gone.into_iter().map(|key| TxnOp::delete(key, None)).collect()
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
    pub fn spill(&self) {
        *lock(&self.bucket) = None;
    }

    /// How the hold of a lease ended, while that is remembered.
    pub async fn of(&self, lease: &LeaseKey) -> Result<Option<Cause>, Failure> {
        // First: an expiry is forgotten here once it is written down.
        let known = self.known(lease);
        let found = self
            .link
            .get(self.keys.end(&lease.lock.name, &lease.secret), GetOptions::new())
            .await?;
        let end = found.kvs().first().and_then(|kv| End::decode(kv.value()).ok());
        if let Some(end) = end {
            return Ok((end.token == lease.token).then_some(end.cause));
        }
        let Some(entry) = known else {
            return Ok(None);
        };
        // It was held, nobody ended it, and it is gone.
        self.expired(&lease.lock.name, &entry).await?;
        Ok(Some(Cause::Expired))
    }

    /// Writes down that a holder which is gone ran out, unless its end is known already, and
    /// forgets it.
    pub async fn expired(&self, name: &LockName, entry: &Entry) -> Result<(), Failure> {
        let unknown = latest(&entry.claim.holds)
            .iter()
            .map(|hold| Compare::create_revision(self.keys.end(name, &hold.secret), CompareOp::Equal, 0));
        let when: Vec<_> = unknown.collect();
        let ops = self.ops(name, entry, &entry.claim.holds, Cause::Expired).await?;
        let first = self.link.txn(Txn::new().when(when).and_then(ops)).await?;
        if first.succeeded() {
            self.remember_others(name, entry, &entry.claim.holds, Cause::Expired)
                .await;
        }
        self.ended(entry);
        Ok(())
    }

    /// Looks, again and again, for leases that have ended by themselves.
    pub async fn watch_expiries(self: Arc<Self>) {
        loop {
            sleep(LOOK_EVERY).await;
            let now = Instant::now();
            let due: Vec<_> = lock(&self.granted)
                .values()
                .filter(|granted| granted.due <= now)
                .cloned()
                .collect();
            for granted in due {
                if let Err(failure) = self.look_at(&granted).await {
                    tracing::debug!(%failure, lock = %granted.name, "could not look for an expiry");
                    break;
                }
            }
        }
    }

    async fn look_at(&self, granted: &Granted) -> Result<(), Failure> {
        let (name, entry) = (&granted.name, &granted.entry);
        let key = self.keys.lock(name).holder(entry.claim.mode.into(), entry.id);
        let found = self.link.get(key, GetOptions::new()).await?;
        let same = found.kvs().first().filter(|kv| kv.create_revision() == entry.created);
        let Some(kv) = same else {
            return self.expired(name, entry).await;
        };
        // Renewed, or its lease is just about to be found dead.
        let alive = self.leases.remaining(kv.lease()).await?.unwrap_or_default();
        let mut granted = lock(&self.granted);
        let same = |known: &&mut Granted| known.entry.created == entry.created;
        if let Some(granted) = granted.get_mut(&entry.id).filter(same) {
            granted.due = Instant::now() + alive;
        }
        Ok(())
    }
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
    use super::super::record::Claim;
    use super::super::settings::Settings;
    use super::*;
    use crate::backend::NewClaim;
    use crate::name::{Kind, LockKey, Namespace};

    #[tokio::test]
    async fn what_is_heard_of_an_earlier_claim_of_a_name_does_not_hide_the_later_one() {
        let namespace = Namespace::new("n").unwrap();
        let link = Arc::new(Link::new(&Settings::new(vec!["http://127.0.0.1:1".into()])));
        let leases = Arc::new(Leases::new(Arc::clone(&link)));
        let ends = Ends::new(Keys::new("r", &namespace), link, leases);
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
