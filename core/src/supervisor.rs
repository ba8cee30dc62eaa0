//! Runs background tasks, and starts each again that has panicked: tokio ends such a task alone, and silently.
//!
//! A task is a state and a function that runs on it. The state outlives a panic, so the function must begin with what may
//! be half done, as a connection that it opens anew. A panic is logged at level ERROR and counted by task.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;

/// The longest pause before a task starts again; after so long without a panic, the next pause is the first again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The pauses before a task starts again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), LONGEST_PAUSE);

/// How often the tasks of each name were started again.
static RESTARTS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// How often the tasks of each name were started again in this process.
pub fn restarts() -> BTreeMap<&'static str, u64> {
    RESTARTS.lock().clone()
}

/// Runs `run` on `state` in a task, again after each panic, until it returns. Must be called within a tokio runtime.
pub fn supervise<S, F>(task: &'static str, state: S, run: F) -> JoinHandle<()>
where
    S: Send + 'static,
    F: for<'a> FnMut(&'a mut S) -> BoxFuture<'a, ()> + Send + 'static,
{
    supervise_and(task, state, |_, _| (), run)
}

/// [`supervise`], which calls `on_panic` with the message of each panic, for a task on which the health depends.
pub fn supervise_and<S, F, P>(task: &'static str, state: S, on_panic: P, run: F) -> JoinHandle<()>
where
    S: Send + 'static,
    F: for<'a> FnMut(&'a mut S) -> BoxFuture<'a, ()> + Send + 'static,
    P: Fn(&S, &str) + Send + 'static,
{
    tokio::spawn(supervised(task, state, on_panic, run))
}

/// [`supervise`] in the task of the caller.
///
/// # Cancellation safety
/// As that of what `run` returns.
pub async fn supervised<S, F, P>(task: &'static str, mut state: S, on_panic: P, mut run: F)
where
    S: Send,
    F: for<'a> FnMut(&'a mut S) -> BoxFuture<'a, ()> + Send,
    P: Fn(&S, &str) + Send,
{
    let mut pauses = PAUSES;
    loop {
        let began = Instant::now();
        let running = async { failpoint::or_panic(task, run(&mut state)).await };
        let Err(panic) = AssertUnwindSafe(running).catch_unwind().await else {
            return;
        };
        if began.elapsed() > LONGEST_PAUSE {
            pauses.reset();
        }
        let pause = pauses.pause();
        on_panic(&state, &restarted(task, &*panic, pause));
        sleep(pause).await;
    }
}

/// Logs and counts the panic of a task that is started again after this pause. Returns the reason for callers.
pub fn restarted(task: &'static str, panic: &(dyn Any + Send), pause: Duration) -> String {
    let message = message_of(panic);
    tracing::error!(
        task,
        panic = message,
        ?pause,
        "a background task panicked, and is started again"
    );
    *RESTARTS.lock().entry(task).or_default() += 1;
    format!("a task of this server panicked: {message}")
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}

/// Panics on purpose, in debug builds.
#[cfg(debug_assertions)]
pub mod failpoint {
    use std::collections::{BTreeMap, HashMap};
    use std::sync::LazyLock;

    use parking_lot::Mutex;
    use tokio::runtime::{Handle, Id};
    use tokio::sync::broadcast;

    static PANICS: LazyLock<broadcast::Sender<Id>> = LazyLock::new(|| broadcast::channel(64).0);

    /// How often the tasks of each name have panicked, by runtime.
    static PANICKED: LazyLock<Mutex<HashMap<Id, BTreeMap<&str, u32>>>> = LazyLock::new(Mutex::default);

    /// How often the supervised tasks of each name have panicked in the current runtime, because of [`panic_all`].
    pub fn panicked() -> BTreeMap<&'static str, u32> {
        let panicked = PANICKED.lock();
        panicked.get(&Handle::current().id()).cloned().unwrap_or_default()
    }

    /// Makes each supervised task of the current runtime panic once.
    pub fn panic_all() {
        let _ = PANICS.send(Handle::current().id());
    }

    pub(super) async fn or_panic(task: &'static str, run: impl Future<Output = ()>) {
        let runtime = Handle::current().id();
        let mut panics = PANICS.subscribe();
        let panics = async {
            loop {
                if panics.recv().await.is_ok_and(|panics| panics == runtime) {
                    *PANICKED.lock().entry(runtime).or_default().entry(task).or_default() += 1;
                    panic!("a failpoint of a test");
                }
            }
        };
        tokio::select! {
            () = panics => {}
            () = run => {}
        }
    }
}

#[cfg(not(debug_assertions))]
mod failpoint {
    pub(super) async fn or_panic(_: &'static str, run: impl Future<Output = ()>) {
        run.await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    // G188
    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_started_again_with_its_state_and_counted() {
        let panics = Arc::<AtomicU32>::default();
        let counted = Arc::clone(&panics);
        let on_panic = move |_: &u32, message: &str| {
            assert!(message.ends_with("on purpose"), "{message}");
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let task = supervise_and("test of restarts", 0_u32, on_panic, |runs| {
            async move {
                *runs += 1;
                assert!(*runs > 3, "on purpose");
            }
            .boxed()
        });
        let began = Instant::now();
        task.await.expect("it returns at last");
        assert_eq!(panics.load(Ordering::Relaxed), 3);
        assert_eq!(began.elapsed(), Duration::from_millis(50 + 100 + 200));
        assert_eq!(restarts().get("test of restarts"), Some(&3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_before_the_first_await_is_caught() {
        let task = supervise("test of its start", 0_u32, |runs| {
            *runs += 1;
            assert!(*runs > 1, "on purpose");
            async {}.boxed()
        });
        task.await.expect("it is started again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_has_run_for_long_starts_again_after_the_first_pause() {
        const RUN: Duration = Duration::from_secs(6);
        let task = supervise("test of long runs", 0_u32, |runs| {
            async move {
                *runs += 1;
                sleep(RUN).await;
                assert!(*runs > 3, "on purpose");
            }
            .boxed()
        });
        let began = Instant::now();
        task.await.expect("it returns at last");
        assert_eq!(began.elapsed(), 4 * RUN + 3 * Duration::from_millis(50));
    }
}
