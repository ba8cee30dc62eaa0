//! The one rule of the house: **the holders are the longest prefix of the queue whose permits fit**.
//!
//! Mutex, reader, writer and semaphore are all claims for permits of a limit in one ordered queue
//! ([`Mode`]), and this file alone says who of them may hold. The rule is *stable*: once a claim is
//! within the prefix, neither later arrivals nor the leaving of others push it out, so it may be
//! judged from any snapshot that contains the claim.
//!
//! Pure values only: no clock, no task, no store.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::name::{ClaimId, FencingToken, Identity, Metadata, Mode, Owner};

/// The permits that a prefix of a queue uses, and the smallest limit in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    used: u64,
    limit: u64,
    claims: usize,
}

impl Default for Prefix {
    fn default() -> Self {
        Self {
            used: 0,
            limit: u64::MAX,
            claims: 0,
        }
    }
}

impl Prefix {
    /// Whether a claim of this mode right behind the prefix would belong to it.
    pub fn admits(&self, mode: Mode) -> bool {
        self.used + mode.permits() <= self.limit.min(mode.limit())
    }

    /// Takes the next claim of the queue into the prefix.
    pub fn push(&mut self, mode: Mode) {
        self.used += mode.permits();
        self.limit = self.limit.min(mode.limit());
        self.claims += 1;
    }

    /// Lets a claim leave the prefix. The smallest limit is kept until the prefix is empty: claims
    /// of different limits share a queue only with exclusive ones, which share a prefix with nobody.
    pub fn remove(&mut self, mode: Mode) {
        self.used -= mode.permits();
        self.claims -= 1;
        if self.claims == 0 {
            *self = Self::default();
        }
    }

    /// How many claims the prefix has.
    pub fn len(&self) -> usize {
        self.claims
    }

    /// Whether no claim is in it.
    pub fn is_empty(&self) -> bool {
        self.claims == 0
    }
}

/// How many claims from the head of a queue may hold together: the rule itself.
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
    /// Its client gave it back.
    Released,
    /// Its TTL ran out.
    Expired,
    /// An operator removed it.
    Forced,
    /// It was granted to a call that had ended, and undone.
    TakenBack,
    /// It left while it waited.
    Left,
}

impl Cause {
    /// The word for this cause in errors and logs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Forced => "forced",
            Self::TakenBack => "taken back",
            Self::Left => "left",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A claim that holds, as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The claim's id.
    pub claim: ClaimId,
    /// Who holds, by its own label.
    pub owner: Owner,
    /// Who holds, as proven.
    pub identity: Identity,
    /// How it shares the lock.
    pub mode: Mode,
    /// Its fencing token.
    pub token: FencingToken,
    /// How long it lives without a renewal.
    pub remaining: Duration,
    /// How many holds it has.
    pub holds: u32,
    /// What it says about itself.
    pub metadata: Metadata,
    /// When it was granted, for display.
    pub since: SystemTime,
}

/// A claim that waits, as others may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// The claim's id.
    pub claim: ClaimId,
    /// Who waits, by its own label.
    pub owner: Owner,
    /// Who waits, as proven.
    pub identity: Identity,
    /// How it would share the lock.
    pub mode: Mode,
    /// What it says about itself.
    pub metadata: Metadata,
    /// When it came, for display.
    pub since: SystemTime,
}

/// A lock's queue at one moment: every holder is ahead of every waiter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// Who holds, in the order of the queue; the first ones when there are more than fit.
    pub holders: Vec<Holder>,
    /// Who waits, in the order of the queue; the first ones when there are more than fit.
    pub waiters: Vec<Waiter>,
    /// How many hold in all.
    pub holder_count: usize,
    /// How many wait in all.
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
        ] {
            assert_eq!(prefix_len(queue.clone()), holders, "{queue:?}");
        }
    }

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![
            Just(Mode::Exclusive),
            Just(Mode::Shared),
            (1u32..4, 3u32..5).prop_map(|(permits, limit)| sem(permits, limit)),
        ]
    }

    /// What a queue accepts: each claim mixes with all that are there.
    fn mixed(modes: Vec<Mode>) -> Vec<Mode> {
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
        fn a_claim_within_the_prefix_is_never_pushed_out(
            modes in prop::collection::vec(mode(), 1..12), more in mode(), gone in any::<prop::sample::Index>()
        ) {
            let before = prefix_len(modes.clone());
            let mut longer = modes.clone();
            longer.push(more);
            prop_assert!(prefix_len(longer) >= before);
            let gone = gone.index(modes.len());
            let mut shorter = modes.clone();
            shorter.remove(gone);
            prop_assert!(prefix_len(shorter) >= before - usize::from(gone < before));
        }

        #[test]
        fn holders_fit_and_exclude_as_their_modes_say(modes in prop::collection::vec(mode(), 1..12)) {
            let holders = &modes[..prefix_len(modes.clone())];
            prop_assert!(!holders.is_empty());
            prop_assert!(holders.len() == 1 || !holders.contains(&Mode::Exclusive));
            let used: u64 = holders.iter().map(|mode| mode.permits()).sum();
            prop_assert!(holders.iter().all(|mode| used <= mode.limit()));
        }

        #[test]
        fn a_prefix_kept_step_by_step_is_the_rule(
            modes in prop::collection::vec(mode(), 1..40), steps in prop::collection::vec(any::<prop::sample::Index>(), 0..40)
        ) {
            let mut queue = mixed(modes);
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
                let gone = queue.remove(at);
                if inside { prefix.remove(gone); }
                grow(&mut prefix, &queue);
                prop_assert_eq!(prefix.len(), prefix_len(queue.clone()));
            }
        }
    }
}
