//! Changes of a lock, for people who watch.
//!
//! The scripts publish changes only while somebody has said lately that they watch. Each change has
//! a number; where one is missing the full state follows. A TTL that runs out is nobody's call, so
//! who watches looks at that moment.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::cause;
use super::{Core, answer::InspectAnswer};
use crate::backend::redis_server::failure::away;
use crate::backend::redis_server::subscriptions::SubscriptionEvent;
use crate::backend::redis_server::description::ClaimDescription;
use crate::backend::{BackendError, Change, ChangeKind, InspectLimit, WatchEvent};
use crate::name::{FencingToken, LockName, Owner};

/// For how long one says that one watches, and how often.
const WATCHED: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_secs(5);
/// How long after a holder's TTL one looks.
const PAST_THE_END: Duration = Duration::from_millis(20);
/// How much later than a look its messages may be heard.
const LATE: Duration = Duration::from_millis(500);
/// How long it may take until messages are heard; while the store is away nothing is.
const IN_TIME: Duration = Duration::from_secs(5);
/// How many holders and waiters a state names at most.
const MOST: InspectLimit = InspectLimit {
    holders: 1_000,
    waiters: 1_000,
};

/// Watches a lock: the state, then its changes.
pub fn watch(core: Arc<Core>, lock: LockName) -> BoxStream<'static, Result<WatchEvent, BackendError>> {
    let watching = Watching {
        core,
        lock,
        heard: None,
        at: None,
        renew: Instant::now(),
        coming: None,
    };
    stream::unfold(watching, |mut watching| async move {
        let seen = watching.next().await;
        Some((seen, watching))
    })
    .boxed()
}

struct Watching {
    core: Arc<Core>,
    lock: LockName,
    heard: Option<mpsc::Receiver<SubscriptionEvent>>,
    /// The number of the last change that was seen; nothing when the state must be read anew.
    at: Option<u64>,
    renew: Instant,
    /// The number of a change that a look has shown, and whose message was not heard yet.
    coming: Option<u64>,
}

impl Watching {
    async fn next(&mut self) -> Result<WatchEvent, BackendError> {
        loop {
            if self.at.is_none() {
                return self.state().await;
            }
            let Some(heard) = &mut self.heard else {
                self.at = None;
                continue;
            };
            match timeout_at(self.renew, heard.recv()).await {
                Ok(Some(SubscriptionEvent::Message(message))) => {
                    if let Some(change) = self.change(&message) {
                        return Ok(WatchEvent::Change(change));
                    }
                }
                Ok(Some(SubscriptionEvent::Gap)) => self.at = None,
                Ok(None) => (self.heard, self.at) = (None, None),
                Err(_) => {
                    if let Some(seen) = self.look_again().await? {
                        return Ok(seen);
                    }
                }
            }
        }
    }

    async fn state(&mut self) -> Result<WatchEvent, BackendError> {
        if self.heard.is_none() {
            let begun = timeout(IN_TIME, self.listen()).await;
            self.heard = Some(begun.map_err(|_| away("no messages can be heard"))??);
        }
        let look = self.inspect().await?;
        Ok(self.take(look))
    }

    async fn listen(&self) -> Result<mpsc::Receiver<SubscriptionEvent>, BackendError> {
        let channel = self.core.space.changes(&self.lock);
        let mut heard = self.core.shared.hub.listen(channel).await?;
        // What is heard first is that the channel is heard from now on.
        let _ = heard.recv().await;
        Ok(heard)
    }

    async fn inspect(&mut self) -> Result<InspectAnswer, BackendError> {
        let look = self.core.inspect(&self.lock, MOST, WATCHED).await?;
        self.renew = Instant::now() + AGAIN;
        self.no_later_than(look.frees_in);
        Ok(look)
    }

    fn no_later_than(&mut self, frees_in: Option<Duration>) {
        let freed = frees_in.map(|left| Instant::now() + left + PAST_THE_END);
        self.renew = freed.map_or(self.renew, |freed| freed.min(self.renew));
    }

    /// Looks as it is time to. Changes that this finds are on their way as messages; only if they
    /// have not come by the next time, the state is what is told.
    async fn look_again(&mut self) -> Result<Option<WatchEvent>, BackendError> {
        let missing = self
            .coming
            .take()
            .is_some_and(|coming| self.at.is_none_or(|at| at < coming));
        let look = self.inspect().await?;
        if missing {
            return Ok(Some(self.take(look)));
        }
        if self.at != Some(look.changes) {
            self.coming = Some(look.changes);
            self.renew = self.renew.min(Instant::now() + LATE);
        }
        Ok(None)
    }

    fn take(&mut self, look: InspectAnswer) -> WatchEvent {
        self.at = Some(look.changes);
        WatchEvent::State(look.queue)
    }

    /// Reads a change. One that the state has told already is skipped; behind a missing one the
    /// state is read anew.
    fn change(&mut self, message: &[u8]) -> Option<Change> {
        let at = self.at?;
        let (number, frees_in, change) = read(message)?;
        self.no_later_than(frees_in);
        if number <= at {
            return None;
        }
        self.at = (number == at + 1).then_some(number);
        self.at.and(change)
    }
}

/// A message: kind, number, token, holders, waiters and the time to the next expiry in a line, then what the claim shows.
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
        end => cause(end).map(ChangeKind::Ended),
    };
    let change = || {
        Some(Change {
            kind: kind?,
            owner: Owner::new(&ClaimDescription::read(&message[end + 1..])?.owner).ok()?,
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
