//! The verbs of [`crate::backend::Backend`], as functions of one replica.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::calls::Calls;
use super::data::child::Child;
use super::data::paths::Paths;
use super::data::record::{Claim, Hold};
use super::data::view::View;
use super::fenced_connection::{FencedConnection, FencedConnections};
use super::group_commit::{Batcher, Class, Step, StepDone};
use super::history::History;
use super::leases::{Lease, WatchedLeases};
use super::table::LockTable;
use crate::backend::tree::store::{Done, Failure, Op, Reason, Stat, Tree, Version};
use crate::backend::{AcquireOutcome, Grant, NewClaim};
use crate::claim::Cause;
use crate::name::{LeaseKey, LockName};

mod acquire;
pub mod clean_up;
mod end;
mod existing_claim;
pub mod expire;
mod grant;
mod inspect;
mod metadata;
mod promote;
mod release;
mod renew;
pub mod watching;

/// How often a step is sent again when the lock changed concurrently.
const TRIES: usize = 64;

/// One namespace as this replica serves it.
#[derive(Debug)]
pub struct Replica {
    pub paths: Paths,
    pub tree: Arc<dyn Tree>,
    pub connections: Arc<FencedConnections>,
    pub batcher: Batcher,
    pub calls: Arc<Calls>,
    pub leases: Arc<WatchedLeases>,
    pub history: Arc<History>,
    pub table: Arc<LockTable>,
    /// The buckets that are known to be there.
    pub buckets: Mutex<HashSet<u16>>,
    /// Counts the grants that this replica has sent: no path of a holder is ever made twice.
    pub grants: AtomicU32,
}

/// Passes over a refusal because the lock has changed, or may have changed; any other failure is final.
fn changed<T>(step: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match step {
        Ok(done) => Ok(Some(done)),
        Err(Failure::Refused {
            reason: Reason::NoNode | Reason::NodeExists | Reason::BadVersion | Reason::NotEmpty,
            ..
        }) => Ok(None),
        Err(Failure::Outdated) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The outcome of a call, of which no step is sent once it was cancelled.
fn outcome_of(result: Result<AcquireOutcome, Failure>) -> Result<AcquireOutcome, Failure> {
    match result {
        Err(Failure::CallEnded) => Ok(AcquireOutcome::Cancelled),
        result => result,
    }
}

/// The last part of a path.
fn name_in(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The path of the node that a step has created with this operation, and its version.
fn created(done: &StepDone, index: usize) -> Result<(&str, Version), Failure> {
    match done.done.get(index) {
        Some(Done::Created(path, version)) => Ok((path, *version)),
        _ => Err(Failure::malformed()),
    }
}

/// The state of the node that a step has changed with this operation.
fn set(done: &StepDone, index: usize) -> Result<&Stat, Failure> {
    match done.done.get(index) {
        Some(Done::Set(stat)) => Ok(stat),
        _ => Err(Failure::malformed()),
    }
}

/// A lease as it is granted to a hold.
fn grant_of(lease: &Lease, hold: &Hold, ttl: Duration, waited: Duration) -> Grant {
    let (claim, holds) = (lease.claim.id, lease.claim.holds.len());
    lease
        .claim
        .terms
        .grant((claim, hold.secret), lease.token, (ttl, waited), holds)
}

impl Replica {
    /// Sends a step that no call waits for in the queue, which may rest on what was read over one connection.
    async fn step(&self, lock: &LockName, ops: Vec<Op>, read_over: Option<u64>) -> Result<StepDone, Failure> {
        let step = Step {
            lock: lock.clone(),
            class: Class::Alone,
            fenced: false,
            ops,
            read_over,
            grant: None,
            call: None,
            patient: false,
        };
        self.batcher.send(step).await
    }

    /// A granting or enqueueing step of a call.
    ///
    /// # Errors
    /// [`Failure::CallEnded`] if the call was cancelled.
    fn step_of(&self, lock: &LockName, new: &NewClaim, ops: Vec<Op>) -> Result<Step, Failure> {
        Ok(Step {
            lock: lock.clone(),
            class: Class::Alone,
            fenced: true,
            ops,
            read_over: None,
            grant: None,
            call: Some(self.calls.begin(new.call).ok_or(Failure::CallEnded)?),
            patient: false,
        })
    }

    /// A new path for the holder of a call.
    fn new_holder(&self, lock: &LockName, new: &NewClaim) -> String {
        let number = self.grants.fetch_add(1, Ordering::Relaxed);
        self.child(lock, &Child::holder_name(new, number))
    }

    /// The path of a child.
    fn child(&self, lock: &LockName, name: &str) -> String {
        format!("{}/{name}", self.paths.lock(lock))
    }

    /// Creates the nodes that a lock's nodes are under, unless they are known to be there.
    async fn ensure_bucket(&self, lock: &LockName) -> Result<(), Failure> {
        let bucket = Paths::bucket_of(lock);
        if self.buckets.lock().contains(&bucket) {
            return Ok(());
        }
        let connection = self.connections.ready().await?;
        match self.make_bucket(&connection, bucket).await {
            // The namespace was deleted by hand.
            Err(failure) if failure.is_no_node() => {
                self.connections.renew(&connection).await?;
                let connection = self.connections.ready().await?;
                self.make_bucket(&connection, bucket).await?;
            }
            made => made?,
        }
        self.buckets.lock().insert(bucket);
        Ok(())
    }

    async fn make_bucket(&self, connection: &FencedConnection, bucket: u16) -> Result<(), Failure> {
        let [locks, memory] = [self.paths.locks(bucket), self.paths.memory(bucket)];
        let ensure =
            |path: String| async move { self.connections.ensure(connection.generation, &path, Vec::new()).await };
        tokio::try_join!(ensure(locks), ensure(memory)).map(drop)
    }

    /// Reads a holder and watches over its lease; `None` if it is gone.
    async fn read_holder(
        &self,
        connection: &FencedConnection,
        lock: &LockName,
        child: &Child,
    ) -> Result<Option<Lease>, Failure> {
        let path = self.child(lock, &child.name);
        let Some((data, stat)) = self.tree.get(connection.generation, &path).await? else {
            self.leases.forget(lock, &child.name, connection.generation);
            return Ok(None);
        };
        let claim = Claim::decode(&data)?;
        let lease = self
            .leases
            .seen_now((lock, child), claim, &stat, connection.generation)?;
        Ok(Some(self.leases.note(lease)))
    }

    /// The holder as it is known over this connection, or else as it is read.
    async fn known_holder(
        &self,
        connection: &FencedConnection,
        lock: &LockName,
        child: &Child,
    ) -> Result<Option<Lease>, Failure> {
        match self.leases.get(lock, &child.name, connection.generation) {
            Some(lease) => Ok(Some(lease)),
            None => self.read_holder(connection, lock, child).await,
        }
    }

    /// The same for what is only shown: `None` also if its record cannot be read, such as one of a later release.
    async fn shown_holder(
        &self,
        connection: &FencedConnection,
        lock: &LockName,
        child: &Child,
    ) -> Result<Option<Lease>, Failure> {
        match self.known_holder(connection, lock, child).await {
            Err(Failure::Damaged(_)) => Ok(None),
            known => known,
        }
    }

    /// The holder with this hold and token, as it is known or else as it is read after the server has caught up: another
    /// replica may have added the hold, or granted the claim again.
    async fn holder_of(&self, lease: &LeaseKey) -> Result<Option<Lease>, Failure> {
        let lock = &lease.lock.name;
        let is_it = |held: &Lease| held.token == lease.token && held.claim.hold_with(lease.secret).is_some();
        if let Some(known) = self.leases.of_claim(lock, lease.claim) {
            if is_it(&known) {
                return Ok(Some(known));
            }
            self.leases.mark_outdated(&known);
        }
        let connection = self.connections.ready().await?;
        let view = self.list_now(&connection, lock).await?;
        let Some(child) = view.holders().iter().find(|holder| holder.claim == lease.claim) else {
            return Ok(None);
        };
        Ok(self.read_holder(&connection, lock, child).await?.filter(is_it))
    }

    /// How the hold of a lease that is gone ended, if that is remembered.
    async fn cause_of(&self, lease: &LeaseKey) -> Result<Option<Cause>, Failure> {
        let connection = self.connections.ready().await?;
        self.history.of_lease(connection.generation, lease).await
    }

    /// Lists a lock after the server has caught up.
    async fn list_now(&self, connection: &FencedConnection, lock: &LockName) -> Result<Arc<View>, Failure> {
        let caught_up = self.tree.sync(connection.generation, &self.paths.lock(lock));
        let (caught_up, view) = tokio::join!(caught_up, self.table.list(lock, connection));
        caught_up?;
        view
    }
}
