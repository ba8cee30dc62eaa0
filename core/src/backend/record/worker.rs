//! Runs the verbs of one lock: in batches, with one commit in flight.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::Core;
use super::contention::Contention;
use super::draft::{self, Draft, Input};
use super::ends::MissingParts;
use super::local;
use super::locks::{Cached, FRESH, LockEntry, Origin};
use super::root::{LockRecord, read_part, write_part};
use super::store::{Commit, Found, FoundRoot, Stamp, StoreTime, Version};
use super::verb::Pending;
use crate::backend::BackendError;
use crate::backend::failure::not_sent;

/// How many verbs a commit carries at most.
const BATCH: usize = 256;
/// How long after it was computed a commit may still take effect.
const LATEST: Duration = Duration::from_secs(60);
/// How long the appends to a busy lock wait for the next step on it.
const APPEND_DELAY: Duration = Duration::from_millis(5);
/// For how long a step says that the next one will come soon.
const BUSY: Duration = Duration::from_millis(100);
/// How often a read is tried before its verbs fail.
const READS: u32 = 3;
/// The pauses between attempts to settle a commit.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The task that runs the queue of one lock until it is empty.
pub struct Worker {
    core: Arc<Core>,
    entry: Arc<LockEntry>,
    cached: Cached,
    contention: Contention,
    /// Whether it has left the queue empty.
    is_done: bool,
}

mod settle;

/// After a panic, or the end of the namespace, another worker may run the queue.
impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut state = self.entry.state.lock();
        state.running = false;
        // A commit of this worker may still take effect.
        state.unsettled.add(self.cached.version);
        while let Some(pending) = state.pop() {
            pending.fail(&not_sent("the task of this lock has ended"));
        }
    }
}

/// What became of a commit.
enum Settled {
    /// And why it may be lost again, if so.
    Applied(Stamp, Option<String>),
    /// It took effect, and others may have since.
    Overwritten(Found),
    Refused(Found),
    /// It had no effect.
    Failed(BackendError),
}

impl Worker {
    /// For an entry whose queue no task runs.
    pub fn new(core: Arc<Core>, entry: Arc<LockEntry>) -> Self {
        let (cached, contention) = {
            let mut state = entry.state.lock();
            (state.cached.take().unwrap_or_else(Cached::nothing), state.contention)
        };
        Self {
            core,
            entry,
            cached,
            contention,
            is_done: false,
        }
    }

    /// Runs until the queue is empty.
    pub async fn run(mut self) {
        loop {
            self.wait_for_a_step().await;
            let batch = self.take(Vec::new());
            if !batch.is_empty() || self.contention.has_asked() {
                self.run_batch(batch).await;
                continue;
            }
            let mut state = self.entry.state.lock();
            if state.queue.is_empty() {
                state.cached = Some(std::mem::replace(&mut self.cached, Cached::nothing()));
                state.contention = self.contention;
                state.running = false;
                self.is_done = true;
                return;
            }
        }
    }

    /// An append to a busy lock waits a little for the next step on it: one commit then carries both, and fewer commits are
    /// lost to other servers.
    async fn wait_for_a_step(&self) {
        let waits = || {
            let state = self.entry.state.lock();
            let is_busy = state.stepped.is_some_and(|at| at.elapsed() < BUSY);
            is_busy && !state.queue.is_empty() && state.queue.iter().all(|pending| pending.verb.is_append())
        };
        let (is_used, until) = (!self.cached.record.queue.is_empty(), Instant::now() + APPEND_DELAY);
        // A notification may be left over from an earlier verb.
        while is_used && waits() && timeout_at(until, self.entry.arrived.notified()).await.is_ok() {}
    }

    /// Fills a batch up from the queue. Verbs whose callers have left are dropped: a commit that may still carry them is
    /// settled by the write that follows.
    fn take(&self, mut batch: Vec<Pending>) -> Vec<Pending> {
        batch.retain(|pending| !pending.is_left());
        let mut state = self.entry.state.lock();
        while batch.len() < BATCH {
            let Some(pending) = state.pop() else { break };
            if pending.take() {
                batch.push(pending);
            }
        }
        batch
    }

    async fn run_batch(&mut self, mut batch: Vec<Pending>) {
        // Whether the record was read after these verbs were taken: if they change nothing, they are answered from it.
        let mut is_read = false;
        loop {
            if !is_read {
                batch = self.take(batch);
            }
            // An empty batch ends a reservation whose verbs have left.
            if batch.is_empty() && !self.contention.has_asked() {
                return;
            }
            match self.load(&batch).await {
                Ok(read) => is_read |= read,
                Err(error) => return self.fail(batch, &error),
            }
            let draft = match self.draft(&batch) {
                Ok(draft) => draft,
                Err(MissingParts) => match self.load_parts().await {
                    Ok(()) => {
                        // A later commit may have deleted parts.
                        is_read = false;
                        continue;
                    }
                    Err(error) => return self.fail(batch, &error),
                },
            };
            let is_written = draft.changed || self.cached.stands_still() || self.contention.has_asked() || {
                let state = self.entry.state.lock();
                state.unsettled.any() || state.unconfirmed && draft.extends
            };
            let left = match (is_written, is_read) {
                (true, _) => self.write(draft, batch).await,
                (false, true) => return self.answer(draft, batch, self.cached.seen),
                (false, false) => self.check(draft, batch).await,
            };
            is_read = !is_written;
            match left {
                Some(left) => batch = left,
                None => return,
            }
        }
    }

    /// Reads the record if none is known, or none that is fresh. Returns whether it did.
    async fn load(&mut self, batch: &[Pending]) -> Result<bool, BackendError> {
        if self.cached.origin != Origin::Nothing && self.cached.seen_at.elapsed() < FRESH {
            return Ok(false);
        }
        // A first acquire mostly finds a lock that nobody uses: its commit shows whether that is so.
        if batch.iter().any(|pending| pending.verb.may_grant())
            && let Some(now) = self.core.estimate()
        {
            self.cached = Cached {
                record: self.core.empty_record(),
                version: None,
                seen: now,
                seen_at: Instant::now(),
                written: StoreTime(0),
                size: 0,
                origin: Origin::Assumed,
            };
            return Ok(false);
        }
        let found = self.read(None).await?;
        self.adopt(found).map(|()| true)
    }

    async fn read(&self, known: Option<Version>) -> Result<Found, BackendError> {
        let mut pause = PAUSE.0;
        for _ in 1..READS {
            match self.core.store.read(&self.entry.name, known).await {
                Err(BackendError::Unavailable { .. }) => {}
                read => return read,
            }
            sleep(pause).await;
            pause *= 2;
        }
        self.core.store.read(&self.entry.name, known).await
    }

    async fn load_parts(&self) -> Result<(), BackendError> {
        let existing = self.cached.record.ends.parts.clone();
        let missing = self.entry.state.lock().parts.missing(&existing);
        let found = self.core.store.parts(&self.entry.name, missing.clone()).await?;
        let mut state = self.entry.state.lock();
        for (number, part) in found {
            state.parts.insert(number, read_part(&part)?);
        }
        state.parts.fill(missing);
        Ok(())
    }

    /// Runs the verbs on a copy of the record.
    fn draft(&self, batch: &[Pending]) -> Result<Draft, MissingParts> {
        draft::run(&Input {
            core: &self.core,
            lock: &self.entry.name,
            cached: &self.cached,
            state: &self.entry.state.lock(),
            batch,
        })
    }

    /// Answers the verbs of a batch that changes nothing, if the record is still what it was. Returns the verbs that run
    /// again.
    async fn check(&mut self, draft: Draft, batch: Vec<Pending>) -> Option<Vec<Pending>> {
        let version = self.cached.version;
        let found = match self.read(version).await {
            Ok(found) => found,
            Err(error) => {
                self.fail(batch, &error);
                return None;
            }
        };
        let is_same = match found.root {
            FoundRoot::Known => true,
            FoundRoot::Absent => version.is_none(),
            FoundRoot::Root(_) => false,
        };
        let is_in_time = found.now.clock < draft.not_after;
        let now = found.now;
        if let Err(error) = self.adopt(found) {
            self.fail(batch, &error);
            return None;
        }
        if !is_same || !is_in_time {
            return Some(batch);
        }
        self.answer(draft, batch, now);
        None
    }

    /// Writes the record of a batch. Returns the verbs that run again.
    async fn write(&mut self, mut draft: Draft, mut batch: Vec<Pending>) -> Option<Vec<Pending>> {
        let version = match Version::random() {
            Ok(version) => version,
            Err(error) => {
                self.fail(batch, &error);
                return None;
            }
        };
        draft.record.log(version);
        let commit = self.commit_of(&mut draft, version, &batch);
        let (expected, size) = (commit.expected, commit.body.len());
        let began = Instant::now();
        let settled = self.settle(commit, &mut batch).await;
        self.contention.took(began.elapsed());
        match settled {
            Settled::Applied(stamp, unconfirmed) => {
                self.contention.won();
                draft.unconfirmed = unconfirmed;
                self.applied(draft, batch, (version, size), stamp);
                None
            }
            Settled::Overwritten(found) => {
                let left = draft.answer_releases(&self.core, &self.entry.name, &mut self.entry.state.lock(), batch);
                self.refused(found, expected, left).await
            }
            Settled::Refused(found) => self.refused(found, expected, batch).await,
            Settled::Failed(error) => {
                // Refused as a grant, as in a quarantine: what grants nothing goes on without the rest.
                let grants = |pending: &Pending| pending.verb.may_grant();
                let splits = draft.grants && !batch.iter().all(grants);
                let (failed, mut left): (Vec<_>, Vec<_>) =
                    batch.into_iter().partition(|pending| !splits || grants(pending));
                self.fail(failed, &error);
                left.iter_mut().for_each(Pending::drop_next);
                (!left.is_empty()).then_some(left)
            }
        }
    }

    fn commit_of(&mut self, draft: &mut Draft, version: Version, batch: &[Pending]) -> Commit {
        let cached = &self.cached;
        let latest = Duration::from_micros(cached.seen.time.0) + cached.seen_at.elapsed() + LATEST;
        Commit {
            lock: self.entry.name.clone(),
            expected: cached.version,
            version,
            body: draft.record.write(),
            not_before: draft.not_before,
            not_after: draft.not_after,
            latest: StoreTime(super::root::micros(latest)),
            put: draft
                .record
                .ends
                .moved
                .iter()
                .map(|(number, part)| (*number, write_part(part)))
                .collect(),
            delete: draft.deleted.clone(),
            // That under which the record of a first write was made.
            floor: cached.version.map_or(cached.record.token, |_| self.core.floor()),
            messages: draft.messages(&self.core, cached.record.token),
            server: self.core.server,
            reserve: self
                .contention
                .reserve(batch.iter().any(|pending| pending.verb.is_urgent())),
            keep: draft.record.longest_lease(cached.clock()),
            grants: draft.grants,
            extends: draft.extends,
            soft: draft.soft,
        }
    }

    /// Takes over what a refused commit found. Returns the verbs that run again.
    async fn refused(&mut self, found: Found, expected: Option<Version>, batch: Vec<Pending>) -> Option<Vec<Pending>> {
        let (reserved, now) = (found.reserved, found.now);
        let version = match &found.root {
            FoundRoot::Absent => None,
            FoundRoot::Known => expected,
            FoundRoot::Root(root) => Some(root.version),
        };
        let was_faster = version != expected && self.cached.origin != Origin::Assumed;
        let pause = self
            .contention
            .lost(was_faster, (self.core.server, now.clock), reserved);
        if let Err(error) = self.adopt(found) {
            self.fail(batch, &error);
            return None;
        }
        if let Some(pause) = pause {
            sleep(pause).await;
        }
        Some(batch)
    }

    /// Takes over what was found in the store.
    fn adopt(&mut self, found: Found) -> Result<(), BackendError> {
        self.core.observe(found.now, found.floor);
        let (now, seen_at) = (found.now, Instant::now());
        let (version, written, record, size) = match found.root {
            FoundRoot::Known => {
                (self.cached.seen, self.cached.seen_at) = (now, seen_at);
                return Ok(());
            }
            FoundRoot::Absent => (None, StoreTime(0), self.core.empty_record(), 0),
            FoundRoot::Root(root) => {
                if self.cached.version == Some(root.version) {
                    return self.adopt(Found {
                        root: FoundRoot::Known,
                        ..found
                    });
                }
                match LockRecord::read(&root) {
                    Ok(record) => (Some(root.version), root.stamp.time, record, root.body.len()),
                    Err(error) => {
                        self.cached = Cached::nothing();
                        return Err(error.into());
                    }
                }
            }
        };
        let mut state = self.entry.state.lock();
        state.unsettled.found(version);
        state.parts.retain(&record.ends.parts);
        if self.cached.version.is_none_or(|known| !record.log.contains(&known)) {
            state.parts.recheck();
        }
        if self.cached.origin == Origin::Store {
            state.stepped = Some(seen_at);
        }
        let cached = Cached {
            record,
            version,
            seen: now,
            seen_at,
            written,
            size,
            origin: Origin::Store,
        };
        local::compare(&self.core, &self.entry.name, &mut state, &cached.record);
        local::attend(&self.core, &self.entry.name, &mut state, &cached);
        drop(state);
        self.cached = cached;
        Ok(())
    }

    /// The commit of a batch took effect.
    fn applied(&mut self, mut draft: Draft, batch: Vec<Pending>, (version, size): (Version, usize), stamp: Stamp) {
        draft.resolve(stamp);
        self.core.observe(stamp, 0);
        let mut state = self.entry.state.lock();
        state.unsettled = Default::default();
        if !draft.soft {
            state.stepped = Some(Instant::now());
        }
        state.unconfirmed = draft.unconfirmed.is_some() || state.unconfirmed && !draft.extends;
        for (number, part) in std::mem::take(&mut draft.record.ends.moved) {
            state.parts.insert(number, part);
        }
        state.parts.retain(&draft.record.ends.parts);
        drop(state);
        self.cached = Cached {
            record: std::mem::take(&mut draft.record),
            version: Some(version),
            seen: stamp,
            seen_at: Instant::now(),
            written: stamp.time,
            size,
            origin: Origin::Store,
        };
        self.answer(draft, batch, stamp);
    }

    /// Answers the verbs of a batch at this time of the store, and tells the waiters and watchers of this server.
    fn answer(&mut self, draft: Draft, batch: Vec<Pending>, now: Stamp) {
        self.contention.answered();
        let cached = &self.cached;
        let state = &mut *self.entry.state.lock();
        draft.answer(&self.core, &self.entry.name, state, (batch, now));
        local::attend(&self.core, &self.entry.name, state, cached);
    }
}
