//! The progress of a command that waits, or that reads a long list.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use fencepost::clock;
use fencepost_client::{Client, time};
use tokio::time::{MissedTickBehavior, interval};

use super::lock_request::LockRequest;
use super::output::{is_dumb, print_line, seconds};
use super::screen;
use super::unprintable::plain;
use super::width::cut;

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
        // A line that is longer than the terminal is wide could not be erased.
        let room = screen::size_of(&err).map_or(usize::MAX, |size| size.columns);
        let text = cut(text, room);
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

/// Where progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// In one line of the terminal at standard error, which each second replaces; nowhere without one.
    OnTerminal,
    /// Without such a terminal, a line of standard error for each change.
    Everywhere,
}

/// How far some work is.
#[derive(Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is told again when it changes.
    text: String,
    /// What changes all the time, such as the time that a lease still has.
    detail: String,
}

impl Progress {
    /// Progress without a detail.
    pub fn of(text: String) -> Self {
        let detail = String::new();
        Self { text, detail }
    }
}

/// Awaits some work. While it runs, shows its progress, on a terminal with the elapsed seconds.
pub async fn while_running<T>(work: impl Future<Output = T>, shown: Shown, progress: impl AsyncFn() -> Progress) -> T {
    let spinner = Spinner::on_terminal();
    if spinner.is_none() && shown == Shown::OnTerminal {
        return work.await;
    }
    tokio::pin!(work);
    // No progress line for what is done at once.
    if let Ok(done) = tokio::time::timeout(TICK / 4, &mut work).await {
        return done;
    }
    let begin = clock::since_boot();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = String::new();
    loop {
        let next = async {
            ticks.tick().await;
            progress().await
        };
        let now = tokio::select! {
            biased;
            done = &mut work => return done,
            now = next => now,
        };
        let elapsed = (clock::since_boot() - begin).as_secs();
        match &spinner {
            Some(spinner) => spinner.show(&format!("{}{}, {elapsed} s", now.text, now.detail)),
            None if now.text == told => {}
            None => {
                print_line(&format!("{}{}", now.text, now.detail));
                told = now.text;
            }
        }
    }
}

/// Awaits an Acquire of the request's lock and `others` more. While it waits, shows the position in the queue and the
/// holder.
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
    let progress = async || {
        let lock = plain(&request.lock.to_string());
        match others {
            0 => waiting(client, request, &lock).await,
            // Which of them it waits for only the server knows.
            others => Progress::of(format!("waiting for {lock} and {others} more")),
        }
    };
    let shown = match request.progress {
        true => Shown::Everywhere,
        false => Shown::OnTerminal,
    };
    while_running(acquire, shown, progress).await
}

/// Describes the queue. Several waiters with one owner are indistinguishable.
async fn waiting(client: &Client, request: &LockRequest, lock: &str) -> Progress {
    let Ok(queue) = client.get(&request.lock.namespace, &request.lock.name).await else {
        return Progress::of(format!("waiting for {lock}: no server answers"));
    };
    let owner = request.owner();
    let mut own = queue
        .waiters
        .iter()
        .enumerate()
        .filter(|(_, waiter)| waiter.owner == owner);
    let place = match (own.next(), own.next()) {
        (Some((at, _)), None) => format!("place {} of {}", at + 1, queue.waiter_count),
        _ => format!("{} wait", queue.waiter_count),
    };
    let Some(first) = queue.holders.first() else {
        return Progress::of(format!("waiting for {lock}: {place}"));
    };
    let more = match queue.holder_count {
        0..=1 => String::new(),
        all => format!(" and {} more", all - 1),
    };
    let holder = plain(&first.owner);
    Progress {
        text: format!("waiting for {lock}: {place}, held by {holder}{more}"),
        detail: format!(" for {} unless renewed", seconds(time(first.remaining_ttl))),
    }
}
