//! Chance that can be repeated.

use std::ops::Range;
use std::time::Duration;

/// Random numbers from a seed, by SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// An index into so many.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("an index")
    }

    /// A time below a bound, to the microsecond.
    pub fn time(&mut self, bound: Duration) -> Duration {
        let micros = u64::try_from(bound.as_micros()).expect("a short time");
        Duration::from_micros(self.below(micros.max(1)))
    }

    /// Heads or tails.
    pub fn heads(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Whether something happens that does so many times in a thousand.
    pub fn happens(&mut self, in_a_thousand: u64) -> bool {
        in_a_thousand > 0 && self.below(1_000) < in_a_thousand
    }

    /// A time in this range of microseconds.
    pub fn within(&mut self, range: &Range<u64>) -> Duration {
        let width = range.end.saturating_sub(range.start);
        Duration::from_micros(range.start + self.below(width.max(1)))
    }
}
