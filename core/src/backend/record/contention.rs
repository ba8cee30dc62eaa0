//! How a server that loses the races for a lock asks to commit next.
//!
//! Each commit compares the version of the record. A server whose commits take longer than the pauses between those of a
//! nearer server would never find the version that it has read: it is farther from the store, or short of processor. So it
//! asks for a reservation, which lasts for as long as its own commits take.

use std::time::Duration;

use super::store::{LockTime, ServerId};

/// After how many losses in a row a reservation is asked for an urgent commit, and for another one: a lease that is not
/// renewed ends.
const LOSSES: (u32, u32) = (1, 4);
/// The longest reservation.
const LONGEST: Duration = Duration::from_secs(1);
/// The shortest pause before a server tries again whether a reservation of another one is over, and the bounds of the longest
/// one, which is twice as long as its own commits take.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(25));

/// The last reservation of this server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Last {
    /// It has none that counts.
    #[default]
    None,
    /// The lock is reserved for it.
    Reserved,
    /// It has committed under it.
    Used,
    /// This server has got the next one since.
    FollowedBy(ServerId),
}

/// One server's races for one lock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contention {
    /// How many commits in a row were refused because another server was faster.
    losses: u32,
    /// How long commits took lately: the longest counts, and fades.
    took: Duration,
    last: Last,
    /// Whether it asked for a reservation since its last commit took effect. It may have one then, or get the next.
    asked: bool,
}

impl Contention {
    /// For how long to reserve the lock if the next commit is lost, which may be urgent: one with a renewal or release. No
    /// server gets two reservations in a row while another one waits for its own: it asks again once the one after its own
    /// is over.
    pub fn reserve(&mut self, is_urgent: bool) -> Option<Duration> {
        let losses = if is_urgent { LOSSES.0 } else { LOSSES.1 };
        let asks = self.losses >= losses && !matches!(self.last, Last::FollowedBy(_));
        self.asked |= asks;
        // It may begin while a commit that is refused is on its way, or while this server pauses.
        asks.then(|| (5 * self.took + 2 * SHORTEST_PAUSE).min(LONGEST))
    }

    /// A commit took so long, with what settled it.
    pub fn took(&mut self, time: Duration) {
        self.took = time.max(self.took - self.took / 4);
    }

    /// Whether others may have to wait for this server: its next commit gives its reservation up, also if it changes nothing.
    pub fn has_asked(&self) -> bool {
        self.asked
    }

    /// Its verbs failed, and nothing may be left to commit: what it asked for ends by its time.
    pub fn failed(&mut self) {
        self.asked = false;
    }

    /// Its verbs were answered: those that follow have lost no race yet.
    pub fn answered(&mut self) {
        self.losses = 0;
    }

    /// A commit took effect.
    pub fn won(&mut self) {
        self.asked = false;
        if self.last == Last::Reserved {
            self.last = Last::Used;
        }
    }

    /// A commit was refused. Returns for how long to pause, if the lock is reserved for another server.
    pub fn lost(
        &mut self,
        was_faster: bool,
        (own, now): (ServerId, LockTime),
        reserved: Option<(ServerId, LockTime)>,
    ) -> Option<Duration> {
        let reserved = reserved.filter(|(_, until)| *until > now);
        let other = reserved.filter(|(server, _)| *server != own);
        self.losses += u32::from(was_faster || other.is_some());
        self.last = match (self.last, reserved) {
            (_, Some((server, _))) if server == own => Last::Reserved,
            (Last::Used, Some((server, _))) => Last::FollowedBy(server),
            (Last::Used, None) => Last::Used,
            (Last::FollowedBy(after), Some((server, _))) if server == after => self.last,
            _ => Last::None,
        };
        // It ends with the commit that it is for, mostly long before its time.
        let longest = (2 * self.took).clamp(LONGEST_PAUSE.0, LONGEST_PAUSE.1);
        other.map(|(_, until)| Duration::from_micros((until.0 - now.0) / 8).clamp(SHORTEST_PAUSE, longest))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn server(id: u64) -> ServerId {
        ServerId(NonZeroU64::new(id).unwrap())
    }

    /// A commit of the first server is refused while the lock is reserved for this one for so long. Returns the pause.
    fn lost(contention: &mut Contention, reserved: Option<(u64, u64)>) -> Option<Duration> {
        let reserved = reserved.map(|(id, ms)| (server(id), LockTime(5 + 1_000 * ms)));
        contention.lost(true, (server(1), LockTime(5)), reserved)
    }

    #[test]
    fn a_lease_that_is_renewed_or_released_is_reserved_for_after_one_loss_and_other_verbs_after_four() {
        let mut contention = Contention::default();
        let mut asks = Vec::new();
        for _ in 0..=4 {
            asks.push([true, false].map(|is_urgent| contention.reserve(is_urgent).is_some()));
            assert_eq!(lost(&mut contention, None), None);
        }
        assert_eq!(
            asks,
            [
                [false, false],
                [true, false],
                [true, false],
                [true, false],
                [true, true]
            ]
        );
        contention.answered();
        assert_eq!(contention.reserve(true), None);
    }

    #[test]
    fn a_commit_that_is_refused_because_of_the_reservation_of_another_server_is_a_loss() {
        let mut contention = Contention::default();
        for (id, asks) in [(1, false), (2, true)] {
            contention.lost(false, (server(1), LockTime(5)), Some((server(id), LockTime(9))));
            assert_eq!(contention.reserve(true).is_some(), asks, "server {id}");
        }
    }

    #[test]
    fn a_reservation_lasts_for_five_of_the_longest_commits_of_late_and_at_most_a_second() {
        let mut contention = Contention::default();
        lost(&mut contention, None);
        for (took, lasts) in [(40, 202), (10, 152), (80, 402), (400, 1_000)] {
            contention.took(took * MILLI);
            assert_eq!(contention.reserve(true), Some(lasts * MILLI), "{took} ms");
        }
    }

    #[test]
    fn a_server_that_used_a_reservation_asks_again_once_the_next_one_is_over() {
        let mut contention = Contention::default();
        let asks = |contention: &mut Contention, reserved| {
            lost(contention, reserved);
            contention.reserve(true).is_some()
        };
        assert!(asks(&mut contention, Some((1, 80))));
        contention.won();
        assert!(!asks(&mut contention, Some((2, 80))), "another one waited");
        assert!(!asks(&mut contention, Some((2, 40))));
        assert!(asks(&mut contention, Some((3, 80))), "its turn is over");
        assert!(asks(&mut contention, Some((1, 80))));
        contention.won();
        assert!(asks(&mut contention, None), "nobody waited");
        assert!(asks(&mut contention, Some((1, 80))));
        contention.won();
        assert!(!asks(&mut contention, Some((2, 80))));
        assert!(asks(&mut contention, Some((2, 0))), "it has ended");
    }

    #[test]
    fn a_server_looks_again_and_again_whether_the_reservation_of_another_one_is_over() {
        for (took, most) in [(0, 4), (5, 10), (90, 25)] {
            let mut contention = Contention::default();
            contention.took(took * MILLI);
            let pauses = [(2, 1), (2, 16), (2, 900), (1, 80)].map(|reserved| lost(&mut contention, Some(reserved)));
            assert_eq!(pauses, [Some(MILLI), Some(2 * MILLI), Some(most * MILLI), None]);
        }
    }
}
