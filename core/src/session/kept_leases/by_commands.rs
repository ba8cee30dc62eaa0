//! What the commands of a session change: they attach, detach and renew leases.

use std::time::Duration;

use tokio::time::Instant;

use super::lease::KeptLease;
use super::{BEATS_IN_TTL, KeptLeases, NamedBy, NotRenewed};
use crate::name::Secret;

impl KeptLeases {
    /// Attaches a lease, with the TTL that it was given at this time if that is known; otherwise the client is asked for
    /// a beat at once, which shows it.
    pub fn attach(&mut self, lease_id: String, secret: Secret, ttl: Option<Duration>, now: Instant) {
        self.attached += 1;
        self.leases.entry(secret).or_insert_with(|| KeptLease {
            // A beat in progress is not about a lease that is attached later.
            outcome: Some(Duration::ZERO),
            number: self.attached,
            ..KeptLease::new(lease_id)
        });
        match ttl {
            Some(ttl) => self.extended(&secret, ttl, now),
            None => self.ask_before(now),
        }
    }

    /// Records that a command to renew a lease begins. A beat confirms nothing about the lease until it has ended, because
    /// the command may change the TTL.
    pub fn renew_begins(&mut self, secret: &Secret) {
        if let Some(lease) = self.leases.get_mut(secret) {
            lease.renew_commands += 1;
        }
    }

    /// Records the end of a command to renew a lease that was sent then, with the TTL of its answer. Returns whether a beat
    /// waits for this end: the lease is to be renewed again.
    pub fn renew_ended(&mut self, secret: &Secret, ttl: Option<Duration>, sent: Instant) -> bool {
        if let Some(ttl) = ttl {
            self.extended(secret, ttl, sent);
        }
        let began = self.beat.as_ref().map(|beat| beat.began.timer);
        let Some(lease) = self.leases.get_mut(secret) else {
            return false;
        };
        // It was renewed once more since the beat began.
        if began.is_some_and(|began| began <= sent) && lease.is_renewed_by_beat() {
            lease.outcome = ttl.or(lease.outcome);
        }
        lease.renew_commands = lease.renew_commands.saturating_sub(1);
        lease.renew_commands == 0 && std::mem::take(&mut lease.is_to_renew_again)
    }

    /// Records that the client is told this TTL of a lease, which counts from then.
    fn extended(&mut self, secret: &Secret, ttl: Duration, sent: Instant) {
        let Some(lease) = self.leases.get_mut(secret) else {
            return;
        };
        (lease.ttl, lease.told_ttl, lease.end) = (Some(ttl), Some(ttl), Some(sent + ttl));
        self.look_before(sent + ttl);
        self.ask_before(sent + ttl / BEATS_IN_TTL);
    }

    /// Records a keep_alive: it is about the leases that are attached now, and its beat begins later.
    pub fn keep_alive_arrived(&mut self) {
        self.awaited = Some(self.attached);
    }

    /// Detaches a lease. The client is told nothing more about it, except that a beat does not confirm it.
    pub fn detach(&mut self, secret: &Secret) -> NamedBy {
        let Some(lease) = self.leases.remove(secret) else {
            return NamedBy::None;
        };
        let mut named_by = NamedBy::None;
        if let Some(beat) = self.beat.as_mut().filter(|_| lease.is_in_beat) {
            beat.lost.insert(*secret, NotRenewed::detached(&lease.lease_id));
            named_by = NamedBy::Beat;
        }
        if self.awaited.is_some_and(|awaited| lease.number <= awaited) {
            self.left.insert(*secret, NotRenewed::detached(&lease.lease_id));
            named_by = NamedBy::NextBeat;
        }
        self.leave_beat(&lease);
        self.forget_ask_without_leases();
        named_by
    }

    /// Records that the keep_alives that arrived were refused, and have no beat.
    pub fn beat_refused(&mut self, now: Instant) {
        self.awaited = None;
        self.left.clear();
        self.refused(now);
    }
}
