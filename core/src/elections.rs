//! Elections: an election is the exclusive lock of its name, its leader is the holder, and the leader's value is the
//! holder's metadata.
//!
//! The changes of a watch have no metadata, so an observer reads the leader after each change. One read covers all
//! changes that have arrived. A leader whose token is below one that was shown is left out.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use futures::future::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::time::{Instant, sleep, timeout_at};

use crate::backend::{BackendError, ChangeKind, WatchEvent};
use crate::claim::{Cause, Holder, Queue};
use crate::error::Error;
use crate::locks::{Locks, OUTAGE_TOLERANCE, RETRY_DELAY};
use crate::name::{FencingToken, Identity, LockName, Mode, Owner};

/// How many events of a watch one read of the leader covers at most.
const EVENTS_AT_ONCE: usize = 1_000;

/// The leader of an election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The label that the candidate chose.
    pub candidate: Owner,
    /// The authenticated identity of the candidate.
    pub identity: Identity,
    /// The token of the leadership.
    pub token: FencingToken,
    /// What the leader proclaimed last.
    pub value: String,
    /// The time until the leadership expires without a renewal.
    pub remaining: Duration,
    /// When it was granted, for display only.
    pub since: SystemTime,
}

impl From<Holder> for Leader {
    fn from(holder: Holder) -> Self {
        Self {
            value: holder.metadata.value().unwrap_or_default().to_owned(),
            candidate: holder.owner,
            identity: holder.identity,
            token: holder.token,
            remaining: holder.remaining,
            since: holder.since,
        }
    }
}

/// The leader of an election, if there is one.
///
/// # Errors
/// When the store fails.
pub async fn leader(locks: &Locks, election: &LockName) -> Result<Option<Leader>, Error> {
    Ok(first(locks.inspect(election, 1).await?))
}

/// The holder that leads: a claim of another mode shares the lock of that name and leads nothing, and one without holds was
/// released and is kept.
fn first(queue: Queue) -> Option<Leader> {
    let mut holders = queue.holders.into_iter();
    holders
        .next()
        .filter(|holder| holder.mode == Mode::Exclusive && holder.holds > 0)
        .map(Leader::from)
}

/// Streams the leader of an election: the present one first, then each change. Nothing happens while nobody polls the
/// stream: changes that were missed are covered by the next read. It ends as [`Locks::watch`].
pub fn observe(locks: Locks, election: LockName) -> BoxStream<'static, Result<Option<Leader>, Error>> {
    let observation = Observation {
        events: locks.watch(&election),
        locks,
        election,
        shown: Shown::default(),
        failed: VecDeque::new(),
    };
    stream::unfold(observation, |mut observation| async move {
        let next = observation.next().await?;
        Some((next, observation))
    })
    .boxed()
}

struct Observation {
    locks: Locks,
    election: LockName,
    events: BoxStream<'static, Result<WatchEvent, Error>>,
    shown: Shown,
    /// An error that came after events which are not shown yet.
    failed: VecDeque<Error>,
}

impl Observation {
    async fn next(&mut self) -> Option<Result<Option<Leader>, Error>> {
        loop {
            if let Some(error) = self.failed.pop_front() {
                return Some(Err(error));
            }
            let event = match self.events.next().await? {
                Ok(event) => event,
                Err(error) => return Some(Err(error)),
            };
            let change = self.with_ready(LeaderChange::of(event));
            let leader = match change {
                LeaderChange::None => continue,
                LeaderChange::Leader(leader) => leader,
                LeaderChange::Ended(token) if self.shown.is(token) => None,
                LeaderChange::Ended(_) | LeaderChange::Changed => match read(&self.locks, &self.election).await {
                    Ok(leader) => leader,
                    Err(error) => return Some(Err(error)),
                },
            };
            if let Some(leader) = self.shown.take(leader) {
                return Some(Ok(leader));
            }
        }
    }

    /// Takes the events that are ready, because one read covers them all.
    fn with_ready(&mut self, first: LeaderChange) -> LeaderChange {
        let mut change = first;
        for _ in 0..EVENTS_AT_ONCE {
            match self.events.next().now_or_never() {
                Some(Some(Ok(event))) => change = change.then(LeaderChange::of(event)),
                Some(Some(Err(error))) => {
                    self.failed.push_back(error);
                    break;
                }
                Some(None) | None => break,
            }
        }
        change
    }
}

/// Reads the leader; tolerates a short outage of the store.
async fn read(locks: &Locks, election: &LockName) -> Result<Option<Leader>, Error> {
    let end = Instant::now() + OUTAGE_TOLERANCE;
    let mut last = BackendError::Unavailable {
        reason: format!("no response within {OUTAGE_TOLERANCE:?}"),
    }
    .into();
    loop {
        match timeout_at(end, leader(locks, election)).await {
            Ok(Err(error)) if error.is_transient() => last = error,
            Ok(read) => return read,
            Err(_) => return Err(last),
        }
        if Instant::now() + RETRY_DELAY >= end {
            return Err(last);
        }
        sleep(RETRY_DELAY).await;
    }
}

/// What events of a watch tell about the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LeaderChange {
    /// Nothing.
    None,
    /// Who leads.
    Leader(Option<Leader>),
    /// The leadership with this token has ended.
    Ended(FencingToken),
    /// The leader or its value changed, and must be read.
    Changed,
}

impl LeaderChange {
    fn of(event: WatchEvent) -> Self {
        match event {
            WatchEvent::State(queue) => Self::Leader(first(queue)),
            WatchEvent::Change(change) => match (change.kind, change.token) {
                (ChangeKind::Queued | ChangeKind::Ended(Cause::Cancelled), _) => Self::None,
                (ChangeKind::Ended(_), Some(token)) => Self::Ended(token),
                (ChangeKind::Ended(_), None) => Self::None,
                (ChangeKind::Granted | ChangeKind::Updated, _) => Self::Changed,
            },
        }
    }

    /// What this and then `later` tell together.
    fn then(self, later: Self) -> Self {
        match (self, later) {
            (earlier, Self::None) => earlier,
            (Self::None | Self::Leader(_), later @ Self::Leader(_)) | (Self::None, later) => later,
            (Self::Ended(earlier), Self::Ended(later)) if earlier == later => Self::Ended(later),
            (_, later @ Self::Leader(_)) => later,
            _ => Self::Changed,
        }
    }
}

/// What an observer was shown.
#[derive(Debug, Default)]
struct Shown {
    /// Absent before the first message.
    last: Option<Option<Leader>>,
    /// The largest token that was shown.
    token: Option<FencingToken>,
}

impl Shown {
    /// Whether the leader that was shown last has this token.
    fn is(&self, token: FencingToken) -> bool {
        let last = self.last.as_ref().and_then(Option::as_ref);
        last.is_some_and(|leader| leader.token == token)
    }

    /// The message to send for what is known now; `None` if the observer knows it, or knows of a later leader.
    fn take(&mut self, leader: Option<Leader>) -> Option<Option<Leader>> {
        let token = leader.as_ref().map(|leader| leader.token);
        if token.is_some() && token < self.token {
            return None;
        }
        let same = |last: &Option<Leader>| match (last, &leader) {
            (None, None) => true,
            (Some(last), Some(now)) => (last.token, &last.value) == (now.token, &now.value),
            _ => false,
        };
        if self.last.as_ref().is_some_and(same) {
            return None;
        }
        self.token = self.token.max(token);
        self.last = Some(leader.clone());
        Some(leader)
    }
}

#[cfg(test)]
mod tests;
