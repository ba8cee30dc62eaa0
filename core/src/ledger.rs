//! The leases of one namespace that this server knows to be held. Each grant, renewal and end is recorded once, by the
//! backend around the namespace's backend ([`crate::measured::Measured`]). The metrics read the ledger, the quotas
//! attach to a lease what its end gives back, and streams that keep leases watch their ends.
//!
//! The server never decides by it whether a lease is held: another server may have renewed or released the lease.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::Grant;
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, Kind, LeaseKey, LockName, Secret};

pub mod forced;
#[cfg(test)]
mod tests;
mod watches;

use self::watches::Watches;

/// How many leases are recorded for the metrics.
const LEASES: usize = 200_000;

/// What a lease uses of a quota; dropping it gives it back.
pub type Share = Box<dyn Debug + Send>;

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    /// Locked only to read or change entries.
    entries: Mutex<Entries>,
    /// How many leases without a share of a quota are recorded.
    limit: usize,
    hasher: RandomState,
    /// Whether the end of a lease is watched.
    is_watched: watch::Sender<bool>,
}

/// The leases are keyed by secret, because each hold has a new one, whereas a claim id may be reused.
#[derive(Debug, Default)]
struct Entries {
    by_secret: HashMap<Secret, Entry>,
    by_end: BTreeSet<(Instant, Secret)>,
    /// By the call that received the lease last, because an undo does not know the secret.
    by_call: HashMap<CallId, Secret>,
    /// Waiting calls that a release in flight may grant its lock to. Value: the number of such releases, and whether the
    /// call was undone since.
    hand_overs: HashMap<CallId, (usize, bool)>,
    /// How many holds of a claim have a share of a quota.
    shares: HashMap<ClaimId, usize>,
    /// How many leases expired since the last [`Ledger::counts`].
    expired: u64,
    /// The receivers of the ends of leases.
    watches: Watches,
}

/// A lease has ended; sent to who watches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseEnded {
    /// The secret of the lease.
    pub secret: Secret,
    /// Why it ended, if that is known.
    pub cause: Option<Cause>,
}

/// Watches the end of a lease until it is dropped.
#[derive(Debug)]
pub struct EndWatch {
    ledger: Arc<Ledger>,
    secret: Secret,
    number: u64,
}

impl Drop for EndWatch {
    fn drop(&mut self) {
        let mut entries = self.ledger.entries.lock();
        entries.watches.remove(self.secret, self.number);
        if entries.watches.is_empty() {
            let is_watched = &self.ledger.is_watched;
            is_watched.send_if_modified(|is_watched| std::mem::replace(is_watched, false));
        }
    }
}

/// A release in flight that may grant the lock to a call. It is dropped when what the release granted is recorded.
#[derive(Debug)]
pub struct HandOver<'a> {
    ledger: &'a Ledger,
    call: CallId,
}

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        let mut entries = self.ledger.entries.lock();
        let Some((in_flight, is_undone)) = entries.hand_overs.remove(&self.call) else {
            return;
        };
        if in_flight > 1 {
            entries.hand_overs.insert(self.call, (in_flight - 1, is_undone));
        }
        if is_undone {
            entries.undo(self.call);
        }
    }
}

#[derive(Debug)]
struct Entry {
    ids: LeaseIds,
    /// When it was recorded first.
    since: Instant,
    end: Instant,
    /// Whether it was released, and its lock is kept until the end.
    is_kept: bool,
    call: Option<CallId>,
    share: Option<Share>,
}

/// What a lease's key contains in addition to its secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeaseIds {
    /// The hash of the lock's name, which uses less memory than the name.
    lock: u64,
    kind: Kind,
    claim: ClaimId,
    token: FencingToken,
}

impl Ledger {
    /// An empty ledger, which records all leases for metrics, or only those with a share of a quota.
    pub fn new(for_metrics: bool) -> Self {
        Self {
            entries: Mutex::default(),
            limit: if for_metrics { LEASES } else { 0 },
            hasher: RandomState::new(),
            is_watched: watch::Sender::new(false),
        }
    }

    /// Records a grant that a call received. Returns whether the lease was known.
    pub fn granted(&self, lock: &LockName, grant: &Grant, call: CallId, end: Instant) -> bool {
        let ids = LeaseIds {
            lock: self.hasher.hash_one(lock),
            kind: grant.kind,
            claim: grant.claim,
            token: grant.token,
        };
        let mut entries = self.entries.lock();
        let is_known = entries.by_secret.contains_key(&grant.secret);
        // A retry may be told of a later end than this server has seen.
        entries.watches.renewed(grant.secret, end);
        entries.hold(ids, grant.secret, end, self.limit);
        entries.received(call, grant.secret);
        is_known
    }

    /// Records a renewal, also of a lease that another server granted.
    pub fn renewed(&self, lease: &LeaseKey, end: Instant) {
        let ids = self.ids(lease);
        let mut entries = self.entries.lock();
        entries.watches.renewed(lease.secret, end);
        entries.hold(ids, lease.secret, end, self.limit);
    }

    /// Records the end of a lease if the whole key matches: a key that a caller altered names no lease, although its
    /// secret may match.
    pub fn ended(&self, lease: &LeaseKey, cause: Option<Cause>) {
        let ids = self.ids(lease);
        let mut entries = self.entries.lock();
        entries.watches.ended(lease.secret, Some(ids), cause);
        if entries
            .by_secret
            .get(&lease.secret)
            .is_some_and(|entry| entry.ids == ids && !entry.is_kept)
        {
            entries.remove(&lease.secret);
        }
    }

    /// Records the release of a lease whose lock stays taken until then: what it uses of a quota is given back only then.
    pub fn kept(&self, lease: &LeaseKey, cause: Cause, until: Instant) {
        let ids = self.ids(lease);
        let mut entries = self.entries.lock();
        entries.watches.ended(lease.secret, Some(ids), Some(cause));
        let is_it = |entry: &&mut Entry| entry.ids == ids;
        if let Some(entry) = entries.by_secret.get_mut(&lease.secret).filter(is_it) {
            entry.is_kept = true;
            entries.hold(ids, lease.secret, until, 0);
        }
    }

    /// Records the undo of a call, which ends the lease that it received, if any.
    pub fn undone(&self, call: CallId) {
        let mut entries = self.entries.lock();
        entries.undo(call);
        if let Some((_, is_undone)) = entries.hand_overs.get_mut(&call) {
            *is_undone = true;
        }
    }

    /// Begins a release that may grant the lock to a call. The undo of the call may be answered before the release.
    pub fn hand_over(&self, call: CallId) -> HandOver<'_> {
        self.entries.lock().hand_overs.entry(call).or_default().0 += 1;
        HandOver { ledger: self, call }
    }

    /// Records a force-release: all holds with this token have ended. Another lock may have the same token.
    pub fn forced(&self, lock: &LockName, token: FencingToken) {
        let lock = self.hasher.hash_one(lock);
        let mut entries = self.entries.lock();
        entries.remove_all(|ids| (ids.lock, ids.token) == (lock, token));
        entries.watches.forced(lock, token);
    }

    /// Records that a request was cancelled which had the lease with this secret, as the store says.
    pub fn cancelled(&self, secret: Secret) {
        let mut entries = self.entries.lock();
        entries.watches.ended(secret, None, Some(Cause::Undone));
        entries.remove(&secret);
    }

    /// Records a force-release at another server, for those who watch. The next renewal or the end of the TTL removes the
    /// leases.
    pub fn forced_elsewhere(&self, lock: &LockName, token: FencingToken) {
        let lock = self.hasher.hash_one(lock);
        self.entries.lock().watches.forced(lock, token);
    }

    /// Attaches to a delivered lease what it uses of a quota, until its end, unless it has ended since the watch of its
    /// delivery began. `end` is the end that its grant had.
    pub fn attach(&self, lease: &LeaseKey, end: Instant, share: Share, delivery: &EndWatch) {
        let ids = self.ids(lease);
        let mut entries = self.entries.lock();
        let Some(end) = entries.watches.end(delivery.secret, delivery.number, end) else {
            return;
        };
        if !entries.by_secret.contains_key(&lease.secret) {
            if end <= Instant::now() {
                return;
            }
            entries.hold(ids, lease.secret, end, usize::MAX);
        }
        entries.attach(&lease.secret, share);
    }

    /// Sends the end of a lease to `to` as soon as a call of this server shows it, or the store tells that it was forced,
    /// once at most, until the returned value is dropped. An expiry is not sent: another server may have renewed the lease.
    pub fn watch_end(self: &Arc<Self>, lease: &LeaseKey, to: UnboundedSender<LeaseEnded>) -> EndWatch {
        let ids = self.ids(lease);
        let mut entries = self.entries.lock();
        let number = entries.watches.add(lease.secret, ids, Some(to));
        self.is_watched
            .send_if_modified(|is_watched| !std::mem::replace(is_watched, true));
        drop(entries);
        EndWatch {
            ledger: Arc::clone(self),
            secret: lease.secret,
            number,
        }
    }

    /// Notes whether a lease ends before it is delivered, until the returned value is dropped.
    pub fn watch_delivery(self: &Arc<Self>, lease: &LeaseKey) -> EndWatch {
        let ids = self.ids(lease);
        EndWatch {
            ledger: Arc::clone(self),
            secret: lease.secret,
            number: self.entries.lock().watches.add(lease.secret, ids, None),
        }
    }

    /// Whether the end of a lease is watched, and each change of that.
    pub fn is_watched(&self) -> watch::Receiver<bool> {
        self.is_watched.subscribe()
    }

    /// Whether a lease of this claim has a share of a quota.
    pub fn has_share(&self, claim: ClaimId) -> bool {
        self.entries.lock().shares.contains_key(&claim)
    }

    /// Forgets the leases that have expired.
    pub fn forget_expired(&self) {
        self.entries.lock().forget_expired();
    }

    /// The age of the lease that was recorded first of those that are held; zero if none is. A lease that another server
    /// granted counts from its first renewal here.
    pub fn oldest(&self) -> Duration {
        // One walk at each scrape costs less than an order by age that each grant keeps.
        let entries = self.entries.lock();
        let oldest = entries.by_secret.values().map(|entry| entry.since).min();
        oldest.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// How many leases expired since the last call, and how many are held.
    pub fn counts(&self) -> (u64, usize) {
        let mut entries = self.entries.lock();
        entries.forget_expired();
        if entries.by_secret.len() < entries.by_secret.capacity() / 4 {
            entries.by_secret.shrink_to_fit();
            entries.by_call.shrink_to_fit();
        }
        (std::mem::take(&mut entries.expired), entries.by_secret.len())
    }

    fn ids(&self, lease: &LeaseKey) -> LeaseIds {
        LeaseIds {
            lock: self.hasher.hash_one(&lease.lock.name),
            kind: lease.kind,
            claim: lease.claim,
            token: lease.token,
        }
    }
}

impl Entries {
    /// Records that a lease is held until `end`; a new one only while there are fewer than `limit`.
    fn hold(&mut self, ids: LeaseIds, secret: Secret, end: Instant, limit: usize) {
        if let Some(entry) = self.by_secret.get_mut(&secret) {
            self.by_end.remove(&(entry.end, secret));
            entry.end = end;
        } else {
            if self.by_secret.len() >= limit {
                self.forget_expired();
            }
            if self.by_secret.len() >= limit {
                return;
            }
            let entry = Entry {
                ids,
                since: Instant::now(),
                end,
                is_kept: false,
                call: None,
                share: None,
            };
            self.by_secret.insert(secret, entry);
        }
        self.by_end.insert((end, secret));
    }

    fn received(&mut self, call: CallId, secret: Secret) {
        let Some(entry) = self.by_secret.get_mut(&secret) else {
            return;
        };
        if let Some(before) = entry.call.replace(call) {
            self.by_call.remove(&before);
        }
        self.by_call.insert(call, secret);
    }

    fn undo(&mut self, call: CallId) {
        if let Some(secret) = self.by_call.get(&call).copied() {
            self.remove(&secret);
        }
    }

    fn attach(&mut self, secret: &Secret, share: Share) {
        let Some(entry) = self.by_secret.get_mut(secret) else {
            return;
        };
        if entry.share.replace(share).is_none() {
            *self.shares.entry(entry.ids.claim).or_default() += 1;
        }
    }

    fn remove(&mut self, secret: &Secret) {
        let Some(entry) = self.by_secret.remove(secret) else {
            return;
        };
        self.by_end.remove(&(entry.end, *secret));
        if let Some(call) = entry.call {
            self.by_call.remove(&call);
        }
        if entry.share.is_some()
            && let Some(holds) = self.shares.get_mut(&entry.ids.claim)
        {
            *holds -= 1;
            if *holds == 0 {
                self.shares.remove(&entry.ids.claim);
            }
        }
    }

    /// Removes the leases with such ids.
    fn remove_all(&mut self, with: impl Fn(&LeaseIds) -> bool) {
        let all = self.by_secret.iter();
        let removed: Vec<_> = all
            .filter(|(_, entry)| with(&entry.ids))
            .map(|(secret, _)| *secret)
            .collect();
        removed.iter().for_each(|secret| self.remove(secret));
    }

    fn forget_expired(&mut self) {
        let now = Instant::now();
        while let Some((_, secret)) = self.by_end.first().copied().filter(|(end, _)| *end <= now) {
            self.expired += u64::from(!self.by_secret.get(&secret).is_some_and(|entry| entry.is_kept));
            self.remove(&secret);
        }
    }
}
