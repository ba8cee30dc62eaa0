//! The pauses between the attempts on something that fails: each is twice as long as the one before, up to a limit.

use std::time::Duration;

/// The pauses that follow. A constant of this type says how one kind of attempt is repeated.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `first` to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        let next = first;
        Self { first, longest, next }
    }

    /// The pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let doubled = (self.next * 2).min(self.longest);
        std::mem::replace(&mut self.next, doubled)
    }

    /// Begins again with the first pause, because an attempt succeeded.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A pause of half to all of `pause`, so that many do not do the same at once.
pub fn jitter(pause: Duration) -> Duration {
    let mut byte = [0];
    // If no random bytes are available, all pause for half of `pause`.
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause * u32::from(byte[0]) / 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_until_an_attempt_succeeds() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_millis(35));
        let mut backoff = Backoff::new(first, longest);
        let pauses = [(); 4].map(|()| backoff.pause());
        assert_eq!(pauses, [first, 2 * first, longest, longest]);
        backoff.reset();
        assert_eq!(backoff.pause(), first);
    }
}
