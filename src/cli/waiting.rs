//! A sign of waiting, for who looks at a terminal.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use fencepost::client::{Client, Error};
use fencepost::clock;
use tokio::time::{MissedTickBehavior, interval};

use super::lock_request::LockRequest;
use super::output::is_dumb;
use super::unprintable::plain;

/// How often the sign is brought up to date.
const TICK: Duration = Duration::from_secs(1);
/// Goes to the start of the line and empties it.
const CLEAR: &str = "\r\x1b[K";

/// The line that shows it, emptied in the end.
#[derive(Debug)]
pub struct Spinner {
    shown: Cell<bool>,
}

impl Spinner {
    /// One on standard error, if that is a terminal.
    pub fn at_hand() -> Option<Self> {
        (io::stderr().is_terminal() && !is_dumb()).then(|| Self {
            shown: Cell::new(false),
        })
    }

    /// Shows this instead of what it showed before.
    pub fn show(&self, text: &str) {
        self.shown.set(true);
        let mut err = io::stderr();
        // Where nobody looks any more, nothing is missed.
        let _ = write!(err, "{CLEAR}{text}").and_then(|()| err.flush());
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if self.shown.get() {
            self.show("");
        }
    }
}

/// Awaits an Acquire. While it waits, standard error shows its place in the queue and how long it has
/// waited, if that is a terminal.
pub async fn shown<T>(
    client: &Client,
    asking: &LockRequest,
    acquire: impl IntoFuture<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let (Some(_), Some(sign)) = (asking.wait, Spinner::at_hand()) else {
        return acquire.await;
    };
    let acquire = acquire.into_future();
    tokio::pin!(acquire);
    // A lock that is free at once is no reason to say anything.
    if let Ok(granted) = tokio::time::timeout(TICK / 4, &mut acquire).await {
        return granted;
    }
    tokio::select! {
        granted = acquire => granted,
        never = tell(client, asking, &sign) => match never {},
    }
}

async fn tell(client: &Client, asking: &LockRequest, sign: &Spinner) -> std::convert::Infallible {
    let begin = clock::since_boot();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let place = place(client, asking).await;
        let waited = (clock::since_boot() - begin).as_secs();
        sign.show(&format!(
            "waiting for {}: {place}, {waited} s",
            plain(&asking.lock.to_string())
        ));
    }
}

/// What the queue says. Several waiters of one owner cannot be told apart.
async fn place(client: &Client, asking: &LockRequest) -> String {
    let Ok(queue) = client.get(&asking.lock.namespace, &asking.lock.name).await else {
        return "no server answers".to_owned();
    };
    let owner = asking.owner();
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
