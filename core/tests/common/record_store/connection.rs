//! One server's connection to the store in memory.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::record::store::{
    Commit, Committed, Found, Heard, RecordStore, Root, ServerId, Stamp, Version,
};
use fencepost_core::backend::{BackendError, Health};
use fencepost_core::name::LockName;
use futures::stream::{BoxStream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::{Database, Fate, Record, Tables};

/// One server's connection to a [`Database`].
#[derive(Debug)]
pub struct Connection {
    database: Database,
    health: watch::Sender<Health>,
    /// Whether its server has died: nothing is sent or answered any more.
    dead: watch::Sender<bool>,
    /// How far away the server is: how long each way takes.
    distance: Mutex<Duration>,
    /// For how long the server runs, and then stands still, again and again.
    pulses: Mutex<Option<(Duration, Duration)>>,
    /// How many commits and reads it has sent.
    steps: AtomicU64,
    poll: Duration,
}

impl Connection {
    /// One that reads locks besides so seldom.
    pub(super) fn new(database: Database, poll: Duration) -> Self {
        let (health, _) = watch::channel(Health::Serving);
        Self {
            database,
            health,
            dead: watch::channel(false).0,
            distance: Mutex::default(),
            pulses: Mutex::default(),
            steps: AtomicU64::new(0),
            poll,
        }
    }

    /// The server is so far away: each way takes so long.
    pub fn set_distance(&self, distance: Duration) {
        *self.distance.lock() = distance;
    }

    /// The server runs for so long, then stands still for so long, and so on.
    pub fn set_pulses(&self, runs: Duration, stands: Duration) {
        *self.pulses.lock() = Some((runs, stands));
    }

    /// Waits until the server runs.
    async fn runs(&self) {
        let Some((runs, stands)) = *self.pulses.lock() else {
            return;
        };
        let both = (runs + stands).as_micros();
        let begin = self.database.0.lock().begin;
        let phase = Duration::from_micros(u64::try_from(begin.elapsed().as_micros() % both).expect("it is short"));
        if phase >= runs {
            sleep(runs + stands - phase).await;
        }
    }

    /// How many commits and reads the server has sent.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The server dies. What it has sent may still arrive.
    pub fn kill(&self) {
        self.dead.send_replace(true);
    }

    /// Whether the server is cut off, which ends when it is connected again.
    pub fn cut_off(&self, is_cut_off: bool) {
        self.dead.send_replace(is_cut_off);
    }

    /// A step arrives after a while, if its server lives and the database answers.
    async fn arrive(&self) -> Result<(), BackendError> {
        self.runs().await;
        let _ = self.dead.subscribe().wait_for(|dead| !dead).await;
        let (delay, down) = {
            let mut tables = self.database.0.lock();
            let delay = tables.faults.delay.clone();
            (tables.dice.within(&delay) + *self.distance.lock(), tables.down)
        };
        if !delay.is_zero() {
            sleep(delay).await;
        }
        if down { Err(not_sent()) } else { Ok(()) }
    }

    /// An answer comes back, if the server lives.
    async fn answered(&self) {
        let distance = *self.distance.lock();
        if !distance.is_zero() {
            sleep(distance).await;
        }
        self.runs().await;
        let _ = self.dead.subscribe().wait_for(|dead| !dead).await;
    }

    /// A step that only reads.
    async fn read_step<T>(&self, step: impl FnOnce(&mut Tables) -> T) -> Result<T, BackendError> {
        self.arrive().await?;
        let read = {
            let mut tables = self.database.0.lock();
            let (lost, unanswered) = (tables.faults.lost, tables.faults.unanswered);
            if tables.dice.happens(lost + unanswered) {
                Err(unavailable())
            } else {
                Ok(step(&mut tables))
            }
        };
        self.answered().await;
        read
    }

    fn apply_later(&self, commit: Commit, after: Duration) {
        let database = self.database.clone();
        tokio::spawn(async move {
            sleep(after).await;
            database.0.lock().commit(&commit);
        });
    }
}

/// Counts a commit in flight until it is dropped.
struct InFlight(Database, (ServerId, LockName));

impl InFlight {
    fn begin(database: &Database, commit: &Commit) -> Self {
        let of = (commit.server, commit.lock.clone());
        let mut tables = database.0.lock();
        let count = tables.in_flight.entry(of.clone()).or_default();
        *count += 1;
        let count = *count;
        tables.most_in_flight = tables.most_in_flight.max(count);
        Self(database.clone(), of)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(count) = self.0.0.lock().in_flight.get_mut(&self.1) {
            *count -= 1;
        }
    }
}

fn unavailable() -> BackendError {
    BackendError::Unavailable {
        reason: "the connection was lost".into(),
    }
}

fn not_sent() -> BackendError {
    BackendError::NotSent {
        reason: "there is no connection".into(),
    }
}

#[async_trait]
impl RecordStore for Connection {
    async fn commit(&self, commit: Commit) -> Result<Committed, BackendError> {
        let _in_flight = InFlight::begin(&self.database, &commit);
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.arrive().await?;
        let fate = {
            let mut tables = self.database.0.lock();
            if commit.grants && tables.quarantined {
                return Err(BackendError::Quarantined {
                    left: Duration::from_secs(10),
                    reason: "a test".into(),
                });
            }
            tables.fate()
        };
        let answer = match fate {
            Fate::NotSent => Err(not_sent()),
            Fate::Lost => Err(unavailable()),
            Fate::Late(after) => {
                self.apply_later(commit, after);
                Err(unavailable())
            }
            Fate::Kept => {
                self.database.0.lock().kept.push(commit);
                Err(unavailable())
            }
            Fate::Panic => {
                self.database.0.lock().kept.push(commit);
                panic!("a test");
            }
            Fate::Unanswered => {
                self.database.0.lock().commit(&commit);
                Err(unavailable())
            }
            Fate::Unconfirmed => Ok(match self.database.0.lock().commit(&commit) {
                Committed::Applied(stamp) => Committed::Unconfirmed(stamp, "no replica".into()),
                other => other,
            }),
            Fate::Twice(after) => {
                let committed = self.database.0.lock().commit(&commit);
                self.apply_later(commit, after);
                Ok(committed)
            }
            Fate::Answered => Ok(self.database.0.lock().commit(&commit)),
        };
        self.answered().await;
        answer
    }

    async fn read(&self, lock: &LockName, known: Option<Version>) -> Result<Found, BackendError> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.read_step(|tables| tables.found(lock, known)).await
    }

    async fn parts(&self, lock: &LockName, parts: Range<u64>) -> Result<Vec<(u64, Vec<u8>)>, BackendError> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        let step = |tables: &mut Tables| {
            let record = tables.records.get(lock.as_str());
            let all = record.map(|record| record.parts.range(parts));
            all.into_iter()
                .flatten()
                .map(|(number, part)| (*number, part.clone()))
                .collect()
        };
        self.read_step(step).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root, Stamp)>, BackendError> {
        let step = |tables: &mut Tables| {
            tables.pages += 1;
            let begins = |name: &&String| name.starts_with(prefix) && after.is_none_or(|after| name.as_str() > after);
            let names = tables.records.keys().filter(begins).take(limit);
            let names: Vec<_> = names.map(|name| LockName::new(name).expect("a name")).collect();
            let look = |name: LockName| {
                let root = tables.records[name.as_str()].root.clone();
                let now = tables.stamp(&name);
                (name, root, now)
            };
            names.into_iter().map(look).collect()
        };
        self.read_step(step).await
    }

    async fn idle(
        &self,
        unused_for: Duration,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(LockName, Root)>, BackendError> {
        let step = |tables: &mut Tables| {
            let unused_for = u64::try_from(unused_for.as_micros()).expect("a short time");
            let before = tables.time().saturating_sub(unused_for);
            let all = tables.records.iter();
            all.filter(|(name, record)| {
                record.root.stamp.time.0 <= before && after.is_none_or(|after| name.as_str() > after)
            })
            .take(limit)
            .map(|(name, record)| (LockName::new(name).expect("a name"), record.root.clone()))
            .collect()
        };
        self.read_step(step).await
    }

    async fn remove(&self, roots: &[(LockName, Version)], floor: u64) -> Result<(), BackendError> {
        let roots: HashSet<_> = roots.iter().map(|(name, version)| (name.as_str(), *version)).collect();
        self.read_step(|tables| {
            tables.floor = tables.floor.max(floor);
            let stays = |name: &String, record: &mut Record| !roots.contains(&(name.as_str(), record.root.version));
            tables.records.retain(stays);
        })
        .await
    }

    async fn beat(&self, server: ServerId) -> Result<Vec<(ServerId, u64)>, BackendError> {
        self.read_step(|tables| {
            *tables.counters.entry(server).or_default() += 1;
            tables
                .counters
                .iter()
                .map(|(server, count)| (*server, *count))
                .collect()
        })
        .await
    }

    async fn leave(&self, server: ServerId) -> Result<(), BackendError> {
        self.read_step(|tables| _ = tables.counters.remove(&server)).await
    }

    fn messages(&self, server: ServerId) -> BoxStream<'static, Heard> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.database.0.lock().listeners.insert(server, sender);
        futures::stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        })
        .boxed()
    }

    fn confirms(&self) -> bool {
        self.database.0.lock().confirms
    }

    fn poll(&self) -> Duration {
        self.poll
    }

    async fn admit(&self) -> Result<(), BackendError> {
        self.database.quarantine(false);
        Ok(())
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    async fn close(&self) {}
}
