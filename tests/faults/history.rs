//! What callers saw, written down while it happens and judged afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A lease as its caller saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Which lock.
    pub lock: String,
    /// Its token.
    pub token: u64,
    /// When the call was sent that was granted.
    pub sent: Instant,
    /// When its answer was there.
    pub granted: Instant,
    /// Until when its caller was sure of it: the end that it may count on, or the moment at which
    /// it sent its release.
    pub sure_until: Instant,
}

/// What is wrong with a history, each in a sentence: nothing, if the promises were kept.
pub fn faults(seen: &[Seen]) -> Vec<String> {
    let mut by_lock: BTreeMap<&str, Vec<&Seen>> = BTreeMap::new();
    for one in seen {
        by_lock.entry(&one.lock).or_default().push(one);
    }
    let mut faults = Vec::new();
    for (lock, mut leases) in by_lock {
        leases.sort_by_key(|lease| lease.granted);
        faults.extend(overlaps(lock, &leases));
        faults.extend(repeated(lock, &leases));
        faults.extend(fallen(lock, &leases));
    }
    faults
}

/// Two callers that were sure of one lock at one moment.
fn overlaps(lock: &str, by_grant: &[&Seen]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut longest: Option<&Seen> = None;
    // Who heard of its grant after its end was never sure.
    for lease in by_grant.iter().filter(|lease| lease.granted < lease.sure_until) {
        if let Some(other) = longest.filter(|other| lease.granted < other.sure_until) {
            faults.push(format!("{lock}: {} and {} held together", other.token, lease.token));
        }
        if longest.is_none_or(|other| other.sure_until < lease.sure_until) {
            longest = Some(lease);
        }
    }
    faults
}

fn repeated(lock: &str, leases: &[&Seen]) -> Vec<String> {
    let mut tokens = BTreeSet::new();
    let twice = leases.iter().filter(|lease| !tokens.insert(lease.token));
    twice
        .map(|lease| format!("{lock}: {} was granted twice", lease.token))
        .collect()
}

/// A grant that was asked for after another one was answered, and has no larger token.
fn fallen(lock: &str, by_grant: &[&Seen]) -> Vec<String> {
    let mut by_sent = by_grant.to_vec();
    by_sent.sort_by_key(|lease| lease.sent);
    let mut answered = by_grant.iter().peekable();
    let (mut highest, mut faults) = (0, Vec::new());
    for lease in by_sent {
        while let Some(earlier) = answered.next_if(|earlier| earlier.granted < lease.sent) {
            highest = highest.max(earlier.token);
        }
        if lease.token <= highest {
            faults.push(format!("{lock}: {} came after {highest}", lease.token));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A lease from these milliseconds: sent, granted, sure until.
    fn seen(start: Instant, token: u64, [sent, granted, until]: [u64; 3]) -> Seen {
        let at = |ms| start + Duration::from_millis(ms);
        Seen {
            lock: "lock".into(),
            token,
            sent: at(sent),
            granted: at(granted),
            sure_until: at(until),
        }
    }

    fn judged(leases: &[(u64, [u64; 3])]) -> Vec<String> {
        let start = Instant::now();
        let all: Vec<_> = leases
            .iter()
            .map(|(token, times)| seen(start, *token, *times))
            .collect();
        faults(&all)
    }

    #[test]
    fn a_good_history_has_no_faults() {
        assert!(judged(&[(1, [0, 1, 5]), (2, [0, 6, 9]), (3, [4, 9, 12])]).is_empty());
        // The first one heard of its grant when it was over.
        assert!(judged(&[(1, [0, 7, 3]), (2, [0, 6, 9])]).is_empty());
    }

    #[test]
    fn two_holders_at_once_are_seen() {
        assert_eq!(judged(&[(1, [0, 1, 5]), (2, [0, 4, 9])]).len(), 1);
        assert_eq!(judged(&[(1, [0, 1, 20]), (2, [0, 21, 22]), (3, [0, 2, 3])]).len(), 1);
    }

    #[test]
    fn a_token_that_repeats_or_falls_is_seen() {
        assert_eq!(judged(&[(2, [0, 1, 2]), (1, [3, 4, 5])]).len(), 1);
        assert_eq!(judged(&[(2, [0, 3, 4]), (2, [1, 5, 6])]).len(), 1);
    }
}
