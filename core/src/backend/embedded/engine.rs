//! Runs steps on the state machine: at once in memory, or in batches on a dedicated thread that
//! makes each batch durable before its steps return.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::expiry_timer::ExpiryTimer;
use super::file::{File, FileError};
use super::state_machine::StateMachine;
use super::writer::{Answer, Step, Writer};
use crate::backend::failure::{broken, not_sent, unavailable};
use crate::backend::local_clock::Clock;
use crate::backend::{BackendError, Health};
use crate::batch::{self, BatchBounds, BatchSender};
use crate::supervisor::supervise;

const BOUNDS: BatchBounds = BatchBounds {
    batch: 1024,
    in_flight: 1,
    queue: 16 * 1024,
};

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
        machine: Mutex<Box<StateMachine>>,
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
            machine: Mutex::new(Box::new(StateMachine::new(Arc::clone(&clock), false))),
            _health: sender,
        };
        Self::start(kind, clock, Arc::default(), health)
    }

    /// A store in a file.
    pub fn durable(path: &Path, clock: Arc<dyn Clock>) -> Result<Arc<Self>, FileError> {
        let (file, loaded) = File::open(path)?;
        let mut machine = StateMachine::new(Arc::clone(&clock), true);
        machine.rebuild(loaded, true);
        let (health, health_receiver) = watch::channel(Health::Serving);
        let timer = Arc::<ExpiryTimer>::default();
        timer.set(machine.due());
        let mut writer = Writer::new(path, (file, machine), health, (Arc::clone(&clock), Arc::clone(&timer)));
        let (sender, mut receiver) = batch::batch(BOUNDS);
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
        supervise("embedded: expiry", weak, move |weak| {
            let (timer, clock) = (Arc::clone(&timer), Arc::clone(&clock));
            async move {
                loop {
                    // An empty step: its batch ends what has expired. A batch that panicked is due again.
                    let Some(engine) = weak.upgrade() else { return };
                    let _ = engine.run(|_| ()).await;
                    drop(engine);
                    timer.wait(&*clock).await;
                }
            }
            .boxed()
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
        self.run_step(step, false).await
    }

    /// Runs a step that changes nothing, also while the file can be read and not written. What is read then is what the
    /// file contains: a lease that would have ended is still held, because it lives on once the file can be written.
    ///
    /// # Errors
    /// As [`Self::run`], while the file cannot be read.
    pub async fn read<R: Send + 'static>(
        &self,
        step: impl FnOnce(&mut StateMachine) -> R + Send + 'static,
    ) -> Result<R, BackendError> {
        self.run_step(step, true).await
    }

    async fn run_step<R: Send + 'static>(
        &self,
        step: impl FnOnce(&mut StateMachine) -> R + Send + 'static,
        is_read: bool,
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
                run_durably(&sender, step, is_read).await
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
        // If it fails, each lease lives for its whole TTL again.
        let _ = self.run(StateMachine::save_ends).await;
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
    is_read: bool,
) -> Result<R, BackendError> {
    let slot = Arc::new(Mutex::new(None));
    let filled = Arc::clone(&slot);
    let run = Box::new(move |machine: &mut StateMachine| *filled.lock() = Some(step(machine)));
    sender
        .ask(Step { run, is_read })
        .await
        .map_err(|_| unavailable("the store has stopped"))??;
    let answer = slot.lock().take();
    answer.ok_or_else(|| broken("a step gave no answer"))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::backend::local_clock::BootClock;
    use crate::name::Namespace;
    use crate::supervisor::restarts;

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

    // G188
    #[tokio::test]
    async fn a_step_that_panics_is_unavailable_and_the_store_goes_on_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::durable(&folder.path().join("locks"), Arc::new(BootClock)).unwrap();
        let mut health = engine.health();
        let mark = |machine: &mut StateMachine| machine.namespace_id(&Namespace::new("kept").unwrap());
        let before = engine.run(mark).await.unwrap();
        let panicked = engine.run(|_| panic!("on purpose")).await;
        let Err(BackendError::Unavailable { reason }) = panicked else {
            panic!("{panicked:?}")
        };
        assert_eq!(reason, "a task of this server panicked: on purpose");
        assert!(restarts().contains_key("embedded: writer"));
        let serves = health.wait_for(|health| *health == Health::Serving);
        let served = tokio::time::timeout(Duration::from_secs(30), serves).await;
        drop(served.expect("it is opened again").unwrap());
        assert_eq!(engine.run(mark).await, Ok(before));
        engine.close().await;
    }
}
