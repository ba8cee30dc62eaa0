//! What etcd's history still has of a holder that is gone: its last record, and the revision at which it went.
//!
//! A holder that is given back, forced or taken back leaves a record of that at the same revision. So one that
//! left none ran out, and any replica can tell, whoever granted it, until that history is compacted.

use etcd_client::{GetOptions, GetResponse};

use super::keys::LockKeys;
use super::cluster_client::{Failure, ClusterClient};
use super::view::{Entry, View};
use crate::name::{ClaimId, Kind};

/// By how much farther each look back goes than the one before.
const FARTHER: i64 = 4;

/// A holder by its grant.
pub struct HolderHistory<'a> {
    link: &'a ClusterClient,
    lock: LockKeys,
    key: String,
    claim: ClaimId,
    granted: i64,
}

/// The end of a holder.
pub struct HolderEnd {
    /// As it was before.
    pub entry: Entry,
    /// The first revision without it.
    pub gone_at: i64,
}

/// What was there at a revision.
enum RecordAt {
    Held(Box<Entry>),
    Gone,
    Compacted,
}

impl<'a> HolderHistory<'a> {
    /// The holder of this name that was granted at that revision.
    pub fn new(link: &'a ClusterClient, lock: LockKeys, (kind, claim): (Kind, ClaimId), granted: i64) -> Self {
        Self {
            link,
            key: lock.holder(kind, claim),
            lock,
            claim,
            granted,
        }
    }

    /// Whether it was granted then, seen from a later revision. Nothing where that is compacted.
    pub async fn was_granted(&self, now: i64) -> Result<Option<bool>, Failure> {
        if self.granted > now {
            return Ok(Some(false));
        }
        Ok(match self.at(self.granted).await? {
            RecordAt::Held(_) => Some(true),
            RecordAt::Gone => Some(false),
            RecordAt::Compacted => None,
        })
    }

    /// How it was at its end, seen from a later revision. Nothing where there was no such holder, or where that is
    /// compacted.
    ///
    /// It looks at the grant first, so that a lease which never was costs one read, and then back from now.
    pub async fn last(&self, now: i64) -> Result<Option<HolderEnd>, Failure> {
        if self.granted >= now || matches!(self.at(self.granted).await?, RecordAt::Gone) {
            return Ok(None);
        }
        if !matches!(self.at(now).await?, RecordAt::Gone) {
            return Ok(None);
        }
        let (mut gone_at, mut back) = (now, 1);
        let (mut entry, mut held_at) = loop {
            let at = (now - back).max(self.granted);
            match self.at(at).await? {
                RecordAt::Held(entry) => break (entry, at),
                RecordAt::Gone if at > self.granted => gone_at = at,
                RecordAt::Gone | RecordAt::Compacted => return Ok(None),
            }
            back = back.saturating_mul(FARTHER);
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
        let view = view(&self.lock, revision, &read)?;
        let entry = view.holders.get(&self.claim);
        let entry = entry.filter(|entry| entry.created == self.granted);
        Ok(entry.map_or(RecordAt::Gone, |entry| RecordAt::Held(Box::new(entry.clone()))))
    }
}

/// The holder of a lock that was granted at this revision, if that is not compacted.
pub async fn granted_at(link: &ClusterClient, lock: &LockKeys, revision: i64) -> Result<Option<Entry>, Failure> {
    let all = GetOptions::new().with_prefix();
    let Some(read) = read_at(link, &lock.holders(), all, revision).await? else {
        return Ok(None);
    };
    let view = view(lock, revision, &read)?;
    Ok(view.holders.iter().find(|entry| entry.created == revision).cloned())
}

fn view(lock: &LockKeys, revision: i64, read: &GetResponse) -> Result<View, Failure> {
    View::read(lock, revision, read.kvs()).map_err(|error| Failure::Refused(error.to_string()))
}

/// What was there then; nothing where that is compacted, or is still to come.
async fn read_at(link: &ClusterClient, key: &str, options: GetOptions, revision: i64) -> Result<Option<GetResponse>, Failure> {
    match link.get(key, options.with_revision(revision)).await {
        Err(Failure::Refused(_)) => Ok(None),
        read => read.map(Some),
    }
}
