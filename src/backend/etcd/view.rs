//! A lock's queue as it was at some revision: every holder ahead of every waiter, each in the order
//! of (create revision, place, claim id), for the queue puts of one batch share a revision.

use std::collections::{BTreeMap, HashMap, HashSet};

use etcd_client::{Event, EventType, KeyValue};

use super::keys::{LockKeys, KeyRole};
use super::record::{Claim, Hold, RecordError};
use crate::backend::NewClaim;
use crate::claim::Prefix;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, Mode};

/// A claim and what the store says of its key.
#[derive(Debug, Clone)]
pub struct Entry {
    pub id: ClaimId,
    pub claim: Claim,
    /// The revision at which the key was made: a waiter's place, a holder's grant.
    pub created: i64,
    /// The revision of its last change.
    pub modified: i64,
    /// The etcd lease it lives on.
    pub lease: i64,
}

impl Entry {
    fn read(id: ClaimId, kv: &KeyValue) -> Result<Self, RecordError> {
        Ok(Self {
            id,
            claim: Claim::decode(kv.value())?,
            created: kv.create_revision(),
            modified: kv.mod_revision(),
            lease: kv.lease(),
        })
    }

    /// A holder's token; nothing for one that waits.
    pub fn token(&self) -> Option<FencingToken> {
        let created = u64::try_from(self.created).ok()?;
        (self.claim.base > 0)
            .then(|| FencingToken::new(self.claim.base + created).ok())
            .flatten()
    }

    /// The hold that a lease names, if it is on this claim.
    pub fn hold_of(&self, lease: &LeaseKey) -> Option<&Hold> {
        (self.id == lease.claim && self.token() == Some(lease.token))
            .then(|| self.claim.holds.iter().find(|hold| hold.secret == lease.secret))
            .flatten()
    }
}

/// The claims of one stage, by their order.
#[derive(Debug, Clone, Default)]
pub struct OrderedClaims {
    by_place: BTreeMap<(i64, u64, ClaimId), Entry>,
    places: HashMap<ClaimId, (i64, u64)>,
}

impl OrderedClaims {
    fn insert(&mut self, entry: Entry) {
        self.remove(&entry.id);
        let (created, place) = (entry.created, entry.claim.place);
        self.places.insert(entry.id, (created, place));
        self.by_place.insert((created, place, entry.id), entry);
    }

    fn remove(&mut self, id: &ClaimId) -> Option<Entry> {
        let (created, place) = self.places.remove(id)?;
        self.by_place.remove(&(created, place, *id))
    }

    pub fn get(&self, id: &ClaimId) -> Option<&Entry> {
        let (created, place) = self.places.get(id)?;
        self.by_place.get(&(*created, *place, *id))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.by_place.values()
    }

    /// The one at the tail.
    pub fn last(&self) -> Option<&Entry> {
        self.by_place.values().next_back()
    }

    pub fn len(&self) -> usize {
        self.by_place.len()
    }
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Everything up to this revision is in it.
    pub revision: i64,
    /// The revision of the read that it began with.
    read_at: i64,
    pub holders: OrderedClaims,
    pub waiters: OrderedClaims,
    /// Holders that are known to be gone ahead of their events, each with its grant's revision.
    gone: HashSet<(ClaimId, i64)>,
}

/// What an event did to a view.
#[derive(Debug)]
pub enum Step {
    Queued(ClaimId),
    Granted(ClaimId),
    /// Its record changed: an adoption, a re-entry, another lease.
    Changed(ClaimId),
    LeftQueue(Box<Entry>),
    Ended(Box<Entry>),
    Nothing,
}

impl View {
    /// The view that all keys of a lock give.
    pub fn read(keys: &LockKeys, revision: i64, kvs: &[KeyValue]) -> Result<Self, RecordError> {
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

    fn put(&mut self, keys: &LockKeys, kv: &KeyValue) -> Result<Step, RecordError> {
        Ok(match keys.stand(kv.key()) {
            Some(KeyRole::Holder(id)) => {
                let entry = Entry::read(id, kv)?;
                if self.gone.contains(&(id, entry.created)) {
                    return Ok(Step::Nothing);
                }
                if self.knows_later(&id, entry.modified) {
                    return Ok(Step::Nothing);
                }
                let known = self
                    .holders
                    .get(&id)
                    .is_some_and(|known| known.created == entry.created);
                self.holders.insert(entry);
                if known { Step::Changed(id) } else { Step::Granted(id) }
            }
            Some(KeyRole::Waiter(id)) => {
                let entry = Entry::read(id, kv)?;
                if self.knows_later(&id, entry.modified) {
                    return Ok(Step::Nothing);
                }
                let known = self
                    .waiters
                    .get(&id)
                    .is_some_and(|known| known.created == entry.created);
                self.waiters.insert(entry);
                if known { Step::Changed(id) } else { Step::Queued(id) }
            }
            None => Step::Nothing,
        })
    }

    /// Whether a holder is known ahead of its events, which came to be after this revision: names are
    /// used again.
    fn knows_later(&self, id: &ClaimId, revision: i64) -> bool {
        self.holders.get(id).is_some_and(|known| known.created > revision)
    }

    /// Follows one event of the lock's keys; one that is in the view already changes nothing.
    pub fn follow(&mut self, keys: &LockKeys, event: &Event) -> Result<Step, RecordError> {
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
        let step = match keys.stand(kv.key()) {
            Some(KeyRole::Holder(id)) => {
                let at = kv.mod_revision();
                self.gone.retain(|(gone, created)| *gone != id || *created > at);
                if self.knows_later(&id, at) {
                    return Ok(Step::Nothing);
                }
                self.holders.remove(&id).map(|entry| Step::Ended(Box::new(entry)))
            }
            Some(KeyRole::Waiter(id)) => self.waiters.remove(&id).map(|entry| Step::LeftQueue(Box::new(entry))),
            None => None,
        };
        Ok(step.unwrap_or(Step::Nothing))
    }

    /// Makes a claim a holder that is known to be granted, ahead of its events; nothing if they are
    /// in the view already.
    pub fn grant(&mut self, holder: &Entry) {
        if self.revision < holder.created {
            self.waiters.remove(&holder.id);
            self.holders.insert(holder.clone());
        }
    }

    /// Takes a holder out that is known to be gone, ahead of its event. (Its view may be judged
    /// from all the same: an end only makes room.)
    pub fn end(&mut self, holder: &Entry) {
        let known = self
            .holders
            .get(&holder.id)
            .is_some_and(|known| known.created == holder.created);
        if known || self.revision < holder.created {
            self.gone.insert((holder.id, holder.created));
        }
        if known {
            self.holders.remove(&holder.id);
        }
    }

    /// The holder that has a hold of this id.
    pub fn holder_with(&self, hold: &ClaimId) -> Option<&Entry> {
        self.holders
            .get(hold)
            .filter(|entry| entry.claim.hold(hold).is_some())
            .or_else(|| self.holders.iter().find(|entry| entry.claim.hold(hold).is_some()))
    }

    /// By which name a call's claim goes here: its own, unless nothing is there of that. Once it was granted,
    /// a name that was another's before is known by the record alone.
    pub fn name_of(&self, id: &ClaimId, call: CallId) -> ClaimId {
        if self.waiters.get(id).is_some() || self.holder_with(id).is_some() {
            return *id;
        }
        let mut all = self.waiters.iter().chain(self.holders.iter());
        let hold = all.find_map(|entry| entry.claim.holds.iter().find(|hold| hold.call == call));
        hold.map_or(*id, |hold| hold.id)
    }

    /// Whether another call's claim goes by this one's name.
    pub fn is_foreign(&self, new: &NewClaim) -> bool {
        let there = self.waiters.get(&new.id).or_else(|| self.holder_with(&new.id));
        there
            .and_then(|entry| entry.claim.hold(&new.id))
            .is_some_and(|hold| hold.call != new.call)
    }

    /// The holder that a reentrant call joins.
    pub fn joined_by(&self, new: &NewClaim) -> Option<&Entry> {
        self.holders.iter().find(|entry| entry.claim.is_joined_by(new))
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

    /// Whether a claim of this mode at the tail would hold.
    pub fn admits(&self, mode: Mode) -> bool {
        let mut prefix = Prefix::default();
        self.modes().all(|ahead| push(&mut prefix, ahead)) && prefix.admits(mode)
    }

    /// The waiters within the prefix, once this holder is gone.
    pub fn next_without<'a>(&'a self, gone: Option<&'a ClaimId>) -> impl Iterator<Item = &'a Entry> {
        let mut prefix = Prefix::default();
        let ahead = self.holders.iter().filter(move |entry| Some(&entry.id) != gone);
        let full = !ahead.map(|entry| entry.claim.mode).all(|mode| push(&mut prefix, mode));
        self.waiters
            .iter()
            .take_while(move |entry| !full && push(&mut prefix, entry.claim.mode))
    }

    /// The first holder, and its lease.
    pub fn first_holder(&self) -> Option<(ClaimId, i64)> {
        self.holders.iter().next().map(|first| (first.id, first.lease))
    }

    /// Whether this one is the first that waits.
    pub fn is_first(&self, id: &ClaimId) -> bool {
        self.waiters.iter().next().is_some_and(|first| first.id == *id)
    }

    /// Whether this waiter is within the prefix.
    pub fn is_next(&self, id: &ClaimId) -> bool {
        self.next_without(None).any(|entry| entry.id == *id)
    }

    fn modes(&self) -> impl Iterator<Item = Mode> {
        self.holders
            .iter()
            .chain(self.waiters.iter())
            .map(|entry| entry.claim.mode)
    }
}

/// Lengthens a prefix if the mode belongs to it.
fn push(prefix: &mut Prefix, mode: Mode) -> bool {
    let admitted = prefix.admits(mode);
    if admitted {
        prefix.push(mode);
    }
    admitted
}
