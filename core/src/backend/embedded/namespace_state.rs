//! The locks of one namespace, and what they share: the memory of ended calls, the cancel marks, the watchers.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;

use super::history::Finished;
use super::lock_context::LockContext;
use super::txn_context::{NamespaceId, RecordKey, TxnContext};
use super::watching::Watchers;
use crate::backend::cancel_marks::CancelMarks;
use crate::backend::notifications::NotificationSender;
use crate::backend::{InspectLimit, LockPage, LockSummary, PageRequest, WatchEvent};
use crate::claim::{Holder, Queue};
use crate::name::{CallId, ClaimId, FencingToken, LockName};
use crate::queue::{Claim, LockState};

/// The maximum number of holders, and of waiters, in a watcher's full state.
const WATCH_LIMIT: usize = 1000;

/// One namespace of a store.
#[derive(Debug)]
pub struct NamespaceState {
    pub id: NamespaceId,
    /// Boxed, so that the nodes of the tree, of which half may be empty, are small.
    pub locks: BTreeMap<LockName, Box<LockState>>,
    /// The number of claims of all locks; each further hold of a claim counts as one.
    claims: usize,
    pub finished: Finished,
    pub marks: CancelMarks<Duration>,
    pub watchers: Watchers,
    pub notifications: NotificationSender,
}

impl NamespaceState {
    pub fn new(id: NamespaceId) -> Self {
        Self {
            id,
            locks: BTreeMap::new(),
            claims: 0,
            finished: Finished::default(),
            marks: CancelMarks::default(),
            watchers: Watchers::default(),
            notifications: NotificationSender::default(),
        }
    }

    /// Runs verbs on a lock, which is empty if nobody uses it. `claim_limit` is the maximum number of claims of the
    /// namespace, for new ones.
    pub fn run<R>(
        &mut self,
        txn: &mut TxnContext,
        name: &LockName,
        claim_limit: u32,
        verbs: impl FnOnce(&mut LockState, &mut LockContext<'_>) -> R,
    ) -> R {
        let mut unused = LockState::default();
        let used = self.locks.get_mut(name);
        let is_used = used.is_some();
        let lock = used.map_or(&mut unused, AsMut::as_mut);
        let before = lock.places();
        let mut context = LockContext {
            txn,
            namespace: self.id,
            lock: name,
            claims: self.claims,
            claim_limit,
            is_watched: self.watchers.any(name),
            finished: &mut self.finished,
            marks: &mut self.marks,
        };
        let outcome = verbs(lock, &mut context);
        let (after, is_empty) = (lock.places(), lock.is_empty());
        self.claims = self.claims + after - before;
        match (is_used, is_empty) {
            (false, false) => drop(self.locks.insert(name.clone(), Box::new(unused))),
            (true, true) => drop(self.locks.remove(name)),
            _ => {}
        }
        outcome
    }

    /// See [`crate::backend::Backend::inspect`].
    pub fn inspect(&self, ctx: &TxnContext, name: &LockName, limit: InspectLimit) -> Queue {
        let lock = self.locks.get(name);
        lock.map(|lock| lock.inspect(ctx.now, limit)).unwrap_or_default()
    }

    /// See [`crate::backend::Backend::owns`].
    pub fn owns(&self, name: &LockName, claim: &ClaimId, call: CallId) -> bool {
        self.locks.get(name).is_some_and(|lock| lock.owns(claim, call))
    }

    /// See [`crate::backend::Backend::holder`].
    pub fn holder(&self, ctx: &TxnContext, name: &LockName, token: FencingToken) -> Option<Holder> {
        self.locks.get(name)?.holder(ctx.now, token)
    }

    /// See [`crate::backend::Backend::list`].
    pub fn list(&self, ctx: &TxnContext, prefix: &str, page: &PageRequest) -> LockPage {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = match &page.after {
            Some(after) if after.as_str() >= prefix => Excluded(after.as_str()),
            _ if prefix.is_empty() => Unbounded,
            _ => Included(prefix),
        };
        let mut locks = Vec::new();
        let found = self.locks.range::<str, _>((from, Unbounded));
        for (name, lock) in found.take_while(|(name, _)| name.as_str().starts_with(prefix)) {
            if locks.len() == page.size {
                let next = locks.last().map(|last: &LockSummary| last.lock.as_str().to_owned());
                return LockPage { locks, next };
            }
            locks.push(LockSummary {
                lock: name.clone(),
                holders: lock.holders(),
                waiters: lock.waiters(),
                first: lock.first_holder(ctx.now),
            });
        }
        LockPage { locks, next: None }
    }

    /// The queue, and a channel that receives each later change.
    pub fn watch(&mut self, ctx: &TxnContext, name: &LockName) -> (Queue, mpsc::Receiver<WatchEvent>) {
        let changes = self.watchers.add(name, ctx.changes);
        (self.inspect(ctx, name, InspectLimit::of_each(WATCH_LIMIT)), changes)
    }

    /// Forgets at most `limit` entries whose time has passed. Returns whether more may be left.
    pub fn forget(&mut self, ctx: &mut TxnContext, limit: usize) -> bool {
        self.marks.purge(ctx.now);
        for _ in 0..limit {
            let Some(position) = self.finished.pop_old(ctx.now) else {
                return false;
            };
            ctx.delete(RecordKey::Finished(self.id, position));
        }
        true
    }

    /// Inserts a claim at its earlier position when the queue is rebuilt.
    pub fn restore(&mut self, ctx: &mut TxnContext, name: &LockName, position: u64, claim: Claim) {
        if let Some(holding) = claim.holding() {
            let expiry = (holding.ends.known(), self.id, name.clone(), position);
            ctx.expiries.insert(expiry);
        }
        self.claims += claim.places();
        self.locks.entry(name.clone()).or_default().insert(position, claim);
    }

    /// Inserts a waiter into a queue that is rebuilt, unless the file contains its claim. Its
    /// position can be lower than that of a restored holder, because a lock that becomes free
    /// numbers its claims from 0 again; the waiter is then appended.
    pub fn restore_waiter(&mut self, ctx: &mut TxnContext, name: &LockName, position: u64, claim: Claim) {
        let lock = self.locks.get(name);
        if lock.is_some_and(|lock| claim.hold_ids().any(|id| lock.find(&id).is_some())) {
            return;
        }
        let tail = lock.map_or(0, |lock| lock.tail());
        self.restore(ctx, name, position.max(tail), claim);
    }

    /// Drops all locks and finished calls, because they are read from the file again.
    pub fn clear(&mut self) -> BTreeMap<LockName, Box<LockState>> {
        self.claims = 0;
        self.finished = Finished::default();
        std::mem::take(&mut self.locks)
    }
}
