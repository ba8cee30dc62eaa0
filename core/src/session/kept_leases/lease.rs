//! One kept lease.

use std::time::Duration;

use tokio::time::Instant;

use super::{BEATS_IN_TTL, Moment};
use crate::error::Error;

/// What is known of a lease, and what its client was told.
#[derive(Debug)]
pub(super) struct KeptLease {
    pub lease_id: String,
    /// The TTL of its last renewal.
    pub ttl: Option<Duration>,
    /// When it ends unless it was renewed elsewhere; absent before its first renewal, and while it is looked at.
    pub end: Option<Instant>,
    /// When the renewal under way was sent.
    pub renewal: Option<Moment>,
    /// Whether it was attached when the beat began.
    pub is_in_beat: bool,
    /// What the beat says of it: its TTL, zero if it could not be renewed, or nothing yet.
    pub outcome: Option<Duration>,
    /// Why the beat could not renew it.
    pub error: Option<Error>,
    /// The TTL that its client was last told on this stream, with which the client counts.
    pub told_ttl: Option<Duration>,
    /// How many commands to renew it are in progress.
    pub renew_commands: usize,
    /// The beat renews it again when these have ended.
    pub is_to_renew_again: bool,
    /// How many leases were attached up to this one.
    pub number: u64,
}

impl KeptLease {
    pub fn new(lease_id: String) -> Self {
        Self {
            lease_id,
            ttl: None,
            end: None,
            renewal: None,
            is_in_beat: false,
            outcome: None,
            error: None,
            told_ttl: None,
            renew_commands: 0,
            is_to_renew_again: false,
            number: 0,
        }
    }

    pub fn interval(&self) -> Option<Duration> {
        Some(self.ttl? / BEATS_IN_TTL)
    }

    /// Whether the beat renewed it for its whole TTL, from when the beat began.
    pub fn is_renewed(&self) -> bool {
        self.ttl.is_some() && self.outcome == self.ttl
    }

    /// Whether the beat has renewed it, maybe for less.
    pub fn is_renewed_by_beat(&self) -> bool {
        self.outcome.is_some_and(|ttl| !ttl.is_zero())
    }

    /// Its id and TTL, if its client was told another one before. The client now counts with this one.
    pub fn tell_ttl(&mut self) -> Option<(String, Duration)> {
        let ttl = self.ttl.filter(|_| self.ttl != self.told_ttl)?;
        self.told_ttl = Some(ttl);
        Some((self.lease_id.clone(), ttl))
    }
}
