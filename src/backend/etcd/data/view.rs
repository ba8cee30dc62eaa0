//! A lock's queue at some revision: every holder before every waiter, each in the order of (create revision, place,
//! key suffix). The place is needed because the appends of one batch share a revision.

use std::collections::{BTreeMap, HashMap, HashSet};

use etcd_client::{Event, EventType, KeyValue};

use crate::backend::NewClaim;
use crate::backend::clock::token;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::client::ClusterClient;
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::keys::{KeyRole, LockKeys, behind};
use crate::backend::etcd::data::record::{Claim, Hold};
use crate::claim::Prefix;
use crate::name::{ClaimId, FencingToken, LeaseKey, Mode};

/// A claim and the metadata of its key.
#[derive(Debug, Clone)]
pub struct Entry {
    pub suffix: KeySuffix,
    pub claim: Claim,
    /// The revision at which the key was created: a waiter's append, or a holder's grant.
    pub created: i64,
    /// The revision of its last change.
    pub modified: i64,
    /// The etcd lease of the key.
    pub lease: i64,
}

impl Entry {
    fn read(suffix: KeySuffix, kv: &KeyValue) -> Result<Self, Failure> {
        let claim = Claim::decode(kv.value())?;
        Ok(Self {
            suffix,
            claim,
            created: kv.create_revision(),
            modified: kv.mod_revision(),
            lease: kv.lease(),
        })
    }

    /// The id of this waiter, which has one hold.
    pub fn waiter_id(&self) -> Option<ClaimId> {
        self.claim.holds.first().map(|hold| hold.id)
    }

    /// Whether this waiter is a call's: its claim's id names the request, and another call may have adopted it.
    pub fn waits_for(&self, new: &NewClaim) -> bool {
        self.claim.holds.first().is_some_and(|hold| hold.call == new.call)
    }

    /// The key of this holder.
    pub fn holder_key(&self, lock: &LockKeys) -> String {
        lock.holder(self.claim.terms.mode.into(), self.suffix)
    }

    /// A holder's token; None for a waiter.
    pub fn token(&self) -> Option<FencingToken> {
        let created = u64::try_from(self.created).ok()?;
        (self.claim.base > 0)
            .then(|| token(self.claim.base, created).ok())
            .flatten()
    }

    /// The token of this holder.
    pub fn holder_token(&self) -> Result<FencingToken, Failure> {
        let none = || Failure::Damaged("etcd: a holder has no token".into());
        self.token().ok_or_else(none)
    }

    /// The hold that a lease names, if it is on this claim.
    pub fn hold_of(&self, lease: &LeaseKey) -> Option<&Hold> {
        let hold = self.claim.holds.iter().find(|hold| hold.secret == lease.secret)?;
        let names = |claim| claim == lease.claim;
        let is_named = names(self.claim_in_lease_id(hold)) || names(self.suffix.to_claim());
        (is_named && self.token() == Some(lease.token)).then_some(hold)
    }

    /// The claim that leases name for a hold: its id if the record of its request says where it is, and otherwise the
    /// key suffix. (Releases before named the key suffix for all.)
    pub fn claim_in_lease_id(&self, hold: &Hold) -> ClaimId {
        match hold.retryable {
            true => hold.id,
            false => self.suffix.to_claim(),
        }
    }

    /// The claim as inspections show it.
    pub fn claim_in_key(&self) -> ClaimId {
        let first = self.claim.holds.first();
        first.map_or_else(|| self.suffix.to_claim(), |hold| self.claim_in_lease_id(hold))
    }
}

/// The holders or the waiters of a lock, in their order.
#[derive(Debug, Clone, Default)]
pub struct OrderedClaims {
    by_place: BTreeMap<(i64, u64, KeySuffix), Entry>,
    places: HashMap<KeySuffix, (i64, u64)>,
}

impl OrderedClaims {
    fn insert(&mut self, entry: Entry) {
        self.remove(entry.suffix);
        let (created, place) = (entry.created, entry.claim.place);
        self.places.insert(entry.suffix, (created, place));
        self.by_place.insert((created, place, entry.suffix), entry);
    }

    fn remove(&mut self, suffix: KeySuffix) -> Option<Entry> {
        let (created, place) = self.places.remove(&suffix)?;
        self.by_place.remove(&(created, place, suffix))
    }

    pub fn get(&self, suffix: KeySuffix) -> Option<&Entry> {
        let (created, place) = self.places.get(&suffix)?;
        self.by_place.get(&(*created, *place, suffix))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.by_place.values()
    }

    pub fn len(&self) -> usize {
        self.by_place.len()
    }
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The view is complete up to this revision.
    pub revision: i64,
    /// The revision of the read that it began with.
    read_at: i64,
    /// The view has every semaphore holder that was granted up to this revision, even before their events.
    semaphores_complete_to: i64,
    pub holders: OrderedClaims,
    pub waiters: OrderedClaims,
    /// Holders that are known to be gone before their events, each with its grant's revision.
    gone: HashSet<(KeySuffix, i64)>,
}

/// The change of a view by an event.
#[derive(Debug)]
pub enum Step {
    Queued(KeySuffix),
    Granted(KeySuffix),
    /// Its record changed: an adoption, a re-entry, another lease.
    Changed(KeySuffix),
    LeftQueue(Box<Entry>),
    Ended(Box<Entry>),
    Nothing,
}

impl View {
    /// The view of a lock whose keys were read.
    pub fn read(keys: &LockKeys, revision: i64, kvs: &[KeyValue]) -> Result<Self, Failure> {
        let mut view = Self {
            revision,
            read_at: revision,
            ..Self::default()
        };
        for kv in kvs {
            view.put(keys, kv)?;
        }
        Ok(view)
    }

    /// Reads a lock.
    pub async fn fetch(link: &ClusterClient, lock: &LockKeys) -> Result<Self, Failure> {
        let (revision, kvs) = link.range(lock.all(), lock.behind()).await?;
        Self::read(lock, revision, &kvs)
    }

    /// Reads the holders of a lock.
    pub async fn fetch_holders(link: &ClusterClient, lock: &LockKeys) -> Result<Self, Failure> {
        let holders = lock.holders();
        let (revision, kvs) = link.range(holders.as_str(), behind(&holders)).await?;
        Self::read(lock, revision, &kvs)
    }

    fn put(&mut self, keys: &LockKeys, kv: &KeyValue) -> Result<Step, Failure> {
        let Some(role) = keys.role_of(kv.key()) else {
            return Ok(Step::Nothing);
        };
        let (KeyRole::Holder(suffix) | KeyRole::Waiter(suffix)) = role;
        let entry = Entry::read(suffix, kv)?;
        let holds = matches!(role, KeyRole::Holder(_));
        let is_gone = holds && self.gone.contains(&(suffix, entry.created));
        if is_gone || self.knows_later(suffix, entry.modified) {
            return Ok(Step::Nothing);
        }
        let claims = if holds { &mut self.holders } else { &mut self.waiters };
        let known = claims.get(suffix);
        let is_known = known.is_some_and(|known| known.created == entry.created);
        claims.insert(entry);
        Ok(match role {
            _ if is_known => Step::Changed(suffix),
            KeyRole::Holder(_) => Step::Granted(suffix),
            KeyRole::Waiter(_) => Step::Queued(suffix),
        })
    }

    /// Whether a holder is known that was granted after this revision. It may have the key suffix of an earlier holder.
    fn knows_later(&self, suffix: KeySuffix, revision: i64) -> bool {
        self.holders.get(suffix).is_some_and(|known| known.created > revision)
    }

    /// Applies one event of the lock's keys. An event that is in the view already changes nothing.
    pub fn follow(&mut self, keys: &LockKeys, event: &Event) -> Result<Step, Failure> {
        let Some(kv) = event.kv() else {
            return Ok(Step::Nothing);
        };
        if kv.mod_revision() <= self.read_at {
            return Ok(Step::Nothing);
        }
        self.revision = self.revision.max(kv.mod_revision());
        if event.event_type() == EventType::Put {
            return self.put(keys, kv);
        }
        let step = match keys.role_of(kv.key()) {
            Some(KeyRole::Holder(suffix)) => {
                let at = kv.mod_revision();
                self.gone.retain(|(gone, created)| *gone != suffix || *created > at);
                if self.knows_later(suffix, at) {
                    return Ok(Step::Nothing);
                }
                self.holders.remove(suffix).map(|entry| Step::Ended(Box::new(entry)))
            }
            Some(KeyRole::Waiter(suffix)) => self
                .waiters
                .remove(suffix)
                .map(|entry| Step::LeftQueue(Box::new(entry))),
            None => None,
        };
        Ok(step.unwrap_or(Step::Nothing))
    }

    /// Applies a known grant before its events. It changes nothing if they are in the view already.
    pub fn grant(&mut self, holder: &Entry) {
        if self.revision < holder.created {
            self.waiters.remove(holder.suffix);
            self.holders.insert(holder.clone());
        }
    }

    /// The same for a grant with the condition that no semaphore claim was granted after the revision `decided_at`. So
    /// between that revision and this grant there was none, and a view that has all up to `decided_at` has all up to
    /// this grant.
    pub fn grant_alone(&mut self, holder: &Entry, decided_at: i64) {
        if decided_at <= self.semaphores_complete_to() {
            self.semaphores_complete_to = self.semaphores_complete_to.max(holder.created);
        }
        self.grant(holder);
    }

    /// The revision up to which the view has all semaphore holders.
    pub fn semaphores_complete_to(&self) -> i64 {
        self.revision.max(self.semaphores_complete_to)
    }

    /// Removes a holder that is known to be gone, before its event. (Grants may be judged by the view all the same,
    /// because an end blocks no claim.)
    pub fn end(&mut self, holder: &Entry) {
        let known = self.holders.get(holder.suffix);
        let is_known = known.is_some_and(|known| known.created == holder.created);
        if is_known || self.revision < holder.created {
            self.gone.insert((holder.suffix, holder.created));
        }
        if is_known {
            self.holders.remove(holder.suffix);
        }
    }

    /// The waiter with this id. It walks through the queue.
    pub fn waiter_with(&self, id: &ClaimId) -> Option<&Entry> {
        self.waiters.iter().find(|entry| entry.claim.hold(id).is_some())
    }

    /// The holder that has a hold of this id. It walks through the holders.
    pub fn holder_with(&self, hold: &ClaimId) -> Option<&Entry> {
        self.holders.iter().find(|entry| entry.claim.hold(hold).is_some())
    }

    /// The holder that a reentrant call joins.
    pub fn joined_by(&self, new: &NewClaim) -> Option<&Entry> {
        self.holders.iter().find(|entry| entry.claim.terms.is_joined_by(new))
    }

    pub fn holder_of(&self, token: FencingToken) -> Option<&Entry> {
        self.holders.iter().find(|entry| entry.token() == Some(token))
    }

    /// The mode of the first claim that this mode cannot share the lock with.
    pub fn mismatch(&self, mode: Mode) -> Option<Mode> {
        self.modes().find(|there| !there.mixes(mode))
    }

    pub fn len(&self) -> usize {
        self.holders.len() + self.waiters.len()
    }

    /// Whether a claim of this mode at the tail would be granted.
    pub fn admits(&self, mode: Mode) -> bool {
        let mut prefix = GrantablePrefix::default();
        self.modes().all(|ahead| prefix.push(ahead)) && prefix.push(mode)
    }

    /// The waiters that can be granted without the holder `gone`.
    pub fn next_without(&self, gone: Option<KeySuffix>) -> impl Iterator<Item = &Entry> {
        let mut prefix = GrantablePrefix::default();
        let ahead = self.holders.iter().filter(move |entry| Some(entry.suffix) != gone);
        let full = !ahead.map(|entry| entry.claim.terms.mode).all(|mode| prefix.push(mode));
        self.waiters
            .iter()
            .take_while(move |entry| !full && prefix.push(entry.claim.terms.mode))
    }

    /// The first holder, and its lease.
    pub fn first_holder(&self) -> Option<(KeySuffix, i64)> {
        self.holders.iter().next().map(|first| (first.suffix, first.lease))
    }

    /// Whether the first waiter is under this key suffix.
    pub fn is_first(&self, suffix: KeySuffix) -> bool {
        self.waiters.iter().next().is_some_and(|first| first.suffix == suffix)
    }

    /// Whether the waiter under this key suffix can be granted.
    pub fn is_next(&self, suffix: KeySuffix) -> bool {
        self.next_without(None).any(|entry| entry.suffix == suffix)
    }

    fn modes(&self) -> impl Iterator<Item = Mode> {
        self.holders
            .iter()
            .chain(self.waiters.iter())
            .map(|entry| entry.claim.terms.mode)
    }
}

/// A prefix of the queue. After a race of calls, a claim may wait in one queue with claims whose mode it cannot be
/// mixed with. It is granted after they are gone.
#[derive(Default)]
struct GrantablePrefix {
    prefix: Prefix,
    /// The mode of the first claim.
    first: Option<Mode>,
}

impl GrantablePrefix {
    /// Adds a claim of this mode if it can be granted with the others. True if it was added.
    fn push(&mut self, mode: Mode) -> bool {
        let first = *self.first.get_or_insert(mode);
        let shared = |mode: Mode| mode == Mode::Shared;
        let mixes = first == Mode::Exclusive || shared(first) == shared(mode) || mode == Mode::Exclusive;
        let admitted = mixes && self.prefix.admits(mode);
        if admitted {
            self.prefix.push(mode);
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u8, created: i64, mode: Mode) -> Entry {
        let new = NewClaim::numbered(number);
        let mut claim = Claim::of(&new);
        claim.terms.mode = mode;
        Entry {
            suffix: KeySuffix::of_lease(new.id),
            claim,
            created,
            modified: created,
            lease: 1,
        }
    }

    #[test]
    fn a_view_has_all_semaphore_holders_up_to_a_grant_that_was_judged_by_it() {
        let one = |number, created| entry(number, created, Mode::semaphore(1, 9).unwrap());
        let mut view = View {
            revision: 5,
            ..View::default()
        };
        // Another claim may have been granted between 5 and 7.
        view.grant_alone(&one(1, 8), 7);
        assert_eq!(view.semaphores_complete_to(), 5);
        view.grant_alone(&one(2, 9), 5);
        assert_eq!(view.semaphores_complete_to(), 9);
        view.grant_alone(&one(3, 12), 9);
        assert_eq!(
            (view.semaphores_complete_to(), view.revision, view.holders.len()),
            (12, 5, 3)
        );
    }

    #[test]
    fn the_smallest_limit_of_those_ahead_counts() {
        let of = |number, limit| entry(number, number.into(), Mode::semaphore(1, limit).unwrap());
        let (small, wide) = (of(1, 2), of(2, 4));
        let mut view = View::default();
        view.holders.insert(small.clone());
        view.holders.insert(wide.clone());
        view.waiters.insert(of(3, 4));
        view.waiters.insert(of(4, 4));
        view.waiters.insert(of(5, 3));
        let next = |gone| view.next_without(gone).map(|entry| entry.created).collect::<Vec<_>>();
        assert!(next(None).is_empty());
        assert_eq!(next(Some(small.suffix)), [3, 4], "4 is left, and then 3");
        assert_eq!(next(Some(wide.suffix)), [3]);
        assert!(!view.admits(Mode::semaphore(1, 9).unwrap()));
    }

    #[test]
    fn a_reader_that_waits_with_semaphore_claims_is_granted_after_they_are_gone() {
        let mut view = View::default();
        view.holders.insert(entry(1, 1, Mode::semaphore(1, 9).unwrap()));
        let (reader, permit) = (entry(2, 2, Mode::Shared), entry(3, 3, Mode::semaphore(1, 9).unwrap()));
        view.waiters.insert(reader.clone());
        view.waiters.insert(permit.clone());
        assert!(!view.is_next(reader.suffix) && !view.is_next(permit.suffix));
        view.holders = OrderedClaims::default();
        assert!(view.is_next(reader.suffix) && !view.is_next(permit.suffix));
    }
}
