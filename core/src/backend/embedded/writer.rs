//! The only writer of a file: makes each batch of steps durable before it replies, and reopens a broken file.
//!
//! While the file can be read and not written, as on a full disk, steps that change nothing still run. The state is then
//! the file's, and nothing ends: a lease whose time has passed lives on once the file can be written.
//!
//! Commit, answer, notification: in this order nobody sees what a crash could take back. A batch that only read, or
//! renewed with the same TTL, commits nothing. The outcome of a failed commit is unknown: nothing of it is answered,
//! and the file is read again before the next grant. Waiters were never in the file and keep their order.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::expiry_timer::ExpiryTimer;
use super::file::{File, FileError, Loaded};
use super::state_machine::StateMachine;
use crate::backend::failure::{not_sent, unavailable};
use crate::backend::local_clock::Clock;
use crate::backend::{BackendError, Health};
use crate::supervisor::restarted;

/// How long the writer waits before it reopens a broken file.
const REOPEN_INTERVAL: Duration = Duration::from_millis(500);
/// For how long a store must work without an error to be reported as serving again: the first time at once, then longer
/// each time that it fails within [`LONG_AGO`] of its last error.
const STEADY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(15)];
const LONG_AGO: Duration = Duration::from_secs(60);
/// How long an error of the file that was logged is not logged again.
const LOG_AGAIN: Duration = Duration::from_secs(60);
/// How long no step must have written before the file may be compacted.
const IDLE_BEFORE_COMPACTION: Duration = Duration::from_secs(2);

pub type Answer = Result<(), BackendError>;

/// A step for the writer.
pub struct Step {
    /// Runs it.
    pub run: Box<dyn FnOnce(&mut StateMachine) + Send>,
    /// Whether it changes nothing, so that it can run while the file cannot be written.
    pub is_read: bool,
}

/// The only writer of a file, on its own thread.
pub struct Writer {
    path: PathBuf,
    /// The file's identity: another file that appears at its path is not this store's.
    inode: (u64, u64),
    machine: StateMachine,
    /// Absent while it cannot be written.
    file: Option<File>,
    /// While it can be read and not written: the machine's state is the file's, and no other process can open it.
    read_only: Option<File>,
    health: watch::Sender<Health>,
    clock: Arc<dyn Clock>,
    timer: Arc<ExpiryTimer>,
    reopen_at: Duration,
    /// When the store failed last, and for how long it must work to be reported as serving again: on a full disk, little
    /// can be written and much can not.
    failed: Option<(Duration, Duration)>,
    /// When the last step wrote something.
    busy_at: Duration,
    /// Whether something was written since the last check for compaction.
    grown: bool,
    /// The error that was logged last, and when: on a full disk the file fails and is opened again twice a second.
    logged: Option<(String, Duration)>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Also when a bug ends the thread: the store must not be reported as serving.
        self.health.send_replace(Health::unavailable("the store has stopped"));
    }
}

impl Writer {
    /// The writer of this file, whose content the machine has.
    pub fn new(
        path: &Path,
        (file, machine): (File, StateMachine),
        health: watch::Sender<Health>,
        (clock, timer): (Arc<dyn Clock>, Arc<ExpiryTimer>),
    ) -> Self {
        Self {
            path: path.into(),
            inode: file.inode(),
            machine,
            file: Some(file),
            read_only: None,
            health,
            clock,
            timer,
            reopen_at: Duration::ZERO,
            failed: None,
            busy_at: Duration::ZERO,
            grown: false,
            logged: None,
        }
    }

    /// Runs the steps, makes their changes durable, then replies: no caller observes a change that
    /// a crash could undo.
    pub fn run_batch(&mut self, steps: Vec<Step>) -> Vec<Answer> {
        let count = steps.len();
        let ran = catch_unwind(AssertUnwindSafe(|| self.try_batch(steps)));
        ran.unwrap_or_else(|panic| vec![Err(self.panicked(&*panic)); count])
    }

    /// Handles a batch that panicked, as a bug may do: its outcome is unknown, and the state is the file's again.
    fn panicked(&mut self, panic: &(dyn Any + Send)) -> BackendError {
        let reason = restarted("embedded: writer", panic, REOPEN_INTERVAL);
        (self.file, self.read_only) = (None, None);
        self.note_failure(&reason);
        self.timer.set(Some(self.reopen_at));
        unavailable(reason)
    }

    /// The store does not serve, and is tried again after an interval.
    fn note_failure(&mut self, reason: &str) {
        let now = self.clock.now();
        self.reopen_at = now + REOPEN_INTERVAL;
        let was = self.health.send_replace(Health::unavailable(reason));
        let steady = match self.failed {
            Some((at, steady)) if now - at < LONG_AGO => match was {
                Health::Serving => (2 * steady).clamp(STEADY[0], STEADY[1]),
                _ => steady,
            },
            _ => Duration::ZERO,
        };
        self.failed = Some((now, steady));
    }

    /// When a store whose file is open can be reported as serving, unless it is.
    fn serves_at(&self) -> Option<Duration> {
        let (failed, steady) = self.failed.filter(|_| *self.health.borrow() != Health::Serving)?;
        Some(failed + steady)
    }

    fn try_batch(&mut self, steps: Vec<Step>) -> Vec<Answer> {
        let reopened = self.reopen().map_err(|error| not_sent(public_reason(&error)));
        let answers = match reopened {
            Ok(()) if self.file.is_some() => {
                let answers = steps.len();
                vec![self.write_batch(steps); answers]
            }
            unusable => {
                let error = unusable.err().unwrap_or_else(|| self.closed());
                self.read_batch(steps, &error)
            }
        };
        if self.file.is_some() && self.serves_at().is_some_and(|at| at <= self.clock.now()) {
            self.health.send_replace(Health::Serving);
        }
        self.set_timer();
        answers
    }

    /// Runs the steps that only read, if the file can be read; the others fail.
    fn read_batch(&mut self, steps: Vec<Step>, error: &BackendError) -> Vec<Answer> {
        self.machine.read_clock();
        let answer = |step: Step| match self.read_only {
            Some(_) if step.is_read => {
                (step.run)(&mut self.machine);
                Ok(())
            }
            _ => Err(error.clone()),
        };
        steps.into_iter().map(answer).collect()
    }

    fn write_batch(&mut self, steps: Vec<Step>) -> Answer {
        let Some(file) = self.file.as_ref() else {
            return Err(self.closed());
        };
        self.machine.begin();
        for step in steps {
            (step.run)(&mut self.machine);
        }
        let writes = self.machine.take_writes();
        let committed = if writes.is_empty() {
            file.check_path()
        } else {
            self.grown = true;
            self.busy_at = self.clock.now();
            file.commit(writes, |id| self.machine.name(id))
        };
        match committed {
            Ok(()) => self.machine.publish(),
            Err(error) => return Err(self.fail(&error)),
        }
        self.compact();
        Ok(())
    }

    /// Sets the timer to the next expiry, the next attempt to reopen a broken file, its report as serving, or a compaction.
    fn set_timer(&self) {
        let compaction = self.grown.then(|| self.busy_at + IDLE_BEFORE_COMPACTION);
        let due = [self.machine.due(), compaction, self.serves_at()];
        self.timer.set(match self.file {
            None => Some(self.reopen_at),
            Some(_) => due.into_iter().flatten().min(),
        });
    }

    /// Handles a batch that may not have become durable: none of its steps succeeded, and the state
    /// is rebuilt from the file, at once or when the file can be read again.
    fn fail(&mut self, error: &FileError) -> BackendError {
        let (now, text) = (self.clock.now(), error.to_string());
        let is_logged = |(logged, at): &(String, Duration)| *logged == text && now - *at < LOG_AGAIN;
        if !self.logged.as_ref().is_some_and(is_logged) {
            tracing::error!(path = %self.path.display(), %error, "the store cannot write its file");
            self.logged = Some((text, now));
        }
        self.file = None;
        let _ = self.machine.take_writes();
        let reason = public_reason(error);
        self.note_failure(&reason);
        if let Ok(Some((file, loaded))) = self.open() {
            self.machine.rebuild(loaded, false);
            self.read_only = Some(file);
        }
        unavailable(reason)
    }

    /// The file at the path with its content; absent if it is not this store's. A file that vanished is not created
    /// again, and another file at its path is not used: leases in the lost file may still be held. A restart settles
    /// that.
    fn open(&self) -> Result<Option<(File, Loaded)>, FileError> {
        if !super::file::is_at(&self.path, self.inode) {
            return Ok(None);
        }
        let opened = File::open(&self.path)?;
        Ok(Some(opened).filter(|(file, _)| file.inode() == self.inode))
    }

    fn closed(&self) -> BackendError {
        match &*self.health.borrow() {
            Health::Unavailable { reason } => not_sent(reason),
            _ => not_sent("the file is closed"),
        }
    }

    fn reopen(&mut self) -> Result<(), FileError> {
        if self.file.is_some() || self.clock.now() < self.reopen_at {
            return Ok(());
        }
        self.reopen_at = self.clock.now() + REOPEN_INTERVAL;
        // Only one can be open.
        let was_read = self.read_only.take().is_some();
        let Some((file, loaded)) = self.open()? else {
            return Ok(());
        };
        let writable = file.check_writable();
        // Once is enough while it cannot be written: the state does not change meanwhile.
        if writable.is_ok() || !was_read {
            self.machine.rebuild(loaded, false);
        }
        if let Err(error) = writable {
            self.read_only = Some(file);
            return Err(error);
        }
        self.file = Some(file);
        tracing::debug!(path = %self.path.display(), "the store writes its file again");
        Ok(())
    }

    /// Compacts the file while the store is idle.
    fn compact(&mut self) {
        if !self.grown || self.clock.now() < self.busy_at + IDLE_BEFORE_COMPACTION {
            return;
        }
        self.grown = false;
        if let Some(Err(error)) = self.file.as_mut().map(File::compact_if_sparse) {
            let _ = self.fail(&error);
        }
    }
}

/// The message of a file error for callers. The path is only logged.
fn public_reason(error: &FileError) -> String {
    match error {
        FileError::Io { source, .. } => format!("the file of the store: {source}"),
        FileError::Replaced { .. } => "the file of the store was removed or replaced".into(),
        FileError::InUse { .. } => "the file of the store is in use by another process".into(),
        FileError::Format { .. } | FileError::Foreign { .. } | FileError::Damaged { .. } => {
            "the file of the store cannot be read".into()
        }
        FileError::Database(error) => format!("the database failed: {error}"),
        FileError::Record { source, .. } => format!("a record cannot be read: {source}"),
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::backend::local_clock::TokioClock;
    use crate::backend::{AcquireOutcome, InspectLimit, NewClaim};
    use crate::name::{LockName, Namespace};
    use crate::queue::IncomingClaim;

    fn lock(machine: &mut StateMachine) -> (usize, LockName) {
        let id = machine.namespace_id(&Namespace::new("n").unwrap());
        (id, LockName::new("a").unwrap())
    }

    fn acquire(machine: &mut StateMachine) {
        let (id, name) = lock(machine);
        let (state, ctx) = machine.at(id);
        let incoming = IncomingClaim {
            claim: &NewClaim::numbered(1),
            waited: Duration::ZERO,
        };
        let outcome = state.run(ctx, &name, 1000, |lock, ctx| lock.acquire(ctx, &incoming));
        assert!(matches!(outcome, AcquireOutcome::Held(_)), "{outcome:?}");
    }

    /// How many hold the lock, or the error of the read.
    fn holders(writer: &mut Writer) -> Result<usize, BackendError> {
        let seen = Arc::new(Mutex::new(0));
        let out = Arc::clone(&seen);
        let read = Step {
            run: Box::new(move |machine| {
                let (id, name) = lock(machine);
                let (state, ctx) = machine.at(id);
                *out.lock() = state.inspect(ctx, &name, InspectLimit::ALL_HOLDERS).holder_count;
            }),
            is_read: true,
        };
        writer.run_batch(vec![read]).remove(0)?;
        Ok(*seen.lock())
    }

    /// A writer of a file at this path.
    fn writer_of(path: &Path) -> Writer {
        let clock = Arc::new(TokioClock::default());
        let (file, loaded) = File::open(path).unwrap();
        let mut machine = StateMachine::new(clock.clone(), true);
        machine.rebuild(loaded, false);
        let (health, _) = watch::channel(Health::Serving);
        Writer::new(path, (file, machine), health, (clock, Arc::default()))
    }

    fn write() -> Step {
        Step {
            run: Box::new(acquire),
            is_read: false,
        }
    }

    // G188
    #[tokio::test(start_paused = true)]
    async fn what_a_batch_that_panicked_has_changed_is_undone() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer_of(&folder.path().join("locks"));
        let panics = Step {
            run: Box::new(|machine| {
                acquire(machine);
                panic!("on purpose")
            }),
            is_read: false,
        };
        let answers = writer.run_batch(vec![panics, write()]);
        let unknown = |answer: &Answer| matches!(answer, Err(BackendError::Unavailable { .. }));
        assert!(answers.len() == 2 && answers.iter().all(unknown), "{answers:?}");
        assert_ne!(*writer.health.borrow(), Health::Serving);
        assert!(
            holders(&mut writer).is_err(),
            "nothing is read of a state that may be half changed"
        );
        tokio::time::advance(REOPEN_INTERVAL).await;
        assert_eq!(holders(&mut writer), Ok(0));
        assert_eq!(*writer.health.borrow(), Health::Serving);
    }

    // G203
    #[tokio::test(start_paused = true)]
    async fn a_store_that_fails_and_works_in_turns_is_seldom_reported_as_serving() {
        let folder = tempfile::tempdir().unwrap();
        let [path, away] = ["locks", "away"].map(|name| folder.path().join(name));
        let mut writer = writer_of(&path);
        let serves = |writer: &Writer| *writer.health.borrow() == Health::Serving;
        for pause in [REOPEN_INTERVAL, 6 * REOPEN_INTERVAL] {
            let mut changes = 0;
            for turn in 0..56 {
                let before = serves(&writer);
                // A file that was moved away fails as a full disk does.
                let moved = if turn % 2 == 0 { (&path, &away) } else { (&away, &path) };
                std::fs::rename(moved.0, moved.1).unwrap();
                let _ = writer.run_batch(vec![write()]);
                changes += u32::from(serves(&writer) != before);
                tokio::time::advance(pause).await;
            }
            assert!((2..=10).contains(&changes), "{changes}");
        }
        assert_eq!(
            writer.run_batch(vec![write()]).len(),
            1,
            "it works before it is reported"
        );
        tokio::time::advance(STEADY[1]).await;
        writer.run_batch(vec![write()]);
        assert!(serves(&writer));
        // Long afterwards, one failure counts as the first.
        tokio::time::advance(2 * LONG_AGO).await;
        std::fs::rename(&path, &away).unwrap();
        writer.run_batch(vec![write()]);
        assert!(!serves(&writer));
        std::fs::rename(&away, &path).unwrap();
        tokio::time::advance(REOPEN_INTERVAL).await;
        writer.run_batch(vec![write()]);
        assert!(serves(&writer));
    }

    // G84
    #[tokio::test(start_paused = true)]
    async fn what_is_read_while_the_file_cannot_be_written_does_not_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer_of(&folder.path().join("locks"));
        assert_eq!(writer.run_batch(vec![write()]), [Ok(())]);

        writer.read_only = writer.file.take();
        writer.reopen_at = Duration::MAX;
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(writer.run_batch(vec![write()])[0].is_err());
        assert_eq!(holders(&mut writer), Ok(1), "it lives on once the file can be written");

        let file = writer.read_only.take();
        assert!(holders(&mut writer).is_err(), "another process may write the file");
        writer.file = file;
        assert_eq!(holders(&mut writer), Ok(0));
    }
}
