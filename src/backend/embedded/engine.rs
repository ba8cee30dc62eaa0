//! Runs steps on the state machine: at once in memory, or in batches on a dedicated thread that
//! makes each batch durable before its steps return.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use super::clock::Clock;
use super::file::{File, FileError};
use super::state_machine::StateMachine;
use crate::backend::failure::{broken, not_sent, unavailable};
use crate::backend::{BackendError, Health};
use crate::batch::{self, BatchBounds, BatchSender};

/// How long the engine waits before it reopens a broken file.
const REOPEN_INTERVAL: Duration = Duration::from_millis(500);
/// How long no step must have written before the file may be compacted.
const IDLE_BEFORE_COMPACTION: Duration = Duration::from_secs(2);

const BOUNDS: BatchBounds = BatchBounds {
    batch: 1024,
    in_flight: 1,
    queue: 16 * 1024,
};

type Step = Box<dyn FnOnce(&mut StateMachine) + Send>;
type Answer = Result<(), BackendError>;

/// See the module.
#[derive(Debug)]
pub struct Engine {
    kind: EngineKind,
    clock: Arc<dyn Clock>,
    timer: Arc<ExpiryTimer>,
    health: watch::Receiver<Health>,
}

#[derive(Debug)]
enum EngineKind {
    Memory {
        machine: Mutex<StateMachine>,
        /// Keeps `health` open.
        _health: watch::Sender<Health>,
    },
    Durable {
        sender: RwLock<Option<BatchSender<Step, Answer>>>,
        thread: Mutex<Option<JoinHandle<()>>>,
    },
}

impl Engine {
    /// A store without a file.
    pub fn memory(clock: Arc<dyn Clock>) -> Arc<Self> {
        let (sender, health) = watch::channel(Health::Serving);
        let kind = EngineKind::Memory {
            machine: Mutex::new(StateMachine::new(Arc::clone(&clock), false)),
            _health: sender,
        };
        Self::start(kind, clock, Arc::default(), health)
    }

    /// A store in a file.
    pub fn durable(path: &Path, clock: Arc<dyn Clock>) -> Result<Arc<Self>, FileError> {
        let (file, loaded) = File::open(path)?;
        let mut machine = StateMachine::new(Arc::clone(&clock), true);
        machine.rebuild(loaded);
        let (health, health_receiver) = watch::channel(Health::Serving);
        let timer = Arc::<ExpiryTimer>::default();
        timer.set(machine.due());
        let mut writer = Writer {
            path: path.into(),
            inode: file.inode(),
            machine,
            file: Some(file),
            health,
            clock: Arc::clone(&clock),
            timer: Arc::clone(&timer),
            reopen_at: Duration::ZERO,
            busy_at: Duration::ZERO,
            grown: false,
        };
        let (sender, receiver) = batch::batch(BOUNDS);
        let thread = std::thread::Builder::new()
            .name("fencepost-store".into())
            .spawn(move || futures::executor::block_on(receiver.run(|steps| writer.run_batch(steps))))
            .map_err(|source| FileError::Io {
                path: path.into(),
                source,
            })?;
        let kind = EngineKind::Durable {
            sender: RwLock::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self::start(kind, clock, timer, health_receiver))
    }

    fn start(
        kind: EngineKind,
        clock: Arc<dyn Clock>,
        timer: Arc<ExpiryTimer>,
        health: watch::Receiver<Health>,
    ) -> Arc<Self> {
        let engine = Arc::new(Self {
            kind,
            clock,
            timer,
            health,
        });
        // The timer task ends with the engine.
        let (weak, timer, clock) = (
            Arc::downgrade(&engine),
            Arc::clone(&engine.timer),
            Arc::clone(&engine.clock),
        );
        tokio::spawn(async move {
            loop {
                timer.wait(&*clock).await;
                let Some(engine) = weak.upgrade() else { return };
                // An empty step: its batch ends what has expired.
                let _ = engine.run(|_| ()).await;
            }
        });
        engine
    }

    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Runs a step and returns once it is durable.
    ///
    /// # Errors
    /// [`BackendError::NotSent`] while the file cannot be used; [`BackendError::Unavailable`] when
    /// it could not be written: the step has not taken effect, or is not known to have.
    pub async fn run<R: Send + 'static>(
        &self,
        step: impl FnOnce(&mut StateMachine) -> R + Send + 'static,
    ) -> Result<R, BackendError> {
        match &self.kind {
            EngineKind::Memory { machine, .. } => {
                // It is held for microseconds. A step that yielded here would be overtaken by those polled after it.
                let mut machine = machine.lock();
                Ok(self.run_in_memory(&mut machine, step))
            }
            EngineKind::Durable { sender, .. } => {
                let sender = sender.read().clone();
                let sender = sender.ok_or_else(|| not_sent("the store is closed"))?;
                run_durably(&sender, step).await
            }
        }
    }

    fn run_in_memory<R>(&self, machine: &mut StateMachine, step: impl FnOnce(&mut StateMachine) -> R) -> R {
        machine.begin();
        let answer = step(machine);
        machine.publish();
        self.timer.set(machine.due());
        answer
    }

    /// Whether the engine is closed for good.
    pub fn is_closed(&self) -> bool {
        match &self.kind {
            EngineKind::Memory { .. } => false,
            EngineKind::Durable { sender, .. } => {
                let sender = sender.read();
                sender.is_none()
            }
        }
    }

    /// Finishes the batches in flight and closes the file.
    pub async fn close(&self) {
        self.timer.changed.notify_one();
        let EngineKind::Durable { sender, thread } = &self.kind else {
            return;
        };
        drop(sender.write().take());
        let thread = thread.lock().take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The timer task wakes, cannot upgrade its reference, and ends.
        self.timer.set(Some(Duration::ZERO));
    }
}

async fn run_durably<R: Send + 'static>(
    sender: &BatchSender<Step, Answer>,
    step: impl FnOnce(&mut StateMachine) -> R + Send + 'static,
) -> Result<R, BackendError> {
    let slot = Arc::new(Mutex::new(None));
    let filled = Arc::clone(&slot);
    let step: Step = Box::new(move |machine| *filled.lock() = Some(step(machine)));
    sender
        .ask(step)
        .await
        .map_err(|_| unavailable("the store has stopped"))??;
    let answer = slot.lock().take();
    answer.ok_or_else(|| broken("a step gave no answer"))
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

/// Wakes at the time of the next due batch; is notified only when that time moves forward.
#[derive(Debug, Default)]
struct ExpiryTimer {
    due: Mutex<Option<Duration>>,
    changed: Notify,
}

impl ExpiryTimer {
    fn set(&self, due: Option<Duration>) {
        let Some(due) = due else { return };
        let mut set = self.due.lock();
        if set.is_none_or(|set| due < set) {
            *set = Some(due);
            self.changed.notify_one();
        }
    }

    /// Returns when a batch is due.
    async fn wait(&self, clock: &dyn Clock) {
        loop {
            let due = *self.due.lock();
            let sleep = async {
                match due {
                    Some(due) => clock.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep => {
                    *self.due.lock() = None;
                    return;
                }
            }
        }
    }
}

/// The only writer of a file, on its own thread.
struct Writer {
    path: PathBuf,
    /// The file's identity: another file that appears at its path is not this store's.
    inode: (u64, u64),
    machine: StateMachine,
    /// Absent while it cannot be used.
    file: Option<File>,
    health: watch::Sender<Health>,
    clock: Arc<dyn Clock>,
    timer: Arc<ExpiryTimer>,
    reopen_at: Duration,
    /// When the last step wrote something.
    busy_at: Duration,
    /// Whether something was written since the last check for compaction.
    grown: bool,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Also when a bug ends the thread: the store must not be reported as serving.
        self.health.send_replace(Health::unavailable("the store has stopped"));
    }
}

impl Writer {
    /// Runs the steps, makes their changes durable, then replies: no caller observes a change that
    /// a crash could undo.
    fn run_batch(&mut self, steps: Vec<Step>) -> Vec<Answer> {
        let answers = steps.len();
        let answer = self.try_batch(steps);
        self.set_timer();
        vec![answer; answers]
    }

    fn try_batch(&mut self, steps: Vec<Step>) -> Answer {
        self.reopen().map_err(|error| not_sent(public_reason(&error)))?;
        let Some(file) = self.file.as_ref() else {
            return Err(self.closed());
        };
        self.machine.begin();
        for step in steps {
            step(&mut self.machine);
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

    /// Sets the timer to the next expiry, the next attempt to reopen a broken file, or a
    /// compaction.
    fn set_timer(&self) {
        self.timer.set(match self.file {
            None => Some(self.reopen_at),
            Some(_) if self.grown => self
                .machine
                .due()
                .into_iter()
                .chain([self.busy_at + IDLE_BEFORE_COMPACTION])
                .min(),
            Some(_) => self.machine.due(),
        });
    }

    /// Handles a batch that may not have become durable: none of its steps succeeded, and the state
    /// is rebuilt from the file once the file can be read again.
    fn fail(&mut self, error: &FileError) -> BackendError {
        tracing::error!(path = %self.path.display(), %error, "the store cannot write its file");
        self.file = None;
        self.reopen_at = self.clock.now() + REOPEN_INTERVAL;
        let _ = self.machine.take_writes();
        let reason = public_reason(error);
        self.health.send_replace(Health::unavailable(&reason));
        unavailable(reason)
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
        // A file that vanished is not created again, and another file at its path is not used:
        // leases in the lost file may still be held. A restart settles that.
        if !super::file::is_at(&self.path, self.inode) {
            return Ok(());
        }
        let (file, loaded) = File::open(&self.path)?;
        if file.inode() != self.inode {
            return Ok(());
        }
        file.check_writable()?;
        self.machine.rebuild(loaded);
        self.file = Some(file);
        self.health.send_replace(Health::Serving);
        tracing::info!(path = %self.path.display(), "the store writes its file again");
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::backend::embedded::clock::BootClock;

    #[tokio::test]
    async fn a_step_in_memory_takes_effect_when_it_is_first_polled() {
        let engine = Engine::memory(Arc::new(BootClock));
        let EngineKind::Memory { machine, .. } = &engine.kind else {
            panic!("in memory")
        };
        std::thread::scope(|scope| {
            let (locked, is_locked) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let _machine = machine.lock();
                locked.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            });
            is_locked.recv().unwrap();
            let mut step = pin!(engine.run(|_| ()));
            let first = step.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(first.is_ready(), "a later step would overtake it");
        });
    }
}
