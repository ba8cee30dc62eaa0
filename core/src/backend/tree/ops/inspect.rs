//! Inspects and lists locks.

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::Replica;
use crate::backend::tree::data::child::Child;
use crate::backend::tree::data::paths::decode_name;
use crate::backend::tree::data::record::Claim;
use crate::backend::tree::data::view::View;
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::backend::tree::leases::Lease;
use crate::backend::tree::store::Failure;
use crate::backend::{InspectLimit, LockPage, LockSummary, PageRequest};
use crate::claim::{Holder, Queue, Waiter};
use crate::name::{FencingToken, LockName};

/// How many reads are under way at once.
const CONCURRENT: usize = 64;

impl Replica {
    /// See [`crate::backend::Backend::inspect`].
    pub async fn inspect(&self, lock: &LockName, limit: InspectLimit) -> Result<Queue, Failure> {
        let connection = self.connections.ready().await?;
        let view = self.list_now(&connection, lock).await?;
        self.show(&connection, lock, &view, limit).await
    }

    /// A view as the API returns it. Claims that ended since are left out.
    pub async fn show(
        &self,
        connection: &FencedConnection,
        lock: &LockName,
        view: &View,
        limit: InspectLimit,
    ) -> Result<Queue, Failure> {
        let holders = view.holders().iter().take(limit.holders);
        let holders = read_all(holders.map(|holder| self.read_holder(connection, lock, holder).boxed())).await?;
        let waiters = view.waiters().iter().take(limit.waiters);
        let waiters = read_all(waiters.map(|waiter| self.read_waiter(connection, lock, waiter).boxed())).await?;
        let gone = |read: usize, found: usize| read - found;
        let (read_holders, read_waiters) = (holders.len(), waiters.len());
        let mut holders: Vec<_> = holders.into_iter().flatten().collect();
        holders.sort_by_key(|lease| lease.token);
        let waiters: Vec<_> = waiters.iter().flatten().map(show_waiter).collect();
        Ok(Queue {
            holder_count: view.holders().len() - gone(read_holders, holders.len()),
            waiter_count: view.waiters().len() - gone(read_waiters, waiters.len()),
            holders: holders.iter().map(|lease| self.leases.show(lease)).collect(),
            waiters,
        })
    }

    /// The data of a waiter; `None` if it is gone.
    pub async fn read_waiter(
        &self,
        connection: &FencedConnection,
        lock: &LockName,
        waiter: &Child,
    ) -> Result<Option<Claim>, Failure> {
        let path = self.child(lock, &waiter.name);
        let read = self.tree.get(connection.generation, &path).await?;
        read.map(|(data, _)| Claim::decode(&data)).transpose()
    }

    /// See [`crate::backend::Backend::holder`].
    pub async fn holder(&self, lock: &LockName, token: FencingToken) -> Result<Option<Holder>, Failure> {
        let connection = self.connections.ready().await?;
        let lease = self.holder_with_token(&connection, lock, token).await?;
        Ok(lease.as_ref().map(|lease| self.leases.show(lease)))
    }

    /// The holder with this token, as it is after the server has caught up.
    pub async fn holder_with_token(
        &self,
        connection: &FencedConnection,
        lock: &LockName,
        token: FencingToken,
    ) -> Result<Option<Lease>, Failure> {
        let view = self.list_now(connection, lock).await?;
        for holder in view.holders() {
            // A token stays the same, so a known one that differs needs no read.
            let known = self.leases.get(lock, &holder.name, connection.generation);
            if known.is_some_and(|known| known.token != token) {
                continue;
            }
            if let Some(lease) = self.read_holder(connection, lock, holder).await?
                && lease.token == token
            {
                return Ok(Some(lease));
            }
        }
        Ok(None)
    }

    /// See [`crate::backend::Backend::list`].
    pub async fn list(&self, prefix: &str, page: &PageRequest) -> Result<LockPage, Failure> {
        let connection = self.connections.ready().await?;
        let mut names = self.names(&connection).await?;
        names.retain(|name| {
            name.as_str().starts_with(prefix) && page.after.as_deref().is_none_or(|after| name.as_str() > after)
        });
        names.sort();
        let (mut listing, mut names) = (LockPage::default(), names.into_iter());
        while listing.locks.len() < page.size && names.len() > 0 {
            let missing = names.by_ref().take(page.size - listing.locks.len());
            // None for a lock whose last claim ended meanwhile.
            let read = read_all(missing.map(|name| self.summary(&connection, name).boxed())).await?;
            listing.locks.extend(read.into_iter().flatten());
        }
        if names.len() > 0 {
            listing.next = listing.locks.last().map(|last| last.lock.as_str().to_owned());
        }
        Ok(listing)
    }

    /// The locks that have nodes, after the server has caught up.
    async fn names(&self, connection: &FencedConnection) -> Result<Vec<LockName>, Failure> {
        let sync = self.tree.sync(connection.generation, &self.paths.base());
        let all = self.paths.all_locks();
        let buckets = self.tree.children(connection.generation, &all);
        sync.await?;
        let buckets = buckets.await?.map(|(names, _)| names).unwrap_or_default();
        let reads: Vec<_> = buckets
            .iter()
            .map(|bucket| self.tree.children(connection.generation, &format!("{all}/{bucket}")))
            .collect();
        let mut names = Vec::new();
        for read in reads {
            let children = read.await?.map(|(children, _)| children).unwrap_or_default();
            names.extend(children.iter().filter_map(|child| decode_name(child)));
        }
        Ok(names)
    }

    /// The summary of a lock, if it has claims.
    async fn summary(&self, connection: &FencedConnection, lock: LockName) -> Result<Option<LockSummary>, Failure> {
        let path = self.paths.lock(&lock);
        let children = self.tree.children(connection.generation, &path).await?;
        let view = View::of(&children.map(|(names, _)| names).unwrap_or_default());
        if view.is_empty() {
            return Ok(None);
        }
        let first = self.first_holder(connection, &lock, &view).await?;
        Ok(Some(LockSummary {
            holders: view.holders().len(),
            waiters: view.waiters().len(),
            first: first.map(|first| *first),
            lock,
        }))
    }
}

/// Reads several at once. Boxed, because the compiler cannot prove that a borrowing future per child is `Send`.
pub fn read_all<'a, T: Send + 'a>(
    reads: impl Iterator<Item = BoxFuture<'a, Result<T, Failure>>>,
) -> impl Future<Output = Result<Vec<T>, Failure>> + Send {
    let reads: Vec<_> = reads.collect();
    stream::iter(reads).buffered(CONCURRENT).try_collect()
}

fn show_waiter(claim: &Claim) -> Waiter {
    claim.terms.waiter(claim.id)
}
