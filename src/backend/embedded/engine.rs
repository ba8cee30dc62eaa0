//! Runs steps on the machine: at once in memory, or turn by turn on a thread of its own that makes
//! each turn durable before it is answered.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::clock::Clock;
use super::file::{File, FileError};
use super::state_machine::StateMachine;
use crate::backend::{BackendError, Health};
use crate::batch::{self, BatchSender, BatchBounds};

/// How long a broken file is left alone before it is opened anew.
const REOPEN_EVERY: Duration = Duration::from_millis(500);
/// How long nothing must have come before a file may be compacted.
const QUIET: Duration = Duration::from_secs(2);

/// How often a task that finds the memory locked lets others run before it waits.
const PATIENCE: usize = 64;

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
    alarm: Arc<ExpiryTimer>,
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
        batch: RwLock<Option<BatchSender<Step, Answer>>>,
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
        let (health, seen) = watch::channel(Health::Serving);
        let alarm = Arc::<ExpiryTimer>::default();
        alarm.set(machine.due());
        let mut writer = Writer {
            path: path.into(),
            inode: file.inode(),
            machine,
            file: Some(file),
            health,
            clock: Arc::clone(&clock),
            alarm: Arc::clone(&alarm),
            reopen_at: Duration::ZERO,
            busy_at: Duration::ZERO,
            grown: false,
        };
        let (batch, turns) = batch::batch(BOUNDS);
        let thread = std::thread::Builder::new()
            .name("fencepost-store".into())
            .spawn(move || futures::executor::block_on(turns.run(|steps| writer.turn(steps))))
            .map_err(|source| FileError::Io {
                path: path.into(),
                source,
            })?;
        let kind = EngineKind::Durable {
            batch: RwLock::new(Some(batch)),
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self::start(kind, clock, alarm, seen))
    }

    fn start(kind: EngineKind, clock: Arc<dyn Clock>, alarm: Arc<ExpiryTimer>, health: watch::Receiver<Health>) -> Arc<Self> {
        let engine = Arc::new(Self {
            kind,
            clock,
            alarm,
            health,
        });
        // The timer lives as long as the engine does, and no longer.
        let (weak, alarm, clock) = (
            Arc::downgrade(&engine),
            Arc::clone(&engine.alarm),
            Arc::clone(&engine.clock),
        );
        tokio::spawn(async move {
            loop {
                alarm.ring(&*clock).await;
                let Some(engine) = weak.upgrade() else { return };
                // An empty step: the turn lets go of what has run out.
                let _ = engine.run(|_| ()).await;
            }
        });
        engine
    }

    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Runs a step and answers once it is durable.
    ///
    /// # Errors
    /// [`BackendError::NotSent`] while the file cannot be used; [`BackendError::Unavailable`] when it could not
    /// be written: the step has not taken effect, or is not known to have.
    pub async fn run<R: Send + 'static>(
        &self,
        step: impl FnOnce(&mut StateMachine) -> R + Send + 'static,
    ) -> Result<R, BackendError> {
        match &self.kind {
            EngineKind::Memory { machine, .. } => {
                let mut machine = without_blocking(machine).await;
                Ok(self.run_in_memory(&mut machine, step))
            }
            EngineKind::Durable { batch, .. } => {
                let batch = batch.read().unwrap_or_else(PoisonError::into_inner).clone();
                let batch = batch.ok_or_else(|| unsent("the store is closed"))?;
                run_durably(&batch, step).await
            }
        }
    }

    fn run_in_memory<R>(&self, machine: &mut StateMachine, step: impl FnOnce(&mut StateMachine) -> R) -> R {
        machine.begin();
        let answer = step(machine);
        machine.post();
        self.alarm.set(machine.due());
        answer
    }

    /// Whether it runs no more steps, for good.
    pub fn is_closed(&self) -> bool {
        match &self.kind {
            EngineKind::Memory { .. } => false,
            EngineKind::Durable { batch, .. } => {
                let batch = batch.read().unwrap_or_else(PoisonError::into_inner);
                batch.is_none()
            }
        }
    }

    /// Finishes the turns under way and lets go of the file.
    pub async fn close(&self) {
        self.alarm.ring.notify_one();
        let EngineKind::Durable { batch, thread } = &self.kind else {
            return;
        };
        drop(batch.write().unwrap_or_else(PoisonError::into_inner).take());
        let thread = lock(thread).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The timer wakes, finds nothing to upgrade, and ends.
        self.alarm.set(Some(Duration::ZERO));
    }
}

async fn run_durably<R: Send + 'static>(
    batch: &BatchSender<Step, Answer>,
    step: impl FnOnce(&mut StateMachine) -> R + Send + 'static,
) -> Result<R, BackendError> {
    let slot = Arc::new(Mutex::new(None));
    let filled = Arc::clone(&slot);
    let step: Step = Box::new(move |machine| *lock(&filled) = Some(step(machine)));
    batch.ask(step).await.map_err(|_| away("the store has stopped"))??;
    let answer = lock(&slot).take();
    answer.ok_or_else(|| BackendError::Broken {
        reason: "a step gave no answer".into(),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks what others hold for some microseconds. A task that finds it locked lets others run rather
/// than put its worker to sleep, which takes many times as long.
async fn without_blocking<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for _ in 0..PATIENCE {
        if let Ok(guard) = mutex.try_lock() {
            return guard;
        }
        tokio::task::yield_now().await;
    }
    lock(mutex)
}

fn away(reason: impl Into<String>) -> BackendError {
    BackendError::Unavailable { reason: reason.into() }
}

fn unsent(reason: impl Into<String>) -> BackendError {
    BackendError::NotSent { reason: reason.into() }
}

/// What callers are told of an error: where the file lies is for the log alone.
fn shown(error: &FileError) -> String {
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

/// Wakes the timer only when a turn is due earlier than it thinks.
#[derive(Debug, Default)]
struct ExpiryTimer {
    due: Mutex<Option<Duration>>,
    ring: Notify,
}

impl ExpiryTimer {
    fn set(&self, due: Option<Duration>) {
        let Some(due) = due else { return };
        let mut set = lock(&self.due);
        if set.is_none_or(|set| due < set) {
            *set = Some(due);
            self.ring.notify_one();
        }
    }

    /// Returns when a turn is due.
    async fn ring(&self, clock: &dyn Clock) {
        loop {
            let due = *lock(&self.due);
            let sleep = async {
                match due {
                    Some(due) => clock.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.ring.notified() => {}
                () = sleep => {
                    *lock(&self.due) = None;
                    return;
                }
            }
        }
    }
}

/// The one writer of a file, on a thread of its own.
struct Writer {
    path: PathBuf,
    /// Which file it is: another one that appears in its place is not ours.
    inode: (u64, u64),
    machine: StateMachine,
    /// Nothing while it cannot be used.
    file: Option<File>,
    health: watch::Sender<Health>,
    clock: Arc<dyn Clock>,
    alarm: Arc<ExpiryTimer>,
    reopen_at: Duration,
    /// When the last step came that was more than the timer's.
    busy_at: Duration,
    /// Something was written since the file was last looked at for compaction.
    grown: bool,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Also when a bug ends the thread: nobody may go on believing in the store.
        self.health.send_replace(Health::Unavailable {
            reason: "the store has stopped".into(),
        });
    }
}

impl Writer {
    /// Runs the steps, makes what they changed durable, then answers: nobody ever sees what a crash
    /// could take back.
    fn turn(&mut self, steps: Vec<Step>) -> Vec<Answer> {
        let answers = steps.len();
        let answer = self.try_turn(steps);
        self.arm();
        vec![answer; answers]
    }

    fn try_turn(&mut self, steps: Vec<Step>) -> Answer {
        self.reopen().map_err(|error| unsent(shown(&error)))?;
        let Some(file) = self.file.as_ref() else {
            return Err(self.broken());
        };
        self.machine.begin();
        for step in steps {
            step(&mut self.machine);
        }
        let writes = self.machine.take_writes();
        let committed = if writes.is_empty() {
            file.check_place()
        } else {
            self.grown = true;
            self.busy_at = self.clock.now();
            file.commit(writes, |id| self.machine.name(id))
        };
        match committed {
            Ok(()) => self.machine.post(),
            Err(error) => return Err(self.lose(&error)),
        }
        self.compact();
        Ok(())
    }

    /// Sets the timer: for the next expiry, the next look at a broken file, a compaction.
    fn arm(&self) {
        self.alarm.set(match self.file {
            None => Some(self.reopen_at),
            Some(_) if self.grown => self.machine.due().into_iter().chain([self.busy_at + QUIET]).min(),
            Some(_) => self.machine.due(),
        });
    }

    /// A turn may not have become durable: nothing of it was answered, and the file's word counts
    /// once it can be read again.
    fn lose(&mut self, error: &FileError) -> BackendError {
        tracing::error!(path = %self.path.display(), %error, "the store cannot write its file");
        self.file = None;
        self.reopen_at = self.clock.now() + REOPEN_EVERY;
        let _ = self.machine.take_writes();
        let reason = shown(error);
        self.health.send_replace(Health::Unavailable { reason: reason.clone() });
        away(reason)
    }

    fn broken(&self) -> BackendError {
        match &*self.health.borrow() {
            Health::Unavailable { reason } => unsent(reason.clone()),
            _ => unsent("the file is closed"),
        }
    }

    fn reopen(&mut self) -> Result<(), FileError> {
        if self.file.is_some() || self.clock.now() < self.reopen_at {
            return Ok(());
        }
        self.reopen_at = self.clock.now() + REOPEN_EVERY;
        // A file that vanished is not made anew, nor is another one taken for it: what it held may
        // still be held. A restart settles that.
        if !super::file::is_at(&self.path, self.inode) {
            return Ok(());
        }
        let (file, loaded) = File::open(&self.path)?;
        if file.inode() != self.inode {
            return Ok(());
        }
        file.prove_writable()?;
        self.machine.rebuild(loaded);
        self.file = Some(file);
        self.health.send_replace(Health::Serving);
        tracing::info!(path = %self.path.display(), "the store writes its file again");
        Ok(())
    }

    /// Gives space back while nobody is waiting for it.
    fn compact(&mut self) {
        if !self.grown || self.clock.now() < self.busy_at + QUIET {
            return;
        }
        self.grown = false;
        if let Some(Err(error)) = self.file.as_mut().map(File::compact_if_worth) {
            let _ = self.lose(&error);
        }
    }
}
