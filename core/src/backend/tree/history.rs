//! What is remembered of requests and of holds that have ended.
//!
//! A call with a request id has a record from its first step on, which says which call has its place, and later how its
//! hold ended. The ends of other holds have records too. The replica that wrote an end deletes it when it is old, or
//! when the namespace remembers more than it may; [`super::ops::clean_up`] deletes those of dead replicas. No safety rests on
//! the ends.
//!
//! A replica deletes what it wrote over the same connection in the version that it wrote, without a read: nobody else
//! deletes it as early, so that version is still its own or the record was replaced.
//!
//! The record of a request that was undone is overwritten, and deleted a minute later. One that is deleted and
//! created again begins with version 0 again, and a late step that checks the version of the first one would pass.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::data::paths::Paths;
use super::data::record::{Claim, End, Hold, Memory};
use super::fenced_connection::FencedConnections;
use super::group_commit::StepDone;
use crate::backend::tree::store::{ANY, Done, Failure, NodeKind, Op, Tree, Version};
use crate::backend::{FINISHED_KEPT, NewClaim};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName};

/// How many records are deleted with one commit.
const DELETED: usize = 128;
/// How long records that may be deleted wait for others that go with the same commit.
const COLLECT_FOR: Duration = Duration::from_millis(200);
/// How long nobody else deletes a record that was written: half a minute longer than it is remembered.
const UNTOUCHED: Duration = Duration::from_secs(FINISHED_KEPT.as_secs() * 3 / 2);

/// See the module.
#[derive(Debug)]
pub struct History {
    paths: Paths,
    tree: Arc<dyn Tree>,
    connections: Arc<FencedConnections>,
    state: Mutex<HistoryState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct HistoryState {
    /// The ends that this replica wrote, oldest first.
    ends: VecDeque<(String, Written)>,
    /// The ends that are about to be deleted and no longer remembered.
    forgotten: HashMap<String, Written>,
    /// How many the namespace remembers, as the last call said.
    limit: u32,
}

/// A record that this replica wrote.
#[derive(Debug, Clone, Copy)]
struct Written {
    since: Instant,
    /// The connection over which it was written, and its version, if that is known.
    version: Option<(u64, Version)>,
}

impl Written {
    /// The version in which it can be deleted over this connection without a read.
    fn version(&self, generation: u64) -> Option<Version> {
        let (written, version) = self.version?;
        (written == generation && self.since.elapsed() < UNTOUCHED).then_some(version)
    }

    /// Whether what has this version now is what was written. A request that waited in vain may have come again since.
    fn is_of(&self, now: Version) -> bool {
        self.version.is_some_and(|(_, version)| version == now)
    }
}

impl HistoryState {
    /// Whether the record that has this version now is remembered no more.
    fn is_forgotten(&self, path: &str, version: Version) -> bool {
        self.forgotten.get(path).is_some_and(|written| written.is_of(version))
    }
}

/// How a step writes the record of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestWrite {
    /// There is none yet.
    Create,
    /// There is one of this version, which is of nothing that lives.
    Replace {
        version: Version,
        /// The connection over which it was read.
        read_over: u64,
    },
}

impl RequestWrite {
    /// The connection over which the step must go, if it rests on what was read.
    pub fn read_over(self) -> Option<u64> {
        match self {
            Self::Create => None,
            Self::Replace { read_over, .. } => Some(read_over),
        }
    }
}

impl History {
    pub fn new(paths: Paths, tree: Arc<dyn Tree>, connections: Arc<FencedConnections>) -> Self {
        Self {
            paths,
            tree,
            connections,
            state: Mutex::new(HistoryState {
                limit: u32::MAX,
                ..HistoryState::default()
            }),
            changed: Notify::new(),
        }
    }

    /// Writes the record of a call with a request id: this call has its place. `claim` is the claim that it is in.
    pub fn begin(&self, name: &LockName, new: &NewClaim, claim: ClaimId, request_write: RequestWrite) -> Option<Op> {
        if !new.retryable {
            return None;
        }
        self.state.lock().limit = new.limits.finished;
        let path = self.paths.request(name, new.id);
        let data = live(name, claim, new.call).encode();
        Some(match request_write {
            RequestWrite::Create => Op::create(path, data),
            RequestWrite::Replace { version, .. } => Op::set(path, data, version),
        })
    }

    /// Forgets a request that ended without a grant. Its record stays for a while: were it deleted and made again, it
    /// would have a version that a step of another call was judged by.
    pub fn forget(&self, name: &LockName, id: ClaimId) -> Op {
        Op::set(self.paths.request(name, id), Memory::Forgotten.encode(), ANY)
    }

    /// Notes that a request was forgotten.
    pub fn forgot(&self, name: &LockName, id: ClaimId) {
        let limit = self.state.lock().limit;
        self.note([(self.paths.request(name, id), None)], limit);
    }

    /// Remembers how holds of a claim ended; those that were undone are forgotten.
    pub fn end(&self, name: &LockName, (claim, token): (&Claim, FencingToken), gone: &[Hold], cause: Cause) -> Vec<Op> {
        let mut ops = Vec::new();
        for hold in gone {
            if cause == Cause::Undone {
                ops.extend(hold.retryable.then(|| self.forget(name, hold.id)));
                continue;
            }
            let request = self.paths.request(name, hold.id);
            let end = End {
                cause,
                token,
                owner: claim.terms.owner.clone(),
                secret: hold.secret,
                lock: name.as_str().into(),
            };
            let data = Memory::Ended(end).encode();
            if hold.id != claim.id {
                let path = self.paths.end_of_hold(name, claim.id, hold.secret);
                ops.push(Op::create(path, data.clone()));
            } else if !hold.retryable {
                ops.push(Op::create(self.paths.end(name, hold.id), data.clone()));
            }
            ops.extend(hold.retryable.then(|| Op::set(request, data, ANY)));
        }
        ops
    }

    /// The notice of a forced release to the other servers, in the step that ends the claim. It is deleted as the records
    /// of the ends are, or goes with the session. No safety rests on it: without it, the next renewal finds the end.
    pub fn notice(&self, name: &LockName, token: FencingToken) -> Op {
        Op::Create {
            path: self.paths.forced(name, token),
            data: Memory::Forgotten.encode(),
            kind: NodeKind::Ephemeral,
        }
    }

    /// Whether this notice is there: a claim whose holds were released before has no other record of a forced end.
    pub async fn was_forced(&self, generation: u64, name: &LockName, token: FencingToken) -> Result<bool, Failure> {
        let notice = self.tree.get(generation, &self.paths.forced(name, token)).await?;
        Ok(notice.is_some())
    }

    /// Notes that ends were written by the operations of a step from the `first` on, and forgets the oldest past the
    /// limit.
    pub fn ended(&self, ops: &[Op], (done, first): (&StepDone, usize), limit: u32) {
        let (generation, answers) = (done.connection.generation, done.done.iter().skip(first));
        let ends = ops.iter().zip(answers).filter_map(|(op, done)| match (op, done) {
            (Op::Create { path, .. }, Done::Created(_, version)) => Some((path.clone(), Some((generation, *version)))),
            (Op::Set { path, .. }, Done::Set(stat)) => Some((path.clone(), Some((generation, stat.version)))),
            _ => None,
        });
        self.note(ends, limit);
    }

    fn note(&self, ends: impl IntoIterator<Item = (String, Option<(u64, Version)>)>, limit: u32) {
        let mut state = self.state.lock();
        let since = Instant::now();
        let ends = ends
            .into_iter()
            .map(|(path, version)| (path, Written { since, version }));
        state.ends.extend(ends);
        let limit = limit as usize;
        let mut is_changed = false;
        while state.ends.len() > limit
            && let Some((path, written)) = state.ends.pop_front()
        {
            state.forgotten.insert(path, written);
            is_changed = true;
        }
        drop(state);
        if is_changed {
            self.changed.notify_one();
        }
    }

    /// The record at a path, with its version. What is remembered no more is `None` with its version.
    pub async fn read(&self, generation: u64, path: &str) -> Result<Option<(Option<Memory>, Version)>, Failure> {
        let Some((data, stat)) = self.tree.get(generation, path).await? else {
            return Ok(None);
        };
        let memory = Some(Memory::decode(&data)?);
        let is_forgotten = self.state.lock().is_forgotten(path, stat.version);
        let memory = memory.filter(|memory| match memory {
            Memory::Live { .. } => true,
            Memory::Ended(_) => !is_forgotten,
            Memory::Forgotten => false,
        });
        Ok(Some((memory, stat.version)))
    }

    /// How the hold of a lease ended, if that is remembered.
    pub async fn of_lease(&self, generation: u64, lease: &LeaseKey) -> Result<Option<Cause>, Failure> {
        let name = &lease.lock.name;
        let paths = [
            self.paths.request(name, lease.claim),
            self.paths.end(name, lease.claim),
            self.paths.end_of_hold(name, lease.claim, lease.secret),
        ];
        let is_of =
            |end: &End| end.secret == lease.secret && end.token == lease.token && end.lock == lease.lock.name.as_str();
        let mut ends = self.ends_at(generation, &paths).await?;
        Ok(ends.find(is_of).map(|end| end.cause))
    }

    /// How the claim of a holder that disappeared ended: one that was undone is not remembered.
    pub async fn of_claim(&self, generation: u64, name: &LockName, claim: ClaimId) -> Result<Option<End>, Failure> {
        let paths = [self.paths.request(name, claim), self.paths.end(name, claim)];
        Ok(self.ends_at(generation, &paths).await?.next())
    }

    /// The ends that are remembered at these paths.
    async fn ends_at(&self, generation: u64, paths: &[String]) -> Result<impl Iterator<Item = End> + use<>, Failure> {
        let found = try_join_all(paths.iter().map(|path| self.read(generation, path))).await?;
        Ok(found.into_iter().flatten().filter_map(|(memory, _)| match memory {
            Some(Memory::Ended(end)) => Some(end),
            _ => None,
        }))
    }

    /// How the claim with this token ended. Reads every end of the lock's bucket, because no node is named for a token.
    pub async fn of_token(
        &self,
        generation: u64,
        name: &LockName,
        token: FencingToken,
    ) -> Result<Option<Cause>, Failure> {
        let bucket = self.paths.memory(Paths::bucket_of(name));
        let names = self.tree.children(generation, &bucket).await?;
        let names = names.map(|(names, _)| names).unwrap_or_default();
        let paths: Vec<_> = names.iter().map(|child| format!("{bucket}/{child}")).collect();
        let read = try_join_all(paths.iter().map(|path| self.read(generation, path))).await?;
        let cause = read.into_iter().find_map(|read| match read {
            Some((Some(Memory::Ended(end)), _)) if end.token == token && end.lock == name.as_str() => Some(end.cause),
            _ => None,
        });
        Ok(cause)
    }

    /// Deletes old ends.
    pub async fn run(self: Arc<Self>) {
        loop {
            let due = self
                .state
                .lock()
                .ends
                .front()
                .map(|(_, written)| written.since + FINISHED_KEPT);
            let timer = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    // Ends that are written meanwhile are due later.
                    None => tokio::time::sleep(FINISHED_KEPT / 2).await,
                }
            };
            tokio::select! {
                biased;
                () = timer => {}
                () = self.changed.notified() => {}
            }
            tokio::time::sleep(COLLECT_FOR).await;
            self.delete_forgotten().await;
        }
    }

    async fn delete_forgotten(&self) {
        loop {
            let some: Vec<(String, Written)> = {
                let mut state = self.state.lock();
                while let Some((_, written)) = state.ends.front()
                    && written.since.elapsed() >= FINISHED_KEPT
                    && let Some((path, written)) = state.ends.pop_front()
                {
                    state.forgotten.insert(path, written);
                }
                let some = state.forgotten.iter().take(DELETED);
                some.map(|(path, written)| (path.clone(), *written)).collect()
            };
            if some.is_empty() {
                return;
            }
            if self.delete(&some).await.is_err() {
                // The cleanup deletes what is left after a failure of the store.
                self.changed.notify_one();
                tokio::time::sleep(Duration::from_secs(1)).await;
                return;
            }
            let mut state = self.state.lock();
            some.iter().for_each(|(path, _)| _ = state.forgotten.remove(path));
            if some.len() < DELETED {
                return;
            }
        }
    }

    /// Deletes these records, as far as they are there and were not replaced by others that live or are remembered.
    async fn delete(&self, some: &[(String, Written)]) -> Result<(), Failure> {
        let connection = self.connections.ready().await?;
        let generation = connection.generation;
        let versions = some.iter().map(|(path, written)| async move {
            if let Some(version) = written.version(generation) {
                return Ok(Some((path.clone(), version)));
            }
            let read = self.tree.get(generation, path).await?;
            let ended = read.filter(|(data, stat)| match Memory::decode(data) {
                Ok(Memory::Forgotten) => true,
                Ok(Memory::Ended(_)) => written.is_of(stat.version),
                Ok(Memory::Live { .. }) | Err(_) => false,
            });
            Ok::<_, Failure>(ended.map(|(_, stat)| (path.clone(), stat.version)))
        });
        let versions = try_join_all(versions).await?;
        self.delete_as_read(generation, versions.into_iter().flatten().collect())
            .await
    }

    /// Deletes records in the versions that were read, or written. One that was replaced meanwhile stays.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn delete_as_read(&self, generation: u64, mut read: Vec<(String, Version)>) -> Result<(), Failure> {
        while !read.is_empty() {
            let ops: Vec<Op> = read
                .iter()
                .map(|(path, version)| Op::delete(path.clone(), *version))
                .collect();
            match self.tree.apply(generation, &ops).await {
                Ok(_) => return Ok(()),
                // It was replaced, or another replica has deleted it.
                Err(Failure::Refused { index, .. }) if index < read.len() => drop(read.remove(index)),
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }
}

fn live(name: &LockName, claim: ClaimId, call: CallId) -> Memory {
    let lock = name.as_str().into();
    Memory::Live { claim, call, lock }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_record_is_deleted_in_its_version_only_as_long_as_nobody_else_deletes_it() {
        let written = |version| Written {
            since: Instant::now(),
            version,
        };
        let (known, unknown) = (written(Some((7, 1))), written(None));
        assert_eq!(
            (known.version(7), known.version(8), unknown.version(7)),
            (Some(1), None, None)
        );
        tokio::time::advance(FINISHED_KEPT).await;
        assert_eq!(known.version(7), Some(1));
        tokio::time::advance(UNTOUCHED - FINISHED_KEPT).await;
        assert_eq!(known.version(7), None, "the cleanup may have deleted it");
    }

    #[tokio::test]
    async fn what_is_forgotten_of_a_request_is_not_its_later_end() {
        let mut state = HistoryState::default();
        for (path, version) in [("ended", Some((7, 1))), ("waited in vain", None)] {
            let since = Instant::now();
            state.forgotten.insert(path.into(), Written { since, version });
        }
        assert!(state.is_forgotten("ended", 1) && !state.is_forgotten("ended", 3));
        assert!(!state.is_forgotten("waited in vain", 1));
    }
}
