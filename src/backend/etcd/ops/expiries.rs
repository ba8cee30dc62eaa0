//! Finds out whether holders expired. Etcd shows only that their keys are gone.
//!
//! The step that releases, forces or undoes a holder writes a record of the end at the same revision. So a holder
//! without such a record expired. Any replica can find that out until etcd compacts the history.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse};
use tokio::time::{Instant, sleep};

use super::history::{Granted, History, REMEMBERED_AT_ONCE, WrittenEnd, latest, request_of};
use crate::backend::FINISHED_KEPT;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::client::ClusterClient;
use crate::backend::etcd::data::conditions::{absent, put_on};
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::keys::LockKeys;
use crate::backend::etcd::data::record::{End, Hold, Request};
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::base::Base;
use crate::backend::etcd::txn::Answer;
use crate::claim::Cause;
use crate::name::{FencingToken, LeaseKey, LockName, Secret};

/// How often leases whose TTL has passed are checked.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How many earlier token bases are read at most to find a token's grant: each is a read, also for an invented token.
const EARLIER_BASES: usize = 32;
/// The factor by which the distance of each read into the past grows.
const DISTANCE_FACTOR: i64 = 4;

impl History {
    /// How the hold of a lease ended, as far as that is remembered.
    pub async fn of(&self, lease: &LeaseKey) -> Result<Option<Cause>, Failure> {
        let name = &lease.lock.name;
        let lock = self.keys.lock(name);
        let reads = [
            self.keys.end(name, &lease.secret),
            self.keys.request(lease.claim),
            self.keys.sessions.base(),
        ];
        let reads = reads.map(|key| TxnOp::get(key, None)).into();
        let answer = Answer::read(&self.link, reads).await?;
        let read = |at: usize| answer.reads.get(at).and_then(|read| read.kvs().first());
        if let Some(end) = read(0).and_then(|kv| End::decode(kv.value()).ok()) {
            return Ok((end.token == lease.token).then_some(end.cause));
        }
        let request = read(1).and_then(|kv| Request::decode(kv.value()).ok());
        let (is_recorded, suffix, granted) = match request {
            Some(Request::Holds { secret, base, suffix }) if secret == lease.secret => {
                (true, suffix, revision_of(lease.token, base))
            }
            _ => {
                let granted = self.granted_at(lease.token, read(2)).await?;
                (false, KeySuffix::of_lease(lease.claim), granted)
            }
        };
        let has_expired = match granted {
            Some(granted) => {
                let holder_history = HolderHistory {
                    link: &self.link,
                    key: lock.holder(lease.kind, suffix),
                    lock,
                    suffix,
                    granted,
                };
                match holder_history.at(answer.revision).await? {
                    // Another hold of the same claim still exists.
                    RecordAt::Held(_) => return Ok(None),
                    // The record contains neither the lock nor the token, so the grant is verified in etcd's history.
                    _ if is_recorded => {
                        let then = holder_history.at(granted).await?;
                        granted <= answer.revision && !matches!(then, RecordAt::Gone)
                    }
                    _ => {
                        let last = holder_history.last(answer.revision).await?;
                        let last = last.filter(|last| last.entry.hold_of(lease).is_some());
                        self.is_unrecorded(name, last, &[lease.secret]).await?
                    }
                }
            }
            None => false,
        };
        if let Some(entry) = self.known(lease) {
            self.gone(name, &entry).await?;
        }
        Ok(has_expired.then_some(Cause::Expired))
    }

    /// How the holder with a token ended, if no record of its end exists.
    pub async fn of_token(&self, name: &LockName, token: FencingToken) -> Result<Option<Cause>, Failure> {
        let base = self.link.get(self.keys.sessions.base(), GetOptions::new()).await?;
        let Some(granted) = self.granted_at(token, base.kvs().first()).await? else {
            return Ok(None);
        };
        let lock = self.keys.lock(name);
        let entry = holder_at(&self.link, &lock, granted).await?;
        let Some(entry) = entry.filter(|entry| entry.token() == Some(token)) else {
            return Ok(None);
        };
        let has_expired = self.has_expired(name, &entry).await?;
        Ok(has_expired.then_some(Cause::Expired))
    }

    /// The revision of a token's grant, if etcd still has the token base that it counts from. `base` is the present one.
    /// Each start and each new connection of a server raises the base, so earlier ones are read, too.
    async fn granted_at(&self, token: FencingToken, base: Option<&KeyValue>) -> Result<Option<i64>, Failure> {
        let key = self.keys.sessions.base();
        let mut base = base.cloned();
        for _ in 0..=EARLIER_BASES {
            let Some(kv) = base else { break };
            let raised = kv.mod_revision();
            let granted = Base::read(Some(&kv)).open().and_then(|base| revision_of(token, base));
            // A grant compares the base, so it came after the base was written.
            if granted.is_some_and(|granted| granted > raised) {
                return Ok(granted);
            }
            let earlier = read_at(&self.link, &key, GetOptions::new(), raised - 1).await?;
            base = earlier.and_then(|read| read.kvs().first().cloned());
        }
        Ok(None)
    }

    /// Whether a holder that is gone expired, as far as etcd still has its history.
    async fn has_expired(&self, name: &LockName, entry: &Entry) -> Result<bool, Failure> {
        let holder_history = HolderHistory::of(&self.link, self.keys.lock(name), entry);
        let now = self.link.get(self.keys.sessions.base(), GetOptions::new()).await?;
        let now = now.header().map_or(0, |header| header.revision());
        let last = holder_history.last(now).await?;
        let secrets: Vec<_> = latest(&entry.claim.holds).iter().map(|hold| hold.secret).collect();
        self.is_unrecorded(name, last, &secrets).await
    }

    /// Whether a holder's key was deleted without a record of its end. Then it expired.
    async fn is_unrecorded(&self, name: &LockName, last: Option<HolderEnd>, holds: &[Secret]) -> Result<bool, Failure> {
        let (Some(last), Some(secret)) = (last, holds.last()) else {
            return Ok(false);
        };
        let then = GetOptions::new().with_revision(last.gone_at).with_keys_only();
        let end = match self.link.get(self.keys.end(name, secret), then).await {
            Err(Failure::Refused(_)) => return Ok(false),
            end => end?,
        };
        Ok(end.kvs().is_empty())
    }

    /// Forgets a holder that is gone and that this replica did not end, and records its expiry if it expired.
    pub async fn gone(&self, name: &LockName, entry: &Entry) -> Result<(), Failure> {
        let last = entry.claim.holds.last();
        let end = match last {
            Some(hold) => self
                .link
                .get(self.keys.end(name, &hold.secret), GetOptions::new())
                .await?
                .count(),
            None => 1,
        };
        if end == 0 && self.has_expired(name, entry).await? {
            self.write_expiry(name, entry).await?;
        }
        self.ended(entry);
        Ok(())
    }

    /// Records that a holder expired, for each hold and request that has no other record.
    async fn write_expiry(&self, name: &LockName, entry: &Entry) -> Result<(), Failure> {
        let Some(token) = entry.token().filter(|_| entry.claim.finished_limit > 0) else {
            return Ok(());
        };
        let cause = Cause::Expired;
        let end = End { cause, token }.encode();
        for holds in entry.claim.holds.rchunks(REMEMBERED_AT_ONCE) {
            let bucket = self.bucket().await?;
            let of_hold = |hold: &Hold| {
                let key = self.keys.end(name, &hold.secret);
                (absent(key.clone()), WrittenEnd { key, request: None })
            };
            let of_request = |hold: &Hold| {
                let key = self.keys.request(hold.id);
                let still = Compare::value(key.clone(), CompareOp::Equal, request_of(entry, hold));
                let request = Some(end.clone());
                (still, WrittenEnd { key, request })
            };
            let requests = holds.iter().filter(|hold| hold.retryable).map(of_request);
            let all: Vec<_> = holds.iter().map(of_hold).chain(requests).collect();
            let write = |(still, written): &(Compare, WrittenEnd)| {
                let put = put_on(bucket, written.key.clone(), end.clone());
                TxnOp::txn(Txn::new().when([still.clone()]).and_then([put]))
            };
            let mut ops: Vec<_> = all.iter().map(write).collect();
            let ends: Vec<_> = all.into_iter().map(|(_, written)| written).collect();
            let keys: Vec<_> = ends.iter().map(|written| written.key.clone()).collect();
            ops.extend(self.make_room(entry.claim.finished_limit as usize, &keys));
            let answer = self.link.txn(Txn::new().and_then(ops)).await?;
            let nested = answer.op_responses().into_iter().zip(ends);
            let written = nested.filter(|(one, _)| matches!(one, TxnOpResponse::Txn(one) if one.succeeded()));
            self.note_written(written.map(|(_, end)| end).collect());
        }
        Ok(())
    }

    /// Checks for expired leases every [`LOOK_EVERY`].
    pub async fn watch_expiries(self: Arc<Self>) {
        loop {
            sleep(LOOK_EVERY).await;
            let now = Instant::now();
            let due: Vec<_> = self
                .granted
                .lock()
                .by_suffix
                .values()
                .filter(|granted| granted.due <= now)
                .cloned()
                .collect();
            for granted in due {
                if let Err(failure) = self.check_expiry(&granted).await {
                    tracing::debug!(%failure, lock = %granted.name, "could not check for an expiry");
                    break;
                }
            }
        }
    }

    async fn check_expiry(&self, granted: &Granted) -> Result<(), Failure> {
        let (name, entry) = (&granted.name, &granted.entry);
        let key = entry.holder_key(&self.keys.lock(name));
        let found = self.link.get(key, GetOptions::new()).await?;
        let same = found.kvs().first().filter(|kv| kv.create_revision() == entry.created);
        let Some(kv) = same else {
            // The end may be older than what is remembered, so the history is not read.
            if granted.seen.elapsed() > FINISHED_KEPT {
                self.ended(entry);
                return Ok(());
            }
            return self.gone(name, entry).await;
        };
        // It was renewed, or its lease is about to expire.
        let alive = self.leases.remaining(kv.lease()).await?.unwrap_or_default();
        self.granted.lock().lives_until(entry, Instant::now() + alive);
        Ok(())
    }
}

/// The revision of a token's grant, if the token counts from this base.
fn revision_of(token: FencingToken, base: u64) -> Option<i64> {
    let granted = i64::try_from(token.get().checked_sub(base)?).ok()?;
    (granted > 0).then_some(granted)
}

/// A holder, identified by the revision of its grant.
struct HolderHistory<'a> {
    link: &'a ClusterClient,
    lock: LockKeys,
    key: String,
    suffix: KeySuffix,
    granted: i64,
}

/// The end of a holder.
struct HolderEnd {
    /// The last record of the holder.
    entry: Entry,
    /// The first revision without it.
    gone_at: i64,
}

/// The state of the holder's key at a revision.
enum RecordAt {
    Held(Box<Entry>),
    Gone,
    Compacted,
}

impl<'a> HolderHistory<'a> {
    /// A holder that was read.
    fn of(link: &'a ClusterClient, lock: LockKeys, entry: &Entry) -> Self {
        Self {
            link,
            key: entry.holder_key(&lock),
            lock,
            suffix: entry.suffix,
            granted: entry.created,
        }
    }

    /// The end of the holder before the revision `now`. None if there was no such holder, it still exists, or the
    /// history is compacted.
    ///
    /// It reads the revision of the grant first, so that an invented lease costs one read. Then it reads backwards from
    /// `now` in growing distances, and finds the end by bisection.
    async fn last(&self, now: i64) -> Result<Option<HolderEnd>, Failure> {
        if self.granted >= now || matches!(self.at(self.granted).await?, RecordAt::Gone) {
            return Ok(None);
        }
        if !matches!(self.at(now).await?, RecordAt::Gone) {
            return Ok(None);
        }
        let (mut gone_at, mut distance) = (now, 1);
        let (mut entry, mut held_at) = loop {
            let at = (now - distance).max(self.granted);
            match self.at(at).await? {
                RecordAt::Held(entry) => break (entry, at),
                RecordAt::Gone if at > self.granted => gone_at = at,
                RecordAt::Gone | RecordAt::Compacted => return Ok(None),
            }
            distance = distance.saturating_mul(DISTANCE_FACTOR);
        };
        while held_at + 1 < gone_at {
            let at = held_at + (gone_at - held_at) / 2;
            match self.at(at).await? {
                RecordAt::Held(then) => (entry, held_at) = (then, at),
                RecordAt::Gone => gone_at = at,
                RecordAt::Compacted => return Ok(None),
            }
        }
        let entry = *entry;
        Ok(Some(HolderEnd { entry, gone_at }))
    }

    async fn at(&self, revision: i64) -> Result<RecordAt, Failure> {
        let read = match read_at(self.link, &self.key, GetOptions::new(), revision).await? {
            Some(read) => read,
            None => return Ok(RecordAt::Compacted),
        };
        let view = View::read(&self.lock, revision, read.kvs())?;
        let entry = view.holders.get(self.suffix);
        let entry = entry.filter(|entry| entry.created == self.granted);
        Ok(entry.map_or(RecordAt::Gone, |entry| RecordAt::Held(Box::new(entry.clone()))))
    }
}

/// The holder of a lock that was granted at this revision, if that is not compacted.
async fn holder_at(link: &ClusterClient, lock: &LockKeys, revision: i64) -> Result<Option<Entry>, Failure> {
    let all = GetOptions::new().with_prefix();
    let Some(read) = read_at(link, &lock.holders(), all, revision).await? else {
        return Ok(None);
    };
    let view = View::read(lock, revision, read.kvs())?;
    Ok(view.holders.iter().find(|entry| entry.created == revision).cloned())
}

/// Reads at a revision. None if it is compacted, or in the future.
async fn read_at(
    link: &ClusterClient,
    key: &str,
    options: GetOptions,
    revision: i64,
) -> Result<Option<GetResponse>, Failure> {
    match link.get(key, options.with_revision(revision)).await {
        Err(Failure::Refused(_)) => Ok(None),
        read => read.map(Some),
    }
}
