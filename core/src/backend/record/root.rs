//! What the root of a lock says, and its bytes.
//!
//! The body begins with the format, then the log of the last versions, then the record. A grant or a renewal is *open* in
//! the commit that makes it: its token and the end of its lease follow from the clocks that this very commit was stamped
//! with, for the server that committed as for every server that reads the root. So no server's estimate enters a lease
//! or a token.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::ends::{Ended, Ends};
use super::store::{Root, ServerId, Stamp, Version};
use crate::backend::BackendError;
use crate::backend::clock::LATEST;
use crate::backend::failure::{broken, not_sent};
use crate::name::{CallId, ClaimId, FencingToken, InvalidField};
use crate::queue::{LockState, ReplicaId, Stage};

#[cfg(test)]
mod golden;
mod wire;

use self::wire::{ClaimRecord, EndRecord, RootRecord};

/// The format that this release writes, and reads. A release reads a new format before a later one writes it, because two
/// releases share a store while servers are replaced one after the other.
pub const FORMAT: u8 = 1;
/// How many versions the log has.
const LOG: usize = 8;
/// Why a root cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A later release wrote it.
    #[error("the record of this lock has format {0}, and this release reads {FORMAT}")]
    Format(u8),
    /// It is damaged.
    #[error("the record of this lock is damaged")]
    Damaged(#[from] postcard::Error),
    /// It contains a value that is out of bounds.
    #[error("the record of this lock holds a bad value: {0}")]
    BadValue(#[from] InvalidField),
    /// It is too short.
    #[error("the record of this lock is cut off")]
    CutOff,
}

impl From<RootError> for BackendError {
    fn from(error: RootError) -> Self {
        match error {
            RootError::Format(_) => not_sent(error),
            _ => broken(error),
        }
    }
}

/// The state of one lock.
#[derive(Debug, Clone, Default)]
pub struct LockRecord {
    /// The claims.
    pub queue: LockState,
    /// The bytes of the claims that have not changed since they were written or read. The key is the position.
    pub written: BTreeMap<u64, Arc<[u8]>>,
    /// The last token that was made, or a floor that the first one must be above.
    pub token: u64,
    /// How many tokens the commit of this record makes.
    pub new_tokens: u32,
    /// The ended holds that are remembered.
    pub ends: Ends,
    /// The calls whose waiting claim a try of another call took out, and until when that is remembered.
    pub marks: Vec<(CallId, Duration)>,
    /// The servers that watch this lock, and until when.
    pub watchers: Vec<(ServerId, Duration)>,
    /// The number of changes that were told to watchers.
    pub changes: u64,
    /// The versions of the last commits, newest last.
    pub log: VecDeque<Version>,
}

/// A claim that waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiter {
    pub position: u64,
    /// Its id, and the call that owns it.
    pub call: (ClaimId, CallId),
    pub replica: ReplicaId,
    pub is_eligible: bool,
}

/// What the stamp of a commit has decided.
#[derive(Debug, Clone, Copy)]
pub struct Resolved {
    /// The first token that it made.
    base: u64,
    /// The lock's clock.
    pub clock: Duration,
}

impl Resolved {
    /// For a record whose last token before the commit was this one.
    pub fn new(last_token: u64, stamp: Stamp) -> Self {
        Self {
            base: (last_token + 1).max(stamp.time.0.min(LATEST)),
            clock: Duration::from_micros(stamp.clock.0),
        }
    }

    /// The token in place of a placeholder; any other one stays.
    pub fn token(&self, token: FencingToken) -> FencingToken {
        let made = token.ordinal().map(|ordinal| self.base + u64::from(ordinal));
        made.map_or(token, |made| FencingToken::new(made).unwrap_or(token))
    }
}

impl LockRecord {
    /// The state of a lock without a root, under this floor of tokens. Its parts are numbered from a random number on, so
    /// that they are none of those that a server remembers of a root that was lost.
    pub fn empty(floor: u64, random: u32) -> Self {
        let first = u64::from(random) << 16;
        Self {
            token: floor,
            ends: Ends {
                parts: first..first,
                ..Ends::default()
            },
            ..Self::default()
        }
    }

    /// The placeholder of the next token that the commit makes; `None` at the end of their range.
    pub fn next_token(&mut self) -> Option<FencingToken> {
        if self.token.max(LATEST) + u64::from(self.new_tokens) >= FencingToken::MAX {
            return None;
        }
        self.new_tokens += 1;
        Some(FencingToken::placeholder(self.new_tokens - 1))
    }

    /// Decides what the commit left open, by its stamp.
    pub fn resolve(&mut self, stamp: Stamp) -> Resolved {
        let resolved = Resolved::new(self.token, stamp);
        self.queue.resolve(resolved.clock, |token| resolved.token(token));
        if self.new_tokens > 0 {
            for ended in &mut self.ends.inline {
                ended.token = resolved.token(ended.token);
            }
            self.token = resolved.base + u64::from(std::mem::take(&mut self.new_tokens)) - 1;
        }
        resolved
    }

    /// Adds a version to the log.
    pub fn log(&mut self, version: Version) {
        while self.log.len() >= LOG {
            self.log.pop_front();
        }
        self.log.push_back(version);
    }

    /// The claims that wait.
    pub fn waiters(&self) -> impl Iterator<Item = Waiter> {
        waiters(&self.queue)
    }

    /// The earliest end of a lease.
    pub fn first_end(&self) -> Option<Duration> {
        let holders = self.queue.iter().filter_map(|(_, claim)| claim.holding());
        holders.map(|holding| holding.ends.known()).min()
    }

    /// How long the longest lease goes on, if the commit is stamped with `now`.
    pub fn longest_lease(&self, now: Duration) -> Duration {
        let holders = self.queue.iter().filter_map(|(_, claim)| claim.holding());
        let left = holders.map(|holding| holding.ends.remaining(now));
        left.max().unwrap_or_default()
    }

    /// The body of a root. It keeps the bytes of the claims that the stamp of the commit does not change.
    pub fn write(&mut self) -> Vec<u8> {
        let mut body = vec![FORMAT, self.log.len() as u8];
        for version in &self.log {
            body.extend(version.0.get().to_be_bytes());
        }
        // Plain structs are encoded into memory: this cannot fail.
        let mut body = postcard::to_extend(&RootRecord::of(self), body).unwrap_or_default();
        for (position, claim) in self.queue.iter() {
            let write = || postcard::to_extend(&ClaimRecord::of(position, claim), Vec::new()).unwrap_or_default();
            if claim.is_open() {
                body.extend(write());
            } else {
                let written = self.written.entry(position).or_insert_with(|| write().into());
                debug_assert_eq!(**written, *write(), "a change of a claim was not told");
                body.extend_from_slice(written);
            }
        }
        debug_assert!(
            self.written.len() <= self.queue.len(),
            "the end of a claim was not told"
        );
        body
    }

    /// Reads a root.
    ///
    /// # Errors
    /// [`RootError`] if another release wrote it, or it is damaged.
    pub fn read(root: &Root) -> Result<Self, RootError> {
        let (log, rest) = split(&root.body)?;
        let (head, claims) = postcard::take_from_bytes::<RootRecord>(rest)?;
        let mut record = head.read(claims)?;
        record.log = log.collect();
        record.resolve(root.stamp);
        Ok(record)
    }

    /// The log of a root; empty if it cannot be read.
    pub fn read_log(root: &Root) -> Vec<Version> {
        split(&root.body).map_or_else(|_| Vec::new(), |(log, _)| log.collect())
    }
}

/// The log of a body, and the rest.
fn split(body: &[u8]) -> Result<(impl Iterator<Item = Version>, &[u8]), RootError> {
    let (format, rest) = body.split_first().ok_or(RootError::CutOff)?;
    if *format != FORMAT {
        return Err(RootError::Format(*format));
    }
    let (count, rest) = rest.split_first().ok_or(RootError::CutOff)?;
    let (log, rest) = rest
        .split_at_checked(8 * usize::from(*count))
        .ok_or(RootError::CutOff)?;
    let versions = log.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok());
    let versions = versions.filter_map(|bytes| NonZeroU64::new(u64::from_be_bytes(bytes)));
    Ok((versions.map(Version), rest))
}

/// A token in a root or a message: twice its number, or twice the ordinal of its placeholder and 1.
pub fn token_number(token: FencingToken) -> u64 {
    token
        .ordinal()
        .map_or_else(|| 2 * token.get(), |ordinal| 2 * u64::from(ordinal) + 1)
}

/// The token of such a number.
pub fn token_of(number: u64) -> Result<FencingToken, InvalidField> {
    match number % 2 {
        0 => FencingToken::new(number / 2),
        _ => Ok(FencingToken::placeholder(u32::try_from(number / 2).unwrap_or(u32::MAX))),
    }
}

/// The claims of a queue that wait.
pub fn waiters(queue: &LockState) -> impl Iterator<Item = Waiter> {
    let eligible = queue.notified();
    queue.iter().filter_map(move |(position, claim)| match &claim.stage {
        Stage::Waiting(waiting) => Some(Waiter {
            position,
            call: (claim.id, waiting.hold.call),
            replica: waiting.replica,
            is_eligible: position < eligible,
        }),
        Stage::Holding(_) => None,
    })
}

/// The server that a queue knows by this number.
pub fn server_of(replica: ReplicaId) -> Option<ServerId> {
    NonZeroU64::new(replica.0).map(ServerId)
}

/// A time in microseconds.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The bytes of a part.
pub fn write_part(part: &[Ended]) -> Vec<u8> {
    let ends: Vec<_> = part.iter().map(EndRecord::of).collect();
    postcard::to_extend(&ends, vec![FORMAT]).unwrap_or_default()
}

/// Reads a part.
///
/// # Errors
/// [`RootError`] if another release wrote it, or it is damaged.
pub fn read_part(bytes: &[u8]) -> Result<Vec<Ended>, RootError> {
    match bytes.split_first() {
        Some((&FORMAT, ends)) => postcard::from_bytes::<Vec<EndRecord>>(ends)?
            .into_iter()
            .map(EndRecord::read)
            .collect(),
        Some((&format, _)) => Err(RootError::Format(format)),
        None => Err(RootError::CutOff),
    }
}
