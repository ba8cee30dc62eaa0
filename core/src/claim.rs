//! Decides which claims of a queue hold: **the holders are the longest prefix of the queue whose permits fit**.
//!
//! Mutex, reader, writer and semaphore are all claims for permits of a limit in one ordered queue ([`Mode`]). Where
//! limits differ, the smallest one in the prefix counts. Only this file decides which of them may hold. The rule is
//! *stable*: once a claim is within the prefix, neither later arrivals nor the removal of others push it out. It may
//! therefore be evaluated on any snapshot that contains the claim.
//!
//! Pure values: no clock, no task, no store.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::name::{ClaimId, FencingToken, Identity, Metadata, Mode, Owner};

/// The permits that a prefix of a queue uses, and the limits of its claims, of which the smallest counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    used: u64,
    claims: usize,
    /// How many of the claims are shared. A semaphore claim holds beside none of these, also where it was enqueued before
    /// they were seen.
    shared: usize,
    /// The smallest limit, and the number of claims that have it.
    limit: u64,
    at_limit: usize,
    /// The larger limits, each with the number of its claims. Most prefixes have one limit, which takes no tree.
    larger: BTreeMap<u64, usize>,
}

impl Default for Prefix {
    fn default() -> Self {
        Self {
            used: 0,
            claims: 0,
            shared: 0,
            limit: u64::MAX,
            at_limit: 0,
            larger: BTreeMap::new(),
        }
    }
}

impl Prefix {
    /// Whether a claim of this mode directly after the prefix would belong to it.
    pub fn admits(&self, mode: Mode) -> bool {
        let mixes = match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.shared == self.claims,
            Mode::Semaphore { .. } => self.shared == 0,
        };
        mixes && self.used + mode.permits() <= self.limit.min(mode.limit())
    }

    /// Adds the next claim of the queue to the prefix.
    pub fn push(&mut self, mode: Mode) {
        self.used += mode.permits();
        self.claims += 1;
        self.shared += usize::from(mode == Mode::Shared);
        match mode.limit().cmp(&self.limit) {
            Ordering::Equal => self.at_limit += 1,
            Ordering::Greater => *self.larger.entry(mode.limit()).or_default() += 1,
            Ordering::Less => {
                if self.at_limit > 0 {
                    self.larger.insert(self.limit, self.at_limit);
                }
                (self.limit, self.at_limit) = (mode.limit(), 1);
            }
        }
    }

    /// Removes a claim from the prefix. The smallest limit of the claims that are left counts from then on.
    pub fn remove(&mut self, mode: Mode) {
        self.used -= mode.permits();
        self.claims -= 1;
        self.shared -= usize::from(mode == Mode::Shared);
        if mode.limit() == self.limit {
            self.at_limit -= 1;
            if self.at_limit == 0 {
                (self.limit, self.at_limit) = self.larger.pop_first().unwrap_or((u64::MAX, 0));
            }
        } else if let Entry::Occupied(mut claims) = self.larger.entry(mode.limit()) {
            *claims.get_mut() -= 1;
            if *claims.get() == 0 {
                claims.remove();
            }
        }
    }

    /// The number of claims in the prefix.
    pub fn len(&self) -> usize {
        self.claims
    }

    /// Whether the prefix has no claim.
    pub fn is_empty(&self) -> bool {
        self.claims == 0
    }
}

/// The number of claims from the head of a queue that may hold together: the rule itself.
pub fn prefix_len(queue: impl IntoIterator<Item = Mode>) -> usize {
    let mut prefix = Prefix::default();
    for mode in queue {
        if !prefix.admits(mode) {
            break;
        }
        prefix.push(mode);
    }
    prefix.len()
}

/// Why a claim, or one hold of it, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Its client released it.
    Released,
    /// Its TTL expired.
    Expired,
    /// An operator released it.
    Forced,
    /// It was granted to a call that had ended, and was undone.
    Undone,
    /// It was removed from the queue while it waited.
    Cancelled,
}

impl Cause {
    /// The name of this cause in errors and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Forced => "forced",
            Self::Undone => "taken back",
            Self::Cancelled => "left",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A claim that holds, as `inspect` returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The claim's id.
    pub claim: ClaimId,
    /// The owner label that the caller chose.
    pub owner: Owner,
    /// The authenticated identity of the caller.
    pub identity: Identity,
    /// Its lock mode.
    pub mode: Mode,
    /// Its fencing token.
    pub token: FencingToken,
    /// The time until it expires without a renewal.
    pub remaining: Duration,
    /// The number of its holds.
    pub holds: u32,
    /// The metadata that the caller chose.
    pub metadata: Metadata,
    /// When it was granted, for display.
    pub since: SystemTime,
}

/// A claim that waits, as `inspect` returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// The claim's id.
    pub claim: ClaimId,
    /// The owner label that the caller chose.
    pub owner: Owner,
    /// The authenticated identity of the caller.
    pub identity: Identity,
    /// The lock mode that it requests.
    pub mode: Mode,
    /// The metadata that the caller chose.
    pub metadata: Metadata,
    /// When it was enqueued, for display.
    pub since: SystemTime,
}

/// Who made a claim, and what it shows to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimLabels {
    /// The owner label that the caller chose.
    pub owner: Owner,
    /// The authenticated identity of the caller.
    pub identity: Identity,
    /// The metadata that the caller chose; none if the claim has ended and the store remembers no more of it.
    pub metadata: Metadata,
}

impl ClaimLabels {
    /// These labels.
    pub fn of(owner: &Owner, identity: &Identity, metadata: &Metadata) -> Self {
        Self {
            owner: owner.clone(),
            identity: identity.clone(),
            metadata: metadata.clone(),
        }
    }
}

impl Holder {
    /// Who made it, and what it shows.
    pub fn labels(&self) -> ClaimLabels {
        ClaimLabels::of(&self.owner, &self.identity, &self.metadata)
    }
}

impl Waiter {
    /// Who made it, and what it shows.
    pub fn labels(&self) -> ClaimLabels {
        ClaimLabels::of(&self.owner, &self.identity, &self.metadata)
    }
}

/// A lock's queue at one moment. Every holder precedes every waiter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// The holders in queue order, cut at the requested number.
    pub holders: Vec<Holder>,
    /// The waiters in queue order, cut at the requested number.
    pub waiters: Vec<Waiter>,
    /// The number of all holders.
    pub holder_count: usize,
    /// The number of all waiters.
    pub waiter_count: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sem(permits: u32, limit: u32) -> Mode {
        Mode::semaphore(permits, limit).unwrap()
    }

    #[test]
    fn the_rule_in_examples() {
        use Mode::{Exclusive as X, Shared as S};
        for (queue, holders) in [
            (vec![], 0),
            (vec![X, X], 1),
            (vec![X, S], 1),
            (vec![S, S, X, S], 2),
            (vec![sem(2, 3), sem(2, 3), sem(1, 3)], 1),
            (vec![sem(2, 3), sem(1, 3), sem(1, 3)], 2),
            (vec![sem(1, 3), X, sem(1, 3)], 1),
            (vec![X, sem(1, 3)], 1),
            (vec![sem(1, 3), S, sem(1, 3)], 1),
            (vec![S, S, sem(1, 3)], 2),
            (vec![sem(1, 5), sem(1, 5), sem(1, 3), sem(1, 5)], 3),
            (vec![sem(1, 5), sem(1, 5), sem(1, 5), sem(1, 3)], 3),
            (vec![sem(1, 3), sem(3, 5), sem(1, 3)], 1),
            (vec![sem(1, 1), sem(1, 5), sem(1, 5)], 1),
        ] {
            assert_eq!(prefix_len(queue.clone()), holders, "{queue:?}");
        }
    }

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![
            Just(Mode::Exclusive),
            Just(Mode::Shared),
            (1u32..4, 3u32..8).prop_map(|(permits, limit)| sem(permits, limit)),
        ]
    }

    /// Many permits of few limits, so that the prefix is long and its limits are mixed.
    fn permit() -> impl Strategy<Value = Mode> {
        (1u32..3, 8u32..14).prop_map(|(permits, limit)| sem(permits, limit))
    }

    /// The subset that a queue accepts: each claim is compatible with all earlier ones.
    fn accepted(modes: Vec<Mode>) -> Vec<Mode> {
        let mut queue: Vec<Mode> = Vec::new();
        for mode in modes {
            if queue.iter().all(|other| other.mixes(mode)) {
                queue.push(mode);
            }
        }
        queue
    }

    proptest! {
        #[test]
        fn arrivals_and_removals_never_push_a_claim_out_of_the_prefix(
            modes in prop::collection::vec(mode(), 1..12), more in mode(), removed in any::<prop::sample::Index>()
        ) {
            let before = prefix_len(modes.clone());
            let mut longer = modes.clone();
            longer.push(more);
            prop_assert!(prefix_len(longer) >= before);
            let removed = removed.index(modes.len());
            let mut shorter = modes.clone();
            shorter.remove(removed);
            prop_assert!(prefix_len(shorter) >= before - usize::from(removed < before));
        }

        #[test]
        fn holders_fit_their_limits_and_exclusive_holds_alone(modes in prop::collection::vec(mode(), 1..12)) {
            let holders = &modes[..prefix_len(modes.clone())];
            prop_assert!(!holders.is_empty());
            prop_assert!(holders.len() == 1 || !holders.contains(&Mode::Exclusive));
            let used: u64 = holders.iter().map(|mode| mode.permits()).sum();
            prop_assert!(holders.iter().all(|mode| used <= mode.limit()));
        }

        #[test]
        fn an_incremental_prefix_equals_the_rule(
            modes in prop_oneof![prop::collection::vec(mode(), 1..40), prop::collection::vec(permit(), 1..40)], steps in prop::collection::vec(any::<prop::sample::Index>(), 0..40)
        ) {
            let mut queue = accepted(modes);
            let mut prefix = Prefix::default();
            let grow = |prefix: &mut Prefix, queue: &[Mode]| {
                while let Some(&next) = queue.get(prefix.len()).filter(|next| prefix.admits(**next)) {
                    prefix.push(next);
                }
            };
            grow(&mut prefix, &queue);
            for step in steps {
                if queue.is_empty() { break; }
                let at = step.index(queue.len());
                let inside = at < prefix.len();
                let removed = queue.remove(at);
                if inside { prefix.remove(removed); }
                grow(&mut prefix, &queue);
                prop_assert_eq!(prefix.len(), prefix_len(queue.clone()));
                let mut counted = Prefix::default();
                queue[..prefix.len()].iter().for_each(|mode| counted.push(*mode));
                prop_assert_eq!(&prefix, &counted);
            }
        }
    }
}
