//! Changes of a lock, for people who watch.
//!
//! The scripts publish changes only while somebody has said lately that they watch. Each change has
//! a number; where one is missing the full state follows.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::answer::cause;
use super::ask::Shown;
use super::{Core, answer::Look};
use crate::backend::redis_server::hub::Heard;
use crate::backend::{BackendError, Change, ChangeKind, Most, Seen};
use crate::name::{FencingToken, LockName, Owner};

/// For how long one says that one watches, and how often.
const WATCHED: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_secs(5);
/// How many holders and waiters a state names at most.
const MOST: Most = Most {
    holders: 1_000,
    waiters: 1_000,
};

/// Watches a lock: the state, then its changes.
pub fn watch(core: Arc<Core>, lock: LockName) -> BoxStream<'static, Result<Seen, BackendError>> {
    let watching = Watching {
        core,
        lock,
        heard: None,
        at: None,
        renew: Instant::now(),
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
    heard: Option<mpsc::Receiver<Heard>>,
    /// The number of the last change that was seen; nothing when the state must be read anew.
    at: Option<u64>,
    renew: Instant,
}

impl Watching {
    async fn next(&mut self) -> Result<Seen, BackendError> {
        loop {
            if self.at.is_none() {
                return self.state().await;
            }
            let Some(heard) = &mut self.heard else {
                self.at = None;
                continue;
            };
            match timeout_at(self.renew, heard.recv()).await {
                Ok(Some(Heard::Message(message))) => {
                    if let Some(change) = self.change(&message) {
                        return Ok(Seen::Change(change));
                    }
                }
                Ok(Some(Heard::Gap)) => self.at = None,
                Ok(None) => (self.heard, self.at) = (None, None),
                Err(_) => {
                    let look = self.look().await?;
                    if look.changes != self.at.unwrap_or_default() {
                        return Ok(self.take(look));
                    }
                }
            }
        }
    }

    async fn state(&mut self) -> Result<Seen, BackendError> {
        if self.heard.is_none() {
            let channel = self.core.space.changes(&self.lock);
            let mut heard = self.core.shared.hub.listen(channel).await?;
            // What is heard first is that the channel is heard from now on.
            let _ = heard.recv().await;
            self.heard = Some(heard);
        }
        let look = self.look().await?;
        Ok(self.take(look))
    }

    async fn look(&mut self) -> Result<Look, BackendError> {
        let look = self.core.look(&self.lock, MOST, WATCHED).await?;
        self.renew = Instant::now() + AGAIN;
        Ok(look)
    }

    fn take(&mut self, look: Look) -> Seen {
        self.at = Some(look.changes);
        Seen::State(look.queue)
    }

    /// Reads a change. One that the state has told already is skipped; behind a missing one the
    /// state is read anew.
    fn change(&mut self, message: &[u8]) -> Option<Change> {
        let at = self.at?;
        let (number, change) = read(message)?;
        if number <= at {
            return None;
        }
        self.at = (number == at + 1).then_some(number);
        self.at.and(change)
    }
}

/// A message: kind, number, token, holders and waiters in a line, then what the claim shows.
fn read(message: &[u8]) -> Option<(u64, Option<Change>)> {
    let end = message.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&message[..end]).ok()?;
    let words: Vec<&str> = line.split(' ').collect();
    let &[kind, number, token, holders, waiters] = words.as_slice() else {
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
            owner: Owner::new(&Shown::read(&message[end + 1..])?.owner).ok()?,
            token: FencingToken::new(token.parse().ok()?).ok(),
            holders: holders.parse().ok()?,
            waiters: waiters.parse().ok()?,
        })
    };
    Some((number.parse().ok()?, change()))
}
