//! Reads the last record of a holder that is gone, and the revision of its end, from etcd's history.
//!
//! The step that releases, forces or undoes a holder writes a record of the end at the same revision. So a holder
//! without such a record expired. Any replica can find that out until etcd compacts the history.

use etcd_client::{GetOptions, GetResponse};

use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::client::ClusterClient;
use crate::backend::etcd::data::keys::LockKeys;
use crate::backend::etcd::data::view::{Entry, View};
use crate::name::{ClaimId, Kind};

/// The factor by which the distance of each read into the past grows.
const DISTANCE_FACTOR: i64 = 4;

/// A holder, identified by the revision of its grant.
pub struct HolderHistory<'a> {
    link: &'a ClusterClient,
    lock: LockKeys,
    key: String,
    claim: ClaimId,
    granted: i64,
}

/// The end of a holder.
pub struct HolderEnd {
    /// The last record of the holder.
    pub entry: Entry,
    /// The first revision without it.
    pub gone_at: i64,
}

/// The state of the holder's key at a revision.
enum RecordAt {
    Held(Box<Entry>),
    Gone,
    Compacted,
}

impl<'a> HolderHistory<'a> {
    /// The holder with this id that was granted at the revision `granted`.
    pub fn new(link: &'a ClusterClient, lock: LockKeys, (kind, claim): (Kind, ClaimId), granted: i64) -> Self {
        let key = lock.holder(kind, claim);
        Self::at_key(link, lock, (key, claim), granted)
    }

    /// The same for a holder that was read.
    pub fn of(link: &'a ClusterClient, lock: LockKeys, entry: &Entry) -> Self {
        let key = entry.holder_key(&lock);
        Self::at_key(link, lock, (key, entry.id), entry.created)
    }

    fn at_key(link: &'a ClusterClient, lock: LockKeys, (key, claim): (String, ClaimId), granted: i64) -> Self {
        Self {
            link,
            key,
            lock,
            claim,
            granted,
        }
    }

    /// Whether the holder was granted at that revision. `now` is a later revision. None if the history is compacted.
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

    /// The end of the holder before the revision `now`. None if there was no such holder, it still exists, or the
    /// history is compacted.
    ///
    /// It reads the revision of the grant first, so that an invented lease costs one read. Then it reads backwards from
    /// `now` in growing distances, and finds the end by bisection.
    pub async fn last(&self, now: i64) -> Result<Option<HolderEnd>, Failure> {
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
    View::read(lock, revision, read.kvs())
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
