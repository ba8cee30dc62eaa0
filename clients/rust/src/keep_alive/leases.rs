//! The leases that one stream keeps: when the next beat is due, and which leases need a renewal by a call of their own.
//!
//! This module knows no transport. Its owner passes the time and the outcomes in. All times are on the clock since boot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::lease_term::{LeaseState, LeaseTerm, Loss};

#[cfg(test)]
mod tests;

/// How long a lease is held before a beat names it, because most leases are released sooner.
const NAME_AFTER: Duration = Duration::from_millis(500);
/// The minimum time between a beat and one that is sent only because of new leases, and this for each lease that it
/// renews: new leases cause at most 100 renewals a second.
const MIN_GAP: Duration = Duration::from_secs(1);
const GAP_PER_LEASE: Duration = Duration::from_millis(10);

/// The pauses before renewals by calls are repeated.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// See the module.
#[derive(Debug, Default)]
pub struct Leases {
    /// By lease id, and by guard: two guards may hold one lease, because a retry finds the lease of its request.
    guards: BTreeMap<(Arc<str>, u64), Guard>,
    /// The leases that ended before the end of their terms. A guard of such a lease may be added later, because the
    /// answer to its request was under way.
    gone: BTreeMap<Arc<str>, GoneLease>,
    /// The beat without an answer.
    beat: Option<Beat>,
    last_number: u64,
    /// When the last beat was sent.
    last_beat: Option<Duration>,
    /// The server asks for a beat.
    is_asked: bool,
    stream: StreamHealth,
}

/// What is known of the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum StreamHealth {
    /// It has answered no beat.
    #[default]
    Untried,
    /// It has answered its last beat.
    Working,
    /// The last one failed.
    Failed,
}

/// The lease of a guard.
#[derive(Debug)]
struct Guard {
    term: LeaseTerm,
    state: Arc<watch::Sender<LeaseState>>,
    since: Duration,
    is_named: bool,
    call: RenewalCall,
}

/// The renewals of a lease by calls of its own.
#[derive(Debug)]
struct RenewalCall {
    is_sent: bool,
    not_before: Duration,
    backoff: Backoff,
}

#[derive(Debug)]
struct Beat {
    number: u64,
    sent: Duration,
    answer_by: Duration,
    lease_ids: Vec<Arc<str>>,
}

/// A lease that ended before the end of its term.
#[derive(Debug)]
struct GoneLease {
    cause: String,
    /// When it is forgotten, because no term of the lease lasts longer.
    until: Duration,
}

/// A renewal by a call, to be sent now.
#[derive(Debug, PartialEq, Eq)]
pub struct DueRenewal {
    pub lease_id: Arc<str>,
    /// The deadline of the call.
    pub limit: Duration,
}

impl Leases {
    /// Adds the lease of a guard.
    pub fn add(
        &mut self,
        lease_id: Arc<str>,
        guard: u64,
        term: LeaseTerm,
        state: Arc<watch::Sender<LeaseState>>,
        now: Duration,
    ) {
        if let Some(GoneLease { cause, .. }) = self.gone.get(&lease_id) {
            let loss = Loss::Gone { cause: cause.clone() };
            return lose(&state, loss);
        }
        let call = RenewalCall {
            is_sent: false,
            not_before: Duration::ZERO,
            backoff: BACKOFF,
        };
        let (since, is_named) = (now, false);
        let guard_of = Guard {
            term,
            state,
            since,
            is_named,
            call,
        };
        self.guards.insert((lease_id, guard), guard_of);
    }

    /// Removes the lease of a guard. Later outcomes do not affect it.
    pub fn remove(&mut self, lease_id: &Arc<str>, guard: u64) {
        self.guards.remove(&(Arc::clone(lease_id), guard));
    }

    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.guards.is_empty()
    }

    /// Ends the leases whose time is over.
    pub fn expire(&mut self, now: Duration) {
        self.guards.retain(|_, guard| {
            let is_over = guard.term.end <= now;
            if is_over {
                lose(&guard.state, Loss::Unrenewed);
            }
            !is_over
        });
        self.gone.retain(|_, gone| gone.until > now);
    }

    /// When the first lease ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.guards.values().map(|guard| guard.term.end).min()
    }

    /// When the next beat is due; never while one is unanswered.
    pub fn beat_due(&self) -> Option<Duration> {
        if self.beat.is_some() || self.guards.is_empty() {
            return None;
        }
        if self.is_asked {
            return Some(Duration::ZERO);
        }
        let gap = self.last_beat.map(|last| {
            let count = u32::try_from(self.guards.len()).unwrap_or(u32::MAX);
            last + MIN_GAP.max(GAP_PER_LEASE * count)
        });
        let due = self.guards.values().map(|guard| {
            let regular = guard.term.beat_due(self.last_beat);
            if guard.is_named {
                return regular;
            }
            let first = guard.since + NAME_AFTER;
            regular.min(gap.map_or(first, |gap| gap.max(first)))
        });
        due.min()
    }

    /// Begins a beat: its number, and all leases.
    pub fn begin_beat(&mut self, now: Duration) -> (u64, Vec<String>) {
        self.last_number += 1;
        let mut lease_ids: Vec<Arc<str>> = self.guards.keys().map(|(lease_id, _)| Arc::clone(lease_id)).collect();
        lease_ids.dedup();
        let limits = self.guards.values().map(|guard| guard.term.answer_limit());
        let answer_by = now + limits.min().unwrap_or_default();
        for guard in self.guards.values_mut() {
            guard.is_named = true;
        }
        let ids = lease_ids.iter().map(|id| id.as_ref().to_owned()).collect();
        self.beat = Some(Beat {
            number: self.last_number,
            sent: now,
            answer_by,
            lease_ids,
        });
        self.last_beat = Some(now);
        self.is_asked = false;
        (self.last_number, ids)
    }

    /// When a stream that has not answered the beat hangs.
    pub fn answer_by(&self) -> Option<Duration> {
        self.beat.as_ref().map(|beat| beat.answer_by)
    }

    /// How long the beat has been unanswered.
    pub fn unanswered_for(&self, now: Duration) -> Duration {
        let sent = self.beat.as_ref().map(|beat| beat.sent);
        now.saturating_sub(sent.unwrap_or(now))
    }

    /// The server asks for a beat. It does so before it has read one that is under way.
    pub fn asked(&mut self) {
        self.is_asked = self.beat.is_none();
    }

    /// The answer to a beat: the TTL of each lease, in the order of the beat, zero if it was not renewed.
    pub fn kept(&mut self, number: u64, ttls: impl IntoIterator<Item = Duration>, now: Duration) {
        let Some(beat) = self.beat.take_if(|beat| beat.number == number) else {
            return;
        };
        self.stream = StreamHealth::Working;
        for (lease_id, ttl) in beat.lease_ids.iter().zip(ttls) {
            if !ttl.is_zero() {
                self.renewed(lease_id, beat.sent, ttl, now);
            }
        }
    }

    /// A lease has ended.
    pub fn lost(&mut self, lease_id: &str, cause: &str, now: Duration) {
        for key in self.keys(&Arc::from(lease_id)) {
            if let Some(guard) = self.guards.remove(&key) {
                let (cause, until) = (cause.to_owned(), guard.term.latest_end(now));
                lose(&guard.state, Loss::Gone { cause: cause.clone() });
                self.gone.insert(key.0, GoneLease { cause, until });
            }
        }
    }

    /// The stream was closed, because there are no leases.
    pub fn closed(&mut self) {
        self.beat = None;
        self.is_asked = false;
    }

    /// The stream has ended. Returns whether it worked: it answered its last beat.
    pub fn stream_ended(&mut self) -> bool {
        self.closed();
        for guard in self.guards.values_mut() {
            guard.is_named = false;
        }
        std::mem::replace(&mut self.stream, StreamHealth::Failed) == StreamHealth::Working
    }

    /// When the next renewal by a call is due.
    pub fn call_due(&self) -> Option<Duration> {
        self.guards.values().filter_map(|guard| self.call_due_of(guard)).min()
    }

    /// Begins the renewals by calls that are due.
    pub fn begin_calls(&mut self, now: Duration) -> Vec<DueRenewal> {
        let mut due = Vec::new();
        for ((lease_id, _), guard) in &self.guards {
            if self.call_due_of(guard).is_some_and(|at| at <= now) {
                let left = guard.term.end.saturating_sub(now);
                due.push(DueRenewal {
                    lease_id: Arc::clone(lease_id),
                    limit: guard.term.renewal_deadline().min(left),
                });
            }
        }
        due.dedup_by(|a, b| a.lease_id == b.lease_id);
        for renewal in &due {
            self.each(&renewal.lease_id, |guard| guard.call.is_sent = true);
        }
        due
    }

    /// A renewal by a call, which was sent at `sent`, succeeded. One without time is a failure.
    pub fn call_renewed(&mut self, lease_id: &Arc<str>, sent: Duration, ttl: Duration, now: Duration) {
        if ttl.is_zero() {
            return self.call_failed(lease_id, now);
        }
        self.renewed(lease_id, sent, ttl, now);
        self.each(lease_id, |guard| {
            guard.call.is_sent = false;
            guard.call.backoff.reset();
        });
    }

    /// A renewal by a call failed for a reason that may be transient. The end of the term decides.
    pub fn call_failed(&mut self, lease_id: &Arc<str>, now: Duration) {
        self.each(lease_id, |guard| {
            guard.call.is_sent = false;
            guard.call.not_before = now + guard.call.backoff.pause();
        });
    }

    fn call_due_of(&self, guard: &Guard) -> Option<Duration> {
        let due = guard.term.call_due(self.stream != StreamHealth::Failed);
        (!guard.call.is_sent).then_some(due.max(guard.call.not_before))
    }

    fn renewed(&mut self, lease_id: &Arc<str>, sent: Duration, ttl: Duration, now: Duration) {
        self.each(lease_id, |guard| {
            // A lease whose time has passed was reported as lost.
            if now < guard.term.end {
                guard.term = guard.term.renewed(sent, ttl);
                let term = guard.term;
                update(&guard.state, LeaseState::Held(term));
            }
        });
    }

    fn keys(&self, lease_id: &Arc<str>) -> Vec<(Arc<str>, u64)> {
        let of_lease = (Arc::clone(lease_id), 0)..=(Arc::clone(lease_id), u64::MAX);
        self.guards.range(of_lease).map(|(key, _)| key.clone()).collect()
    }

    fn each(&mut self, lease_id: &Arc<str>, change: impl FnMut(&mut Guard)) {
        let of_lease = (Arc::clone(lease_id), 0)..=(Arc::clone(lease_id), u64::MAX);
        self.guards.range_mut(of_lease).map(|(_, guard)| guard).for_each(change);
    }
}

fn lose(state: &watch::Sender<LeaseState>, loss: Loss) {
    update(state, LeaseState::Lost(loss));
}

/// Changes the state that a guard shows. A lease that was lost stays lost.
fn update(state: &watch::Sender<LeaseState>, to: LeaseState) {
    state.send_if_modified(|state| {
        let is_held = matches!(state, LeaseState::Held(_));
        if is_held {
            *state = to;
        }
        is_held
    });
}
