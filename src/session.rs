//! The state of a stream on which a client keeps its leases: which leases it named last, when to ask for the next beat,
//! and what to tell the client.
//!
//! This module knows no transport and no store. Its owner passes beats, outcomes and the time in, and takes messages
//! out.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::name::Secret;

#[cfg(test)]
mod tests;

/// The part of the shortest TTL after which the next beat is due, and after which a beat is answered at the latest: two
/// more beats fit into the TTL.
const BEATS_IN_TTL: u32 = 3;
/// The interval before any TTL is known.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// The interval for a client without leases.
const IDLE_INTERVAL: Duration = Duration::from_secs(3);
/// When to look again at a lease whose store did not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A message for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The next beat is due.
    Ask,
    /// The outcome of a beat: the TTL of each lease, in the order of the beat; zero for one that was not renewed.
    Kept {
        /// The client's number of the beat.
        beat: u64,
        /// The TTLs.
        ttls: Vec<Duration>,
    },
    /// A lease is not kept any more.
    Lost {
        /// Its id.
        lease_id: String,
        /// Why not.
        error: Error,
    },
}

/// The leases that a client named in its last beat.
#[derive(Debug)]
pub struct KeptLeases {
    leases: Vec<KeptLease>,
    by_secret: HashMap<Secret, usize>,
    beat: Option<Beat>,
    interval: Duration,
    /// When the client is asked for the next beat; absent while a beat is processed, or after it was asked.
    ask_at: Option<Instant>,
    messages: VecDeque<Message>,
}

#[derive(Debug)]
struct KeptLease {
    lease_id: String,
    state: State,
    /// When it ends unless it was renewed elsewhere; absent before its first renewal.
    end: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The beat waits for the outcome of its renewal.
    Renewing,
    /// Renewed by the last beat.
    Renewed(Duration),
    /// Not renewed by the last beat, because the store did not answer.
    Unsure,
    /// Its end has been told.
    Lost,
}

/// A beat that is processed.
#[derive(Debug)]
struct Beat {
    number: u64,
    began: Instant,
    /// How many renewals have no outcome yet.
    open: usize,
}

impl Default for KeptLeases {
    /// No leases; the client is asked for them at once.
    fn default() -> Self {
        Self {
            leases: Vec::new(),
            by_secret: HashMap::new(),
            beat: None,
            interval: FIRST_INTERVAL,
            ask_at: None,
            messages: VecDeque::from([Message::Ask]),
        }
    }
}

impl KeptLeases {
    /// Begins a beat with all leases of the client: each id with its secret, if it is a valid id. The owner then passes
    /// the outcome of each, by its index. No other beat may be in progress.
    pub fn begin(&mut self, number: u64, leases: Vec<(String, Option<Secret>)>, now: Instant) {
        self.by_secret = leases
            .iter()
            .enumerate()
            .filter_map(|(index, (_, secret))| Some(((*secret)?, index)))
            .collect();
        let kept = leases.into_iter().map(|(lease_id, _)| KeptLease {
            lease_id,
            state: State::Renewing,
            end: None,
        });
        self.leases = kept.collect();
        self.ask_at = None;
        self.beat = Some(Beat {
            number,
            began: now,
            open: self.leases.len(),
        });
        self.finish_if_complete();
    }

    /// Whether a beat is in progress.
    pub fn is_beating(&self) -> bool {
        self.beat.is_some()
    }

    /// Records a renewal, sent at `sent`.
    pub fn renewed(&mut self, index: usize, ttl: Duration, sent: Instant) {
        if let Some(lease) = self.leases.get_mut(index)
            && lease.state != State::Lost
        {
            lease.end = Some(sent + ttl);
            self.settle(index, State::Renewed(ttl));
        }
    }

    /// Records that a lease was found held for `left` longer, without a renewal.
    pub fn found(&mut self, index: usize, left: Duration, now: Instant) {
        if let Some(lease) = self.leases.get_mut(index) {
            lease.end = Some(now + left);
        }
    }

    /// Records a renewal whose outcome is unknown, or a look at a lease that failed.
    pub fn unanswered(&mut self, index: usize, now: Instant) {
        let Some(lease) = self.leases.get_mut(index) else {
            return;
        };
        lease.end = lease.end.map(|end| end.max(now + LOOK_AGAIN));
        self.settle(index, State::Unsure);
    }

    /// Records that a lease is not kept any more.
    pub fn lost(&mut self, index: usize, error: Error) {
        let Some(lease) = self.leases.get(index) else {
            return;
        };
        if lease.state != State::Lost {
            let lease_id = lease.lease_id.clone();
            self.messages.push_back(Message::Lost { lease_id, error });
        }
        self.settle(index, State::Lost);
    }

    /// The index of the lease with this secret.
    pub fn index_of(&self, secret: &Secret) -> Option<usize> {
        self.by_secret.get(secret).copied()
    }

    /// When [`Self::wake`] has something to do, if nothing else happens.
    pub fn next_wake(&self) -> Option<Instant> {
        if let Some(beat) = &self.beat {
            return Some(beat.began + self.interval);
        }
        let ends = self.leases.iter().filter_map(KeptLease::watched_end);
        ends.chain(self.ask_at).min()
    }

    /// Asks for the next beat when it is due, and answers a beat that takes too long. Returns the indices of leases
    /// whose time is over: whether they have ended must be looked at.
    pub fn wake(&mut self, now: Instant) -> Vec<usize> {
        if self.beat.as_ref().is_some_and(|beat| beat.began + self.interval <= now) {
            for lease in &mut self.leases {
                if lease.state == State::Renewing {
                    lease.state = State::Unsure;
                }
            }
            self.finish();
        }
        if self.beat.is_some() {
            return Vec::new();
        }
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = None;
            self.messages.push_back(Message::Ask);
        }
        let mut over = Vec::new();
        for (index, lease) in self.leases.iter_mut().enumerate() {
            if lease.watched_end().is_some_and(|end| end <= now) {
                // Until its owner says more, it is looked at again later.
                lease.end = Some(now + LOOK_AGAIN);
                over.push(index);
            }
        }
        over
    }

    /// Discards the beat and the messages.
    pub fn end(&mut self) {
        self.beat = None;
        self.messages.clear();
    }

    /// The next message for the client.
    pub fn message(&mut self) -> Option<Message> {
        self.messages.pop_front()
    }

    /// Records the outcome for a lease.
    fn settle(&mut self, index: usize, state: State) {
        let before = std::mem::replace(&mut self.leases[index].state, state);
        if let Some(beat) = self.beat.as_mut().filter(|_| before == State::Renewing) {
            beat.open -= 1;
            self.finish_if_complete();
        }
    }

    fn finish_if_complete(&mut self) {
        if self.beat.as_ref().is_some_and(|beat| beat.open == 0) {
            self.finish();
        }
    }

    /// Answers the beat.
    fn finish(&mut self) {
        let Some(beat) = self.beat.take() else { return };
        let ttls: Vec<Duration> = self.leases.iter().map(KeptLease::ttl).collect();
        let shortest = ttls.iter().filter(|ttl| !ttl.is_zero()).min();
        let is_unsure = self.leases.iter().any(|lease| lease.state == State::Unsure);
        let of_ttl = shortest.map(|ttl| *ttl / BEATS_IN_TTL);
        self.interval = match of_ttl {
            // The TTL of the others is not known, so they may need the present interval.
            Some(interval) if is_unsure => interval.min(self.interval),
            Some(interval) => interval,
            None if is_unsure => self.interval,
            None => IDLE_INTERVAL,
        };
        self.ask_at = Some(beat.began + self.interval);
        self.messages.push_back(Message::Kept {
            beat: beat.number,
            ttls,
        });
    }
}

impl KeptLease {
    fn ttl(&self) -> Duration {
        match self.state {
            State::Renewed(ttl) => ttl,
            State::Renewing | State::Unsure | State::Lost => Duration::ZERO,
        }
    }

    /// Its end, while it is kept.
    fn watched_end(&self) -> Option<Instant> {
        self.end.filter(|_| self.state != State::Lost)
    }
}
