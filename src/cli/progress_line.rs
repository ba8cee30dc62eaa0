//! The progress line of a command that waits, or that reads a long list.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use fencepost::clock;
use fencepost_client::Client;
use tokio::time::{MissedTickBehavior, interval};

use super::lock_request::LockRequest;
use super::output::is_dumb;
use super::unprintable::plain;

/// The interval between updates.
const TICK: Duration = Duration::from_secs(1);
/// Moves the cursor to the start of the line and erases the line.
const CLEAR: &str = "\r\x1b[K";

/// A progress line, erased when dropped.
#[derive(Debug)]
pub struct Spinner {
    is_shown: Cell<bool>,
}

impl Spinner {
    /// A progress line on standard error, if that is a terminal.
    pub fn on_terminal() -> Option<Self> {
        (io::stderr().is_terminal() && !is_dumb()).then(|| Self {
            is_shown: Cell::new(false),
        })
    }

    /// Replaces the text of the line.
    pub fn show(&self, text: &str) {
        self.is_shown.set(true);
        let mut err = io::stderr();
        // An error means that the terminal is closed.
        let _ = write!(err, "{CLEAR}{text}").and_then(|()| err.flush());
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if self.is_shown.get() {
            self.show("");
        }
    }
}

/// Awaits some work. While it runs, shows `text` and the elapsed seconds on standard error, if that is a terminal.
pub async fn while_running<T>(work: impl Future<Output = T>, text: impl AsyncFn() -> String) -> T {
    let Some(spinner) = Spinner::on_terminal() else {
        return work.await;
    };
    tokio::pin!(work);
    // No progress line for what is done at once.
    if let Ok(done) = tokio::time::timeout(TICK / 4, &mut work).await {
        return done;
    }
    let begin = clock::since_boot();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let next = async {
            ticks.tick().await;
            text().await
        };
        tokio::select! {
            biased;
            done = &mut work => return done,
            text = next => spinner.show(&format!("{text}, {} s", (clock::since_boot() - begin).as_secs())),
        }
    }
}

/// Awaits an Acquire of the request's lock and `others` more. While it waits, shows the position in the queue and the
/// elapsed time on standard error, if that is a terminal.
pub async fn with_progress<T>(
    client: &Client,
    request: &LockRequest,
    others: usize,
    acquire: impl IntoFuture<Output = T>,
) -> T {
    let acquire = acquire.into_future();
    if request.wait.is_none() {
        return acquire.await;
    }
    let text = async || {
        let lock = plain(&request.lock.to_string());
        match others {
            0 => format!("waiting for {lock}: {}", queue_text(client, request).await),
            // Which of them it waits for only the server knows.
            others => format!("waiting for {lock} and {others} more"),
        }
    };
    while_running(acquire, text).await
}

/// Describes the queue. Several waiters with one owner are indistinguishable.
async fn queue_text(client: &Client, request: &LockRequest) -> String {
    let Ok(queue) = client.get(&request.lock.namespace, &request.lock.name).await else {
        return "no server answers".to_owned();
    };
    let owner = request.owner();
    let mut own = queue
        .waiters
        .iter()
        .enumerate()
        .filter(|(_, waiter)| waiter.owner == owner);
    match (own.next(), own.next()) {
        (Some((at, _)), None) => format!("place {} of {}", at + 1, queue.waiter_count),
        _ => format!("{} wait", queue.waiter_count),
    }
}
