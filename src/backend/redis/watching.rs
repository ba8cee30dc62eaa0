//! Watches a lock: its state, followed by its changes.
//!
//! The scripts publish changes only while the lock has a watcher that has renewed its registration.
//! Changes are numbered. If a number is missing, the watcher reads the full state again. No call
//! happens when a TTL runs out, so the watcher inspects the lock at that time, which purges it.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::Core;
use super::answer::InspectAnswer;
use crate::backend::redis_server::failure::unavailable;
use crate::backend::redis_server::reply::{cause, read_description};
use crate::backend::redis_server::subscriptions::SubscriptionEvent;
use crate::backend::{BackendError, Change, ChangeKind, InspectLimit, WatchEvent};
use crate::claim::ClaimLabels;
use crate::name::{FencingToken, LockName};

/// How long the scripts publish changes after a watcher's registration.
const REGISTRATION: Duration = Duration::from_secs(20);
/// The interval at which a watcher inspects the lock and renews its registration.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// How long after the expiry of a lease the lock is inspected.
const AFTER_EXPIRY: Duration = Duration::from_millis(20);
/// How much later than an inspection the messages of its changes may arrive.
const MESSAGE_DELAY: Duration = Duration::from_millis(500);
/// How long the subscription may take. While the store is unavailable it does not succeed.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many holders and waiters a state contains at most.
const LIMIT: InspectLimit = InspectLimit {
    holders: 1_000,
    waiters: 1_000,
};

/// Watches a lock: the state, then its changes.
pub fn watch(core: Arc<Core>, lock: LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
    let watching = Watching {
        core,
        lock,
        events: None,
        number: None,
        inspect_at: Instant::now(),
        expected: None,
    };
    stream::unfold(watching, |mut watching| async move {
        let event = watching.next().await;
        Some((event, watching))
    })
    .boxed()
}

struct Watching {
    core: Arc<Core>,
    lock: LockName,
    events: Option<mpsc::Receiver<SubscriptionEvent>>,
    /// The number of the last observed change; `None` if the state must be read again.
    number: Option<u64>,
    inspect_at: Instant,
    /// The number of a change that an inspection found and whose message has not arrived yet.
    expected: Option<u64>,
}

impl Watching {
    async fn next(&mut self) -> Result<WatchEvent, BackendError> {
        loop {
            if self.number.is_none() {
                return self.state().await;
            }
            let Some(events) = &mut self.events else {
                self.number = None;
                continue;
            };
            match timeout_at(self.inspect_at, events.recv()).await {
                Ok(Some(SubscriptionEvent::Message(message))) => {
                    if let Some(change) = self.change(&message) {
                        return Ok(WatchEvent::Change(change));
                    }
                }
                Ok(Some(SubscriptionEvent::Gap)) => self.number = None,
                Ok(None) => (self.events, self.number) = (None, None),
                Err(_) => {
                    if let Some(event) = self.inspect_again().await? {
                        return Ok(event);
                    }
                }
            }
        }
    }

    async fn state(&mut self) -> Result<WatchEvent, BackendError> {
        if self.events.is_none() {
            let subscribed = timeout(SUBSCRIBE_TIMEOUT, self.subscribe()).await;
            self.events = Some(subscribed.map_err(|_| unavailable("the subscription timed out"))??);
        }
        let answer = self.inspect().await?;
        Ok(self.take(answer))
    }

    async fn subscribe(&self) -> Result<mpsc::Receiver<SubscriptionEvent>, BackendError> {
        let channel = self.core.space.changes(&self.lock);
        let mut events = self.core.shared.subscriptions.listen(channel).await?;
        // The first event confirms the subscription.
        let _ = events.recv().await;
        Ok(events)
    }

    async fn inspect(&mut self) -> Result<InspectAnswer, BackendError> {
        let answer = self.core.inspect(&self.lock, LIMIT, REGISTRATION).await?;
        self.inspect_at = Instant::now() + RENEW_INTERVAL;
        self.no_later_than(answer.frees_in);
        Ok(answer)
    }

    fn no_later_than(&mut self, frees_in: Option<Duration>) {
        let due = frees_in.map(|left| Instant::now() + left + AFTER_EXPIRY);
        self.inspect_at = due.map_or(self.inspect_at, |due| due.min(self.inspect_at));
    }

    /// Inspects the lock when it is due. The messages of changes that this finds should be in flight. If
    /// they have not arrived by the next inspection, the full state is returned instead.
    async fn inspect_again(&mut self) -> Result<Option<WatchEvent>, BackendError> {
        let missing = self
            .expected
            .take()
            .is_some_and(|expected| self.number.is_none_or(|number| number < expected));
        let answer = self.inspect().await?;
        if missing {
            return Ok(Some(self.take(answer)));
        }
        if self.number != Some(answer.changes) {
            self.expected = Some(answer.changes);
            self.inspect_at = self.inspect_at.min(Instant::now() + MESSAGE_DELAY);
        }
        Ok(None)
    }

    fn take(&mut self, answer: InspectAnswer) -> WatchEvent {
        self.number = Some(answer.changes);
        WatchEvent::State(answer.queue)
    }

    /// Parses a change. Returns `None` if the last state already contains it, or if an earlier change is
    /// missing; the state is then read again.
    fn change(&mut self, message: &[u8]) -> Option<Change> {
        let last = self.number?;
        let (number, frees_in, change) = read(message)?;
        self.no_later_than(frees_in);
        if number <= last {
            return None;
        }
        self.number = (number == last + 1).then_some(number);
        self.number.and(change)
    }
}

/// Parses a message. Its first line has the kind, the number, the token, the counts of holders and waiters,
/// and the time to the next expiry; the rest is the claim's description.
fn read(message: &[u8]) -> Option<(u64, Option<Duration>, Option<Change>)> {
    let end = message.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&message[..end]).ok()?;
    let words: Vec<&str> = line.split(' ').collect();
    let &[kind, number, token, holders, waiters, frees_in] = words.as_slice() else {
        return None;
    };
    let kind = match kind {
        "q" => Some(ChangeKind::Queued),
        "g" => Some(ChangeKind::Granted),
        "u" => Some(ChangeKind::Updated),
        end => cause(end).map(ChangeKind::Ended),
    };
    let change = || {
        let (owner, identity, metadata) = read_description(&message[end + 1..]).ok()?;
        let claim = ClaimLabels {
            owner,
            identity,
            metadata,
        };
        Some(Change {
            kind: kind?,
            claim,
            token: FencingToken::new(token.parse().ok()?).ok(),
            holders: holders.parse().ok()?,
            waiters: waiters.parse().ok()?,
        })
    };
    let frees_in = frees_in
        .parse()
        .ok()
        .filter(|micros| *micros > 0)
        .map(Duration::from_micros);
    Some((number.parse().ok()?, frees_in, change()))
}
