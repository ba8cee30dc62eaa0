//! Lists of locks. The name of a child is in its value, together with its data, so a list of a crowded lock reads the
//! values of those children alone that the list before did not show.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::{GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};

use super::Inner;
use super::plan::behind;
use super::slots::shown;
use crate::backend::etcd::cluster::Failure;

/// A lock with more children than this is crowded.
const CROWD: usize = 64;
/// How many values are read one by one: so many in a request, and at most so many in all.
const TOGETHER: usize = 100;
const MOST: usize = 500;
/// Of how many crowded locks the names are kept.
const CROWDED: usize = 16;

/// The names of a lock's children, by the key and the revision that created it: a child has one name.
type Names = HashMap<(Vec<u8>, i64), String>;

/// The names of the children of crowded locks as the last lists over a connection showed them, by the prefix of the lock.
#[derive(Debug, Default)]
pub struct Lists {
    generation: u64,
    crowded: HashMap<String, Arc<Names>>,
}

impl Lists {
    fn known(&self, generation: u64, prefix: &str) -> Option<Arc<Names>> {
        let known = self.crowded.get(prefix).filter(|_| self.generation == generation);
        known.cloned()
    }

    /// Forgets all, because a connection has begun: the store may be an old copy that was put back.
    pub fn begin(&mut self, generation: u64) {
        self.generation = generation;
        self.crowded.clear();
    }

    fn note(&mut self, generation: u64, prefix: &str, children: &[(KeyValue, String)]) {
        if generation != self.generation {
            return;
        }
        if children.len() <= CROWD {
            self.crowded.remove(prefix);
            return;
        }
        if self.crowded.len() >= CROWDED && !self.crowded.contains_key(prefix) {
            self.crowded.clear();
        }
        let names = children.iter().map(|(kv, name)| (id(kv), name.clone()));
        self.crowded.insert(prefix.to_owned(), Arc::new(names.collect()));
    }
}

fn id(kv: &KeyValue) -> (Vec<u8>, i64) {
    (kv.key().to_vec(), kv.create_revision())
}

impl Inner {
    /// The children of the lock with this prefix and their names, at one revision, which is returned too.
    pub async fn list_lock(&self, generation: u64, prefix: &str) -> Result<(i64, Vec<(KeyValue, String)>), Failure> {
        let known = self.lists.lock().known(generation, prefix);
        let listed = match known {
            Some(known) => self.list_crowd(prefix, &known).await?,
            None => None,
        };
        let (revision, children) = match listed {
            Some(listed) => listed,
            None => {
                let (revision, kvs) = self.link.range(prefix, behind(prefix)).await?;
                let named = |kv: KeyValue| {
                    let name = shown(&kv).0;
                    (kv, name)
                };
                (revision, kvs.into_iter().map(named).collect())
            }
        };
        self.lists.lock().note(generation, prefix, &children);
        Ok((revision, children))
    }

    /// The same of a lock of whose children so many names are known. None if it has to be listed as any other.
    async fn list_crowd(&self, prefix: &str, known: &Names) -> Result<Option<(i64, Vec<(KeyValue, String)>)>, Failure> {
        let (revision, keys) = self.link.keys(prefix, behind(prefix)).await?;
        let unknown: Vec<_> = keys.iter().filter(|kv| !known.contains_key(&id(kv))).collect();
        if unknown.len() > MOST {
            return Ok(None);
        }
        let get = |kv: &&KeyValue| TxnOp::get(kv.key(), Some(GetOptions::new().with_revision(revision)));
        let mut read = Names::new();
        for together in unknown.chunks(TOGETHER) {
            let gets: Vec<_> = together.iter().map(get).collect();
            let answer = match self.link.txn(Txn::new().and_then(gets)).await {
                // Its history was compacted meanwhile.
                Err(Failure::Refused(_)) => return Ok(None),
                answer => answer?,
            };
            for response in answer.op_responses() {
                if let TxnOpResponse::Get(got) = response {
                    read.extend(got.kvs().iter().map(|kv| (id(kv), shown(kv).0)));
                }
            }
        }
        let named = |kv: KeyValue| {
            let id = id(&kv);
            let name = known.get(&id).cloned().or_else(|| read.remove(&id))?;
            Some((kv, name))
        };
        let children: Option<Vec<_>> = keys.into_iter().map(named).collect();
        Ok(children.map(|children| (revision, children)))
    }
}
