//! Chance that can be repeated.

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

    /// A time below a bound, to the microsecond.
    pub fn time(&mut self, bound: Duration) -> Duration {
        let micros = u64::try_from(bound.as_micros()).expect("a short time");
        Duration::from_micros(self.below(micros.max(1)))
    }

    /// Heads or tails.
    pub fn heads(&mut self) -> bool {
        self.below(2) == 0
    }
}
