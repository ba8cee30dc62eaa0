//! Holders that ran out. Etcd says of that only that their keys are gone.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::time::{Instant, sleep};

use super::super::grant::absent;
use super::super::cluster_client::Failure;
use super::super::holder_history::{self, HolderEnd, HolderHistory};
use super::super::record::{End, Hold, Request};
use super::super::batches::Answer;
use super::super::view::Entry;
use super::{History, Granted, LOOK_EVERY, REMEMBERED_AT_ONCE, latest, lock};
use crate::backend::FINISHED_KEPT;
use crate::claim::Cause;
use crate::name::{FencingToken, LeaseKey, LockName, Secret};

impl History {
    /// How the hold of a lease ended, while that is remembered.
    pub async fn of(&self, lease: &LeaseKey) -> Result<Option<Cause>, Failure> {
        let name = &lease.lock.name;
        let reads = [
            self.keys.end(name, &lease.secret),
            self.keys.request(lease.claim),
            self.keys.lock(name).holder(lease.kind, lease.claim),
            self.keys.base(),
        ];
        let reads: Vec<_> = reads.map(|key| TxnOp::get(key, None)).into();
        let answer = Answer::of(&self.link.txn(Txn::new().and_then(reads)).await?);
        let read = |at: usize| answer.reads.get(at).and_then(|read| read.kvs().first());
        if let Some(end) = read(0).and_then(|kv| End::decode(kv.value()).ok()) {
            return Ok((end.token == lease.token).then_some(end.cause));
        }
        let granted = granted_at(lease.token, read(3));
        if read(2).is_some_and(|kv| Some(kv.create_revision()) == granted) {
            // Another hold of it is there still.
            return Ok(None);
        }
        let request = read(1).and_then(|kv| Request::decode(kv.value()).ok());
        let past = |granted| HolderHistory::new(&self.link, self.keys.lock(name), (lease.kind, lease.claim), granted);
        let ran_out = match (request, granted) {
            // The record names neither a lock nor a token: a lease with a false one was never granted.
            (Some(Request::Holds { secret, base }), _) if secret == lease.secret => match revision(lease.token, base) {
                Some(granted) => past(granted).was_granted(answer.revision).await? != Some(false),
                None => false,
            },
            (_, Some(granted)) => {
                let last = past(granted).last(answer.revision).await?;
                let last = last.filter(|last| last.entry.hold_of(lease).is_some());
                self.is_unexplained(name, last, &[lease.secret]).await?
            }
            (_, None) => false,
        };
        if let Some(entry) = self.known(lease) {
            self.gone(name, &entry).await?;
        }
        Ok(ran_out.then_some(Cause::Expired))
    }

    /// How the holder with a token ended of which nothing is written down.
    pub async fn of_token(&self, name: &LockName, token: FencingToken) -> Result<Option<Cause>, Failure> {
        let base = self.link.get(self.keys.base(), GetOptions::new()).await?;
        let Some(granted) = granted_at(token, base.kvs().first()) else {
            return Ok(None);
        };
        let lock = self.keys.lock(name);
        let Some(entry) = holder_history::granted_at(&self.link, &lock, granted).await? else {
            return Ok(None);
        };
        let ran_out = self.ran_out(name, &entry).await?;
        Ok(ran_out.then_some(Cause::Expired))
    }

    /// Whether a holder that is gone ran out, by what etcd still has of its history.
    async fn ran_out(&self, name: &LockName, entry: &Entry) -> Result<bool, Failure> {
        let kind = entry.claim.mode.into();
        let past = HolderHistory::new(&self.link, self.keys.lock(name), (kind, entry.id), entry.created);
        let now = self.link.get(self.keys.base(), GetOptions::new()).await?;
        let now = now.header().map_or(0, |header| header.revision());
        let last = past.last(now).await?;
        let secrets: Vec<_> = latest(&entry.claim.holds).iter().map(|hold| hold.secret).collect();
        self.is_unexplained(name, last, &secrets).await
    }

    /// Whether a holder went away in a step that wrote nothing down of it.
    async fn is_unexplained(&self, name: &LockName, last: Option<HolderEnd>, holds: &[Secret]) -> Result<bool, Failure> {
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

    /// A holder is gone, and this replica did not end it: writes its end down if it ran out, and forgets it.
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
        if end == 0 && self.ran_out(name, entry).await? {
            self.write_expiry(name, entry).await?;
        }
        self.ended(entry);
        Ok(())
    }

    /// Writes down that a holder ran out; of each hold and request, if nothing else is written of it.
    async fn write_expiry(&self, name: &LockName, entry: &Entry) -> Result<(), Failure> {
        let Some(token) = entry.token().filter(|_| entry.claim.finished_limit > 0) else {
            return Ok(());
        };
        let cause = Cause::Expired;
        let end = End { cause, token }.encode();
        for holds in entry.claim.holds.rchunks(REMEMBERED_AT_ONCE) {
            let bucket = self.bucket().await?;
            let of_hold = |hold: &Hold| {
                let end = self.keys.end(name, &hold.secret);
                (absent(end.clone()), end)
            };
            let of_request = |hold: &Hold| {
                let request = self.keys.request(hold.id);
                let (secret, base) = (hold.secret, entry.claim.base);
                let holds = Request::Holds { secret, base }.encode();
                (Compare::value(request.clone(), CompareOp::Equal, holds), request)
            };
            let requests = holds.iter().filter(|hold| hold.retryable).map(of_request);
            let all: Vec<_> = holds.iter().map(of_hold).chain(requests).collect();
            let write = |(still, key): &(Compare, String)| {
                let put = TxnOp::put(key.clone(), end.clone(), Some(PutOptions::new().with_lease(bucket)));
                TxnOp::txn(Txn::new().when([still.clone()]).and_then([put]))
            };
            let mut ops: Vec<_> = all.iter().map(write).collect();
            let keys: Vec<_> = all.into_iter().map(|(_, key)| key).collect();
            ops.extend(self.make_room(entry.claim.finished_limit as usize, &keys));
            let answer = self.link.txn(Txn::new().and_then(ops)).await?;
            let nested = answer.op_responses().into_iter().zip(keys);
            let written = nested.filter(|(one, _)| matches!(one, TxnOpResponse::Txn(one) if one.succeeded()));
            self.note_written(written.map(|(_, key)| key).collect());
        }
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
            // One that may have gone long ago is not worth a look into the history.
            if granted.seen.elapsed() > FINISHED_KEPT {
                self.ended(entry);
                return Ok(());
            }
            return self.gone(name, entry).await;
        };
        // Renewed, or its lease is just about to be found dead.
        let alive = self.leases.remaining(kv.lease()).await?.unwrap_or_default();
        let mut granted = lock(&self.granted);
        let same = |known: &&mut Granted| known.entry.created == entry.created;
        if let Some(granted) = granted.get_mut(&entry.id).filter(same) {
            granted.seen = Instant::now();
            granted.due = granted.seen + alive;
        }
        Ok(())
    }
}

/// The revision of the grant that a token is of, if it is of this base.
fn granted_at(token: FencingToken, base: Option<&KeyValue>) -> Option<i64> {
    revision(token, base?.value_str().ok()?.parse().ok()?)
}

/// The revision of the grant that a token counts from this base.
fn revision(token: FencingToken, base: u64) -> Option<i64> {
    let granted = i64::try_from(token.get().checked_sub(base)?).ok()?;
    (granted > 0).then_some(granted)
}
