//! The time for which a client may rely on a lease, and when it is renewed.

use std::fmt;
use std::time::Duration;

use super::calls::CALL;

/// The renewals per TTL: a lease is renewed after a third of its TTL, so that two more attempts are
/// possible.
const RENEWALS_IN_TTL: u32 = 3;
/// A beat is sent this part of the TTL later if the server does not ask for it.
const ASK_DELAYS_IN_TTL: u32 = 24;
/// A lease that no stream has renewed this part of the TTL later is renewed by a call of its own.
const ANSWER_DELAYS_IN_TTL: u32 = 12;
/// The maximum of that delay.
const MAX_ANSWER_DELAY: Duration = Duration::from_secs(5);
/// A server that does not answer a beat within this part of the TTL hangs.
const ANSWERS_IN_TTL: u32 = 2;
/// The longest interval between beats, and between renewals by calls where no stream works: the end of a lease at another
/// server is known after this time. Also the longest time for an answer to a beat.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// The deadline of one renewal is the TTL divided by this, so that another attempt can follow.
const DEADLINES_IN_TTL: u32 = 6;
/// The minimum deadline of a renewal, because a busy machine may need this long.
const MIN_RENEWAL_DEADLINE: Duration = Duration::from_millis(400);
/// The minimum time after which a server that does not answer a beat hangs.
const MIN_ANSWER_LIMIT: Duration = Duration::from_millis(1500);

/// Why a lease is not valid any more.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The server reported that it has ended.
    Gone {
        /// `expired`, `released`, `forced`, or `unknown`.
        cause: String,
    },
    /// Its time has passed without a successful renewal: it may have ended.
    Unrenewed,
    /// Its guard released it, or was dropped.
    GivenBack,
}

impl Loss {
    /// In one word: `expired`, `released`, `forced`, `unknown`, or `unrenewed` if no renewal was confirmed in time.
    pub fn cause(&self) -> &str {
        match self {
            Self::Gone { cause } => cause,
            Self::Unrenewed => "unrenewed",
            Self::GivenBack => "released",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone { cause } => write!(f, "the lease is gone: {cause}"),
            Self::Unrenewed => f.write_str("the lease may be lost: no renewal was answered in time"),
            Self::GivenBack => f.write_str("the lease was given back"),
        }
    }
}

/// The validity of a lease, on the clock since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeaseTerm {
    /// The earliest time of its grant or last renewal.
    begin: Duration,
    /// Its TTL from then.
    ttl: Duration,
    /// The time until which the client may rely on it. A renewal never shortens it.
    pub end: Duration,
}

impl LeaseTerm {
    /// The term of a lease that was granted at `begin` or later.
    pub(super) fn granted(begin: Duration, ttl: Duration) -> Self {
        Self {
            begin,
            ttl,
            end: begin + ttl,
        }
    }

    /// The term after a renewal that was sent at `sent`.
    pub(super) fn renewed(self, sent: Duration, ttl: Duration) -> Self {
        Self {
            begin: self.begin.max(sent),
            ttl,
            end: self.end.max(sent + ttl),
        }
    }

    /// When a renewal by a call of its own is due: later while a stream renews the lease.
    pub(super) fn call_due(self, has_stream: bool) -> Duration {
        let delay = if has_stream {
            (self.ttl / ANSWER_DELAYS_IN_TTL).min(MAX_ANSWER_DELAY)
        } else {
            Duration::ZERO
        };
        self.begin + (self.ttl / RENEWALS_IN_TTL).min(MAX_INTERVAL) + delay
    }

    /// When the next beat is due if the last one was sent at `last`. A server asks for it after a third of the TTL; the
    /// client does not wait for a server that asks late.
    pub(super) fn beat_due(self, last: Option<Duration>) -> Duration {
        let interval = self.ttl / RENEWALS_IN_TTL + self.ttl / ASK_DELAYS_IN_TTL;
        last.unwrap_or_default().max(self.begin) + interval.min(MAX_INTERVAL)
    }

    /// The time within which a server answers a beat with this lease, unless it hangs.
    pub(super) fn answer_limit(self) -> Duration {
        (self.ttl / ANSWERS_IN_TTL).clamp(MIN_ANSWER_LIMIT, MAX_INTERVAL)
    }

    /// The class of its interval between beats: within a class the intervals differ by less than a factor of 4. The
    /// shortest TTL of a stream's leases sets the interval for all of them.
    pub(super) fn interval_class(self) -> u32 {
        let interval = (self.ttl / RENEWALS_IN_TTL).min(MAX_INTERVAL);
        interval.as_millis().max(1).ilog2() / 2
    }

    /// The time after which no lease of this TTL that was granted or renewed before `now` is held.
    pub(super) fn latest_end(self, now: Duration) -> Duration {
        now + self.ttl
    }

    /// The deadline of one renewal.
    pub(super) fn renewal_deadline(self) -> Duration {
        (self.ttl / DEADLINES_IN_TTL).max(MIN_RENEWAL_DEADLINE).min(CALL)
    }
}

/// The known state of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// Held until the end of this term.
    Held(LeaseTerm),
    /// Not valid any more.
    Lost(Loss),
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_call_is_due_after_a_third_of_the_ttl_and_later_beside_a_stream() {
        let term = LeaseTerm::granted(at(100), TTL);
        assert_eq!(
            (term.call_due(false), term.call_due(true)),
            (at(110), at(110) + TTL / 12)
        );
        let renewed = term.renewed(at(112), TTL);
        assert_eq!((renewed.call_due(false), renewed.end), (at(122), at(142)));
    }

    #[test]
    fn a_renewal_with_a_shorter_ttl_does_not_shorten_the_term() {
        let renewed = LeaseTerm::granted(at(100), TTL).renewed(at(101), at(3));
        assert_eq!((renewed.call_due(false), renewed.end), (at(102), at(130)));
    }

    #[test]
    fn a_beat_is_due_before_a_call_and_every_half_minute_at_least() {
        let term = LeaseTerm::granted(at(100), TTL);
        assert_eq!(term.beat_due(None), at(111) + Duration::from_millis(250));
        assert_eq!(term.beat_due(Some(at(105))), at(116) + Duration::from_millis(250));
        let long = LeaseTerm::granted(at(100), at(3600));
        assert_eq!(long.beat_due(Some(at(200))), at(230));
    }

    // G162c
    #[test]
    fn the_end_of_a_long_lease_is_known_within_half_a_minute_also_without_answers() {
        let long = LeaseTerm::granted(at(100), at(3600));
        assert_eq!((long.call_due(false), long.call_due(true)), (at(130), at(135)));
        assert_eq!(long.answer_limit(), at(30));
        // For any TTL, an answered beat comes before the call.
        for ttl in (1..400).map(at) {
            let term = LeaseTerm::granted(at(100), ttl);
            assert!(term.beat_due(None) < term.call_due(true), "{ttl:?}");
        }
    }

    #[test]
    fn terms_of_one_class_have_similar_intervals() {
        let class = |seconds| LeaseTerm::granted(at(0), at(seconds)).interval_class();
        assert!(class(1) < class(10) && class(10) < class(60), "{}", class(10));
        assert_eq!(class(90), class(86_400), "beats are sent every half minute at least");
    }

    #[test]
    fn the_deadline_of_a_renewal_leaves_time_for_further_attempts() {
        assert_eq!(LeaseTerm::granted(at(0), TTL).renewal_deadline(), at(5));
        assert_eq!(
            LeaseTerm::granted(at(0), at(3)).renewal_deadline(),
            Duration::from_millis(500)
        );
        assert_eq!(
            LeaseTerm::granted(at(0), at(1)).renewal_deadline(),
            MIN_RENEWAL_DEADLINE
        );
    }
}
