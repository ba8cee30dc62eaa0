//! A `RecordStore` in memory: its clock can be stepped, and it delays, loses, repeats and refuses on demand.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::record::store::{
    Commit, Committed, Found, FoundRoot, Heard, LockTime, Message, Root, ServerId, Stamp, StoreTime, Version,
};
use fencepost_core::name::LockName;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::dice::Dice;

mod connection;

pub use connection::Connection;

/// A day in 2026, at which the clock of every new database stands.
const BEGIN: u64 = 1_790_000_000_000_000;

/// What may happen to a step, each with its probability in a thousand.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// How long a step takes to arrive, in microseconds.
    pub delay: Range<u64>,
    /// It is refused before it is sent.
    pub not_sent: u64,
    /// It is lost on its way.
    pub lost: u64,
    /// It takes effect, and its answer is lost.
    pub unanswered: u64,
    /// It arrives long after its sender has given up.
    pub late: u64,
    /// It arrives, and once more later.
    pub twice: u64,
    /// How much later, in microseconds.
    pub later: Range<u64>,
    /// A message is lost.
    pub deaf: u64,
}

/// What becomes of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives, and is answered.
    Answered,
    /// It is refused before it is sent.
    NotSent,
    /// It is lost on its way.
    Lost,
    /// It takes effect, and its answer is lost.
    Unanswered,
    /// It takes effect, and too few replicas confirm it.
    Unconfirmed,
    /// It arrives so much later, and its sender is told at once that the connection was lost.
    Late(Duration),
    /// It arrives when [`Database::deliver`] is called.
    Kept,
    /// It arrives, and once more so much later.
    Twice(Duration),
    /// It is [`Fate::Kept`], and its sender panics.
    Panic,
}

#[derive(Debug)]
struct Record {
    root: Root,
    reserved: Option<(ServerId, LockTime)>,
    /// Who has the next reservation, and for how many microseconds.
    next: Option<(ServerId, u64)>,
    parts: BTreeMap<u64, Vec<u8>>,
}

#[derive(Debug)]
struct Tables {
    records: BTreeMap<String, Record>,
    floor: u64,
    counters: HashMap<ServerId, u64>,
    listeners: HashMap<ServerId, mpsc::UnboundedSender<Heard>>,
    /// The versions of all commits, each with its record: none is used for two.
    versions: HashMap<Version, (LockName, Vec<u8>)>,
    applied: u64,
    refused: u64,
    reserving: u64,
    pages: u64,
    dice: Dice,
    faults: Faults,
    /// Commits that may grant are refused.
    quarantined: bool,
    /// Replicas confirm commits.
    confirms: bool,
    /// Nothing is answered.
    down: bool,
    /// The fates of the next commits.
    planned: VecDeque<Fate>,
    kept: Vec<Commit>,
    /// What was there before the soft commits that a crash loses.
    lost_in_crash: HashMap<LockName, Option<Root>>,
    /// Two commits had one version.
    repeated: bool,
    in_flight: HashMap<(ServerId, LockName), u32>,
    most_in_flight: u32,
    begin: Instant,
    /// How far the clock was stepped, in microseconds.
    stepped: i64,
}

/// A database, which any number of servers use.
#[derive(Debug, Clone)]
pub struct Database(Arc<Mutex<Tables>>);

impl Default for Database {
    fn default() -> Self {
        Self::new(1, Faults::default())
    }
}

impl Database {
    /// An empty one, whose faults follow from a seed.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self(Arc::new(Mutex::new(Tables {
            records: BTreeMap::new(),
            floor: 0,
            counters: HashMap::new(),
            listeners: HashMap::new(),
            versions: HashMap::new(),
            applied: 0,
            refused: 0,
            reserving: 0,
            pages: 0,
            dice: Dice::new(seed),
            faults,
            quarantined: false,
            confirms: false,
            down: false,
            planned: VecDeque::new(),
            kept: Vec::new(),
            lost_in_crash: HashMap::new(),
            repeated: false,
            in_flight: HashMap::new(),
            most_in_flight: 0,
            begin: Instant::now(),
            stepped: 0,
        })))
    }

    /// One server's connection.
    pub fn connect(&self) -> Arc<Connection> {
        self.connect_polling(Duration::from_secs(1))
    }

    /// That of a server that reads attended locks so soon after their last change.
    pub fn connect_polling(&self, poll: Duration) -> Arc<Connection> {
        Arc::new(Connection::new(self.clone(), poll))
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().faults = faults;
    }

    /// Steps the clock.
    pub fn step_clock(&self, micros: i64) {
        self.0.lock().stepped += micros;
    }

    /// The clock now.
    pub fn time(&self) -> u64 {
        self.0.lock().time()
    }

    /// Whether replicas confirm commits.
    pub fn set_confirms(&self, confirms: bool) {
        self.0.lock().confirms = confirms;
    }

    /// Whether commits that may grant are refused from now on.
    pub fn quarantine(&self, quarantined: bool) {
        self.0.lock().quarantined = quarantined;
    }

    /// Whether nothing is answered from now on.
    pub fn set_down(&self, down: bool) {
        self.0.lock().down = down;
    }

    /// The fates of the next commits, whatever their locks.
    pub fn plan(&self, fates: impl IntoIterator<Item = Fate>) {
        self.0.lock().planned.extend(fates);
    }

    /// How many commits of [`Self::plan`] are still to come.
    pub fn planned(&self) -> usize {
        self.0.lock().planned.len()
    }

    /// The commits that were kept arrive. Returns how many took effect.
    pub fn deliver(&self) -> usize {
        let mut tables = self.0.lock();
        let kept = std::mem::take(&mut tables.kept);
        let applied = kept
            .iter()
            .filter(|commit| matches!(tables.commit(commit), Committed::Applied(_)));
        applied.count()
    }

    /// Whether two commits had one version.
    pub fn has_repeated_versions(&self) -> bool {
        self.0.lock().repeated
    }

    /// The largest number of commits of one server on one lock that were in flight at once.
    pub fn most_in_flight(&self) -> u32 {
        self.0.lock().most_in_flight
    }

    /// How many commits took effect, and how many were refused.
    pub fn commits(&self) -> (u64, u64) {
        let tables = self.0.lock();
        (tables.applied, tables.refused)
    }

    /// How many commits asked for a reservation.
    pub fn reserving(&self) -> u64 {
        self.0.lock().reserving
    }

    /// How many pages of roots were listed.
    pub fn pages(&self) -> u64 {
        self.0.lock().pages
    }

    /// The names of the locks that have a root.
    pub fn roots(&self) -> Vec<String> {
        self.0.lock().records.keys().cloned().collect()
    }

    /// The servers that have a counter.
    pub fn servers(&self) -> Vec<ServerId> {
        self.0.lock().counters.keys().copied().collect()
    }

    /// The root of a lock.
    pub fn root(&self, lock: &LockName) -> Option<Root> {
        Some(self.0.lock().records.get(lock.as_str())?.root.clone())
    }

    /// Replaces the body of a root, as damage does.
    pub fn damage(&self, lock: &LockName, body: Vec<u8>) {
        if let Some(record) = self.0.lock().records.get_mut(lock.as_str()) {
            record.root.body = body;
        }
    }

    /// A lock's root and parts, for [`Self::restore`].
    pub fn copy(&self, lock: &LockName) -> (Root, BTreeMap<u64, Vec<u8>>) {
        let tables = self.0.lock();
        let record = tables.records.get(lock.as_str()).expect("a record");
        (record.root.clone(), record.parts.clone())
    }

    /// Puts an earlier root and its parts back, as a failover to a server that lags does.
    pub fn restore(&self, lock: &LockName, (root, parts): (Root, BTreeMap<u64, Vec<u8>>)) {
        if let Some(record) = self.0.lock().records.get_mut(lock.as_str()) {
            (record.root, record.parts) = (root, parts);
        }
    }

    /// Crashes: the soft commits since the last other one are lost.
    pub fn crash(&self) {
        let mut tables = self.0.lock();
        for (lock, root) in std::mem::take(&mut tables.lost_in_crash) {
            match (root, tables.records.get_mut(lock.as_str())) {
                (Some(root), Some(record)) => record.root = root,
                _ => drop(tables.records.remove(lock.as_str())),
            }
        }
    }

    /// The numbers of the parts of a lock.
    pub fn parts_of(&self, lock: &LockName) -> Vec<u64> {
        let tables = self.0.lock();
        let record = tables.records.get(lock.as_str());
        record.map_or_else(Vec::new, |record| record.parts.keys().copied().collect())
    }
}

impl Tables {
    fn time(&self) -> u64 {
        let passed = u64::try_from(self.begin.elapsed().as_micros()).expect("a short test");
        (BEGIN + passed).saturating_add_signed(self.stepped)
    }

    fn stamp(&self, lock: &LockName) -> Stamp {
        let time = self.time();
        let clock = self.records.get(lock.as_str()).map_or(time, |record| {
            let last = record.root.stamp;
            last.clock.0 + time.saturating_sub(last.time.0)
        });
        Stamp {
            clock: LockTime(clock),
            time: StoreTime(time),
        }
    }

    fn found(&self, lock: &LockName, known: Option<Version>) -> Found {
        let record = self.records.get(lock.as_str());
        Found {
            now: self.stamp(lock),
            root: match record {
                None => FoundRoot::Absent,
                Some(record) if Some(record.root.version) == known => FoundRoot::Known,
                Some(record) => FoundRoot::Root(record.root.clone()),
            },
            reserved: record.and_then(|record| record.reserved),
            floor: self.floor,
        }
    }

    fn commit(&mut self, commit: &Commit) -> Committed {
        let bytes = (commit.lock.clone(), commit.body.clone());
        let before = self.versions.entry(commit.version).or_insert_with(|| bytes.clone());
        self.repeated |= *before != bytes;
        self.reserving += u64::from(commit.reserve.is_some());
        let now = self.stamp(&commit.lock);
        let record = self.records.get_mut(commit.lock.as_str());
        let version = record.as_ref().map(|record| record.root.version);
        let reserved = record.as_ref().and_then(|record| record.reserved);
        let reserved = reserved.filter(|(_, until)| *until > now.clock);
        if version != commit.expected
            || now.clock < commit.not_before
            || now.clock >= commit.not_after
            || now.time > commit.latest
            || (commit.expected.is_none() && commit.floor < self.floor)
            || reserved.is_some_and(|(server, _)| server != commit.server)
        {
            let others = reserved.is_some_and(|(server, _)| server != commit.server);
            if let (Some(record), Some(time), true) = (record, commit.reserve, version != commit.expected || others) {
                let time = u64::try_from(time.as_micros()).expect("a short time");
                match reserved {
                    None => record.reserved = Some((commit.server, LockTime(now.clock.0 + time))),
                    Some(_) if others => drop(record.next.get_or_insert((commit.server, time))),
                    Some(_) => {}
                }
            }
            self.refused += 1;
            return Committed::Refused(self.found(&commit.lock, commit.expected));
        }
        self.applied += 1;
        if commit.soft {
            let before = record.map(|record| record.root.clone());
            self.lost_in_crash.entry(commit.lock.clone()).or_insert(before);
        } else {
            self.lost_in_crash.clear();
        }
        // No two commits have one time, as in a store whose clock is fine.
        self.stepped += 1;
        let root = Root {
            version: commit.version,
            stamp: now,
            body: commit.body.clone(),
        };
        let record = self
            .records
            .entry(commit.lock.as_str().into())
            .or_insert_with(|| Record {
                root: root.clone(),
                reserved: None,
                next: None,
                parts: BTreeMap::new(),
            });
        let next = record.next.take().filter(|(server, _)| *server != commit.server);
        record.reserved = next.map(|(server, time)| (server, LockTime(now.clock.0 + time)));
        record.root = root;
        record.parts.retain(|number, _| !commit.delete.contains(number));
        for (number, part) in &commit.put {
            let before = record.parts.insert(*number, part.clone());
            assert!(before.is_none_or(|before| before == *part), "a part was changed");
        }
        for Message { to, body } in &commit.messages {
            if !self.dice.happens(self.faults.deaf)
                && let Some(listener) = self.listeners.get(to)
            {
                let _ = listener.send(Heard::Message(commit.lock.clone(), now, body.clone()));
            }
        }
        Committed::Applied(now)
    }

    fn fate(&mut self) -> Fate {
        if let Some(fate) = self.planned.pop_front() {
            return fate;
        }
        let faults = self.faults.clone();
        if self.dice.happens(faults.not_sent) {
            Fate::NotSent
        } else if self.dice.happens(faults.lost) {
            Fate::Lost
        } else if self.dice.happens(faults.unanswered) {
            Fate::Unanswered
        } else if self.dice.happens(faults.late) {
            Fate::Late(self.dice.within(&faults.later))
        } else if self.dice.happens(faults.twice) {
            Fate::Twice(self.dice.within(&faults.later))
        } else {
            Fate::Answered
        }
    }
}
