//! Inspects and lists locks.

use futures::future::{BoxFuture, FutureExt, ready};
use futures::stream::{self, StreamExt, TryStreamExt};

use etcd_client::{GetOptions, GetResponse, SortOrder, SortTarget, TxnOp};

use super::Replica;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::keys::{LockKeys, behind};
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::ttl_of;
use crate::backend::etcd::txn::Answer;
use crate::backend::{InspectLimit, LockPage, LockSummary, PageRequest};
use crate::claim::{Holder, Queue, Waiter};
use crate::name::{FencingToken, LockName};

/// How many queries for the remaining time of leases run concurrently.
const CONCURRENT_QUERIES: usize = 32;
/// How many keys a list reads at once.
const KEYS_READ: usize = 1_000;

impl Replica {
    /// See [`crate::backend::Backend::inspect`].
    pub async fn inspect(&self, name: &LockName, limit: InspectLimit) -> Result<Queue, Failure> {
        let view = View::fetch(&self.link, &self.keys.lock(name)).await?;
        self.show(&view, limit).await
    }

    /// See [`crate::backend::Backend::holder`].
    pub async fn holder_of(&self, name: &LockName, token: FencingToken) -> Result<Option<Holder>, Failure> {
        match View::fetch_holders(&self.link, &self.keys.lock(name))
            .await?
            .holder_of(token)
        {
            Some(entry) => Ok(Some(self.show_holder(entry).await?)),
            None => Ok(None),
        }
    }

    /// A view as the API returns it.
    pub async fn show(&self, view: &View, limit: InspectLimit) -> Result<Queue, Failure> {
        // Boxed, because the compiler cannot prove that a borrowing future per entry is `Send`.
        let first: Vec<_> = view.holders.iter().take(limit.holders).collect();
        let queries: Vec<BoxFuture<'_, _>> = first.into_iter().map(|entry| self.show_holder(entry).boxed()).collect();
        let holders = stream::iter(queries).buffered(CONCURRENT_QUERIES);
        Ok(Queue {
            holders: holders.try_collect().await?,
            waiters: view.waiters.iter().take(limit.waiters).map(show_waiter).collect(),
            holder_count: view.holders.len(),
            waiter_count: view.waiters.len(),
        })
    }

    async fn show_holder(&self, entry: &Entry) -> Result<Holder, Failure> {
        let left = self.leases.remaining(entry.lease).await?.unwrap_or_default();
        // Its lease may live longer than its TTL.
        let remaining = left.min(ttl_of(entry.claim.granted_ttl_s));
        let (claim, token) = (entry.claim_in_key(), entry.holder_token()?);
        Ok(entry
            .claim
            .terms
            .holder(claim, token, remaining, entry.claim.holds.len()))
    }

    /// A view with the first granted holder of a lock alone.
    pub async fn oldest_holder(&self, lock: &LockKeys) -> Result<View, Failure> {
        let read = self.link.get(lock.holders(), first_made()).await?;
        View::read(lock, 0, read.kvs())
    }

    /// The first holder of a view, if any.
    pub async fn first_holder(&self, view: &View) -> Result<Option<Box<Holder>>, Failure> {
        match view.holders.iter().next() {
            Some(first) => Ok(Some(Box::new(self.show_holder(first).await?))),
            None => Ok(None),
        }
    }

    /// See [`crate::backend::Backend::list`].
    pub async fn list(&self, prefix: &str, page: &PageRequest) -> Result<LockPage, Failure> {
        let begin = format!("{}{prefix}", self.keys.locks());
        let end = behind(&begin);
        let mut from = match page.after.as_ref().filter(|after| after.as_str() >= prefix) {
            Some(after) => {
                LockName::new(after).map_or_else(|_| begin.clone().into(), |after| self.keys.lock(&after).behind())
            }
            None => begin.into_bytes(),
        };
        let mut listing = LockPage::default();
        loop {
            let wanted = page.size - listing.locks.len();
            let Some((names, behind)) = self.lock_names(&from, &end, wanted).await? else {
                return Ok(listing);
            };
            if wanted == 0 {
                listing.next = listing.locks.last().map(|last| last.lock.as_str().to_owned());
                return Ok(listing);
            }
            from = behind;
            let summaries: Vec<BoxFuture<'_, _>> = names.into_iter().map(|name| self.summary(name).boxed()).collect();
            let summaries = stream::iter(summaries).buffered(CONCURRENT_QUERIES);
            // None for a lock whose last claim ended meanwhile.
            listing.locks.extend(
                summaries
                    .try_filter_map(|summary| ready(Ok(summary)))
                    .try_collect::<Vec<_>>()
                    .await?,
            );
        }
    }

    /// The summary of a lock, if it has claims. They are counted, and only the first holder is read; it is not shown if
    /// its record cannot be read.
    async fn summary(&self, lock: LockName) -> Result<Option<LockSummary>, Failure> {
        let keys = self.keys.lock(&lock);
        let count = GetOptions::new().with_prefix().with_count_only();
        let reads = [
            TxnOp::get(keys.holders(), Some(first_made())),
            TxnOp::get(keys.waiters(), Some(count)),
        ];
        let answer = Answer::read(&self.link, reads.into()).await?;
        let [holders, waiters] = answer.reads.as_slice() else {
            return Err(Failure::no_answer());
        };
        let first = match View::read(&keys, answer.read_at, holders.kvs()) {
            Ok(view) => self.first_holder(&view).await?,
            Err(Failure::Damaged(_)) => None,
            Err(failure) => return Err(failure),
        };
        let count = |read: &GetResponse| usize::try_from(read.count()).unwrap_or(0);
        let summary = LockSummary {
            holders: count(holders),
            waiters: count(waiters),
            first: first.map(|first| *first),
            lock,
        };
        Ok((summary.holders + summary.waiters > 0).then_some(summary))
    }

    /// The locks of the first keys in the range, in order and each once, and the key behind them. None if there is no key.
    async fn lock_names(
        &self,
        from: &[u8],
        end: &[u8],
        wanted: usize,
    ) -> Result<Option<(Vec<LockName>, Vec<u8>)>, Failure> {
        let limit = i64::try_from(wanted.clamp(1, KEYS_READ)).unwrap_or(1);
        let options = GetOptions::new().with_range(end).with_keys_only().with_limit(limit);
        let read = self.link.get(from, options).await?;
        let Some(last) = read.kvs().last() else { return Ok(None) };
        let behind = match self.keys.name_of(last.key()) {
            Some(name) => self.keys.lock(&name).behind(),
            // Not a key of a lock.
            None => [last.key(), &[0]].concat(),
        };
        let mut names: Vec<_> = read.kvs().iter().filter_map(|kv| self.keys.name_of(kv.key())).collect();
        names.dedup();
        Ok(Some((names, behind)))
    }
}

fn show_waiter(entry: &Entry) -> Waiter {
    entry.claim.terms.waiter(entry.claim_in_key())
}

/// Selects the key with the prefix that was created first.
fn first_made() -> GetOptions {
    let first = GetOptions::new().with_prefix().with_limit(1);
    first.with_sort(SortTarget::Create, SortOrder::Ascend)
}
