//! Which servers live: each raises a counter in the store.
//!
//! A server counts another one as dead when its counter stood still over [`BEATS`] of its own beats that followed each
//! other without a longer gap. No clock is compared, and a store that pauses kills nobody. That a living server is
//! taken for dead costs its waiters their places, never a lease.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::store::ServerId;

/// How often a server raises its counter.
pub const INTERVAL: Duration = Duration::from_millis(1_500);
/// Over how many further beats of this server a counter stands still when its server is dead.
const BEATS: u32 = 4;
/// The least time that these beats span.
const SPAN: Duration = Duration::from_secs(6);
/// The longest gap between two of them.
const GAP: Duration = Duration::from_secs(3);
/// For how long a server is remembered that no counter and no lock names.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The servers of a namespace, as one of them sees them.
#[derive(Debug)]
pub struct Liveness {
    own: ServerId,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: HashMap<ServerId, Seen>,
    /// When the last beat that succeeded was sent.
    last: Option<Instant>,
}

#[derive(Debug)]
struct Seen {
    counter: Option<u64>,
    /// When this counter was seen first, and how many beats have seen it since.
    since: Instant,
    beats: u32,
    named: Instant,
    dead: bool,
}

impl Liveness {
    /// Sees nobody yet.
    pub fn new(own: ServerId) -> Self {
        Self {
            own,
            state: Mutex::default(),
        }
    }

    /// A beat that was sent and answered at these times returned these counters. Returns the servers that are dead since.
    pub fn beaten(&self, counters: &[(ServerId, u64)], (sent, answered): (Instant, Instant)) -> Vec<ServerId> {
        let mut state = self.state.lock();
        let is_gap = state
            .last
            .replace(sent)
            .is_none_or(|last| answered.duration_since(last) > GAP);
        let counters: HashMap<_, _> = counters.iter().copied().collect();
        for server in counters.keys().filter(|server| **server != self.own) {
            state
                .seen
                .entry(*server)
                .or_insert_with(|| Seen::new(None, answered))
                .named = answered;
        }
        state
            .seen
            .retain(|_, seen| answered.duration_since(seen.named) < FORGOTTEN_AFTER);
        let mut dead = Vec::new();
        for (server, seen) in &mut state.seen {
            let counter = counters.get(server).copied();
            if is_gap || counter != seen.counter {
                *seen = Seen {
                    named: seen.named,
                    ..Seen::new(counter, answered)
                };
                continue;
            }
            seen.beats += 1;
            let is_dead = seen.beats >= BEATS && sent.duration_since(seen.since) >= SPAN;
            if is_dead && !std::mem::replace(&mut seen.dead, is_dead) {
                dead.push(*server);
            }
        }
        dead
    }

    /// Whether a server that a lock names is dead. One that has no counter is observed from now on.
    pub fn is_dead(&self, server: ServerId, now: Instant) -> bool {
        if server == self.own {
            return false;
        }
        let mut state = self.state.lock();
        let seen = state.seen.entry(server).or_insert_with(|| Seen::new(None, now));
        seen.named = now;
        seen.dead
    }

    /// The other servers that are not known to be dead.
    pub fn living(&self) -> Vec<ServerId> {
        let state = self.state.lock();
        let living = state
            .seen
            .iter()
            .filter(|(_, seen)| !seen.dead && seen.counter.is_some());
        living.map(|(server, _)| *server).collect()
    }
}

impl Seen {
    fn new(counter: Option<u64>, now: Instant) -> Self {
        Self {
            counter,
            since: now,
            beats: 0,
            named: now,
            dead: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn server(number: u64) -> ServerId {
        ServerId(NonZeroU64::new(number).unwrap())
    }

    /// Beats at these times, in milliseconds; the counter of the other server each time. Which beat finds it dead.
    fn died_at(beats: &[(u64, Option<u64>)]) -> Option<usize> {
        let (own, other, begin) = (server(1), server(2), Instant::now());
        let liveness = Liveness::new(own);
        assert!(!liveness.is_dead(other, begin));
        beats.iter().position(|(at, counter)| {
            let now = begin + Duration::from_millis(*at);
            let counters: Vec<_> = counter
                .iter()
                .map(|counter| (other, *counter))
                .chain([(own, *at)])
                .collect();
            let dead = liveness.beaten(&counters, (now, now));
            assert_eq!(dead.contains(&other), liveness.is_dead(other, now));
            assert!(!liveness.is_dead(own, now));
            !dead.is_empty()
        })
    }

    #[test]
    fn a_server_is_dead_when_its_counter_stood_still_over_four_beats_in_six_seconds() {
        let still = |times: &[u64]| times.iter().map(|at| (*at, Some(7))).collect::<Vec<_>>();
        assert_eq!(died_at(&still(&[0, 1_500, 3_000, 4_500, 6_000])), Some(4));
        assert_eq!(
            died_at(&still(&[0, 1_000, 2_000, 3_000, 4_000, 5_000, 5_999, 6_000])),
            Some(7)
        );
        assert_eq!(died_at(&still(&[0, 3_000, 6_000, 9_000])), None, "three beats");
        assert_eq!(
            died_at(&still(&[0, 1_500, 3_000, 6_001, 7_500, 9_000, 10_500])),
            None,
            "a gap"
        );
        assert_eq!(
            died_at(&[(0, None), (1_500, None), (3_000, None), (4_500, None), (6_000, None)]),
            Some(4)
        );
        let rising = [
            (0, Some(1)),
            (1_500, Some(1)),
            (3_000, Some(1)),
            (4_500, Some(1)),
            (6_000, Some(2)),
            (7_500, Some(2)),
        ];
        assert_eq!(died_at(&rising), None);
    }
}
