//! The wall clock. It scales tokens and dates what people see; it decides nothing about leases.
//!
//! Where a server's wall clock raises the tokens of a store for good, [`TokenClock`] judges first whether it can be right.
//!
//! A base that a wrong clock has raised would never come down again, and beyond the year 2255 no token would be
//! valid. If the clock is more than a year ahead of the last tokens, it is wrong or an old copy was restored, which
//! only an operator knows: the server grants nothing until then. If it is behind, tokens rise without it. A base
//! beyond the range has granted nothing, because its tokens are invalid, so it does not count.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use super::BackendError;
use crate::name::{FencingToken, InvalidField};
pub use crate::queue::claim_terms::micros;

/// No clock that is right is before 2020, in microseconds since 1970.
const EARLIEST: u64 = 1_577_836_800_000_000;
/// Tokens follow no clock beyond this: half of their range, in the year 2112.
pub const LATEST: u64 = FencingToken::MAX / 2;
/// A base of tokens that are this close to the end of their range is unusable: 12 days on their scale.
const RESERVE: u64 = 1 << 40;
const DAY: u64 = 86_400_000_000;
/// A clock that is further ahead of a store's tokens may be wrong.
const MAX_LEAD: u64 = 366 * DAY;
/// Tokens that are further behind the clock are raised to it, so that they stay within [`MAX_LEAD`] of a right one.
const MAX_LAG: u64 = 30 * DAY;

/// The time of day.
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Whether a clock that is right may say this: from 2020 to 2112.
fn can_be_right(micros: u64) -> bool {
    (EARLIEST..=LATEST).contains(&micros)
}

/// What is wrong with the wall clock of this server, if that shows without a comparison.
pub fn wall_problem() -> Option<&'static str> {
    const PROBLEM: &str = "the wall clock of this server is before 2020 or past 2112: correct it; see docs/clock.md";
    (!can_be_right(micros(wall()))).then_some(PROBLEM)
}

/// Whether a store's clock shows that it, or the wall clock of this server, is wrong.
fn is_one_wrong(store: u64, wall: u64) -> bool {
    !can_be_right(store) || store.abs_diff(wall) > MAX_LEAD
}

/// The clock of a store, as the log tells of it.
#[derive(Debug, Default)]
pub struct StoreClock {
    is_wrong: AtomicBool,
}

impl StoreClock {
    /// The clock shows this. The log says once that it is wrong, and once that it can be right again.
    pub fn shows(&self, store: &str, now: u64) {
        let wall = micros(wall());
        let is_wrong = is_one_wrong(now, wall);
        if self.is_wrong.swap(is_wrong, Ordering::Relaxed) == is_wrong {
            return;
        }
        let lead_days = (i128::from(now) - i128::from(wall)) / i128::from(DAY);
        match is_wrong {
            true => tracing::error!(
                store,
                lead_days,
                "the clock of the store is before 2020, past 2112, or more than a year from that of this server: correct \
                 the wrong one; see docs/clock.md"
            ),
            false => tracing::info!(store, lead_days, "the clock of the store can be right again"),
        }
    }
}

/// Whether the tokens of a base at this position in the store's order are within their range, with a reserve. A base for
/// which they are not was written by a clock beyond the year 2255, and has granted nothing.
pub fn is_usable(base: u64, position: u64) -> bool {
    base.saturating_add(position) <= FencingToken::MAX - RESERVE
}

/// The token of a grant at this position in the store's order. Beyond their range, where no client was given one, it is
/// the largest token, so that such a holder can be shown and forced, and ends.
///
/// # Errors
/// [`InvalidField`] for zero.
pub fn token(base: u64, position: u64) -> Result<FencingToken, InvalidField> {
    FencingToken::new(base.saturating_add(position).min(FencingToken::MAX))
}

/// A clock that the tokens of a store must not follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WrongClock {
    /// No clock that is right is there.
    #[error(
        "the wall clock of this server is past the year 2112: it grants nothing here until that is corrected; \
         see docs/clock.md"
    )]
    Beyond,
    /// It is wrong, or nobody has used the store for so long, or an old copy of the store was restored.
    #[error(
        "the wall clock of this server is more than a year ahead of the last tokens here: it grants nothing here until \
         that is corrected, or until Admit says that the clock is right; see docs/clock.md"
    )]
    Ahead,
}

/// How a wall clock compares with the tokens of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Verdict {
    #[default]
    Right,
    /// It is before 2020, or more than a year behind the tokens.
    Behind,
    Wrong(WrongClock),
}

/// Whether a clock that could be right has scaled these tokens. Others are before 2021, because a clock before 2020 counts
/// as one of 2020.
fn are_scaled(last: u64) -> bool {
    last > EARLIEST + MAX_LEAD
}

/// Compares a clock with the last tokens of a store.
fn judge(now: u64, last: u64) -> Verdict {
    let has_tokens = are_scaled(last);
    if now > LATEST {
        Verdict::Wrong(WrongClock::Beyond)
    } else if has_tokens && now > last + MAX_LEAD {
        Verdict::Wrong(WrongClock::Ahead)
    } else if now < EARLIEST || (has_tokens && now + MAX_LEAD < last) {
        Verdict::Behind
    } else {
        Verdict::Right
    }
}

/// The wall clock of this server as the tokens of one namespace follow it.
#[derive(Debug, Default)]
pub struct TokenClock(Mutex<Judged>);

#[derive(Debug, Default)]
struct Judged {
    verdict: Verdict,
    /// An operator has said that the clock is right.
    is_admitted: bool,
}

impl TokenClock {
    /// The number that tokens must not be below, by a clock of `now`; `last` is what they have reached. `None`: the clock
    /// is behind by so much that it says nothing.
    ///
    /// # Errors
    /// [`WrongClock`]: nothing may be granted.
    pub fn floor(&self, now: u64, last: u64) -> Result<Option<u64>, WrongClock> {
        let mut judged = self.0.lock();
        let verdict = match judge(now, last) {
            Verdict::Wrong(WrongClock::Ahead) if judged.is_admitted => Verdict::Right,
            verdict => {
                judged.is_admitted = false;
                verdict
            }
        };
        if std::mem::replace(&mut judged.verdict, verdict) != verdict {
            let lead_days = (i128::from(now) - i128::from(last)) / i128::from(DAY);
            match verdict {
                Verdict::Right => tracing::info!("the wall clock of this server agrees with the tokens again"),
                Verdict::Behind => tracing::warn!(
                    lead_days,
                    "the wall clock of this server is wrong, or one that was far ahead has raised the tokens: tokens \
                     rise without a clock; see docs/clock.md"
                ),
                Verdict::Wrong(wrong) => tracing::error!(lead_days, "{wrong}"),
            }
        }
        match verdict {
            Verdict::Right => Ok(Some(now)),
            Verdict::Behind if !are_scaled(last) => Ok(Some(EARLIEST)),
            Verdict::Behind => Ok(None),
            Verdict::Wrong(wrong) => Err(wrong),
        }
    }

    /// Whether tokens that have reached `last` should be raised to the clock, so that its lead stays small.
    pub fn should_raise(now: u64, last: u64) -> bool {
        judge(now, last) == Verdict::Right && now > last + MAX_LAG
    }

    /// Whether nothing may be granted because of the clock, as last judged.
    pub fn is_wrong(&self) -> bool {
        matches!(self.0.lock().verdict, Verdict::Wrong(_))
    }

    /// Follows the clock from now on although it is far ahead of the tokens, because an operator has said that it is right.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] unless it is in question; [`BackendError::NotSent`] if it cannot be right.
    pub fn admit(&self) -> Result<(), BackendError> {
        let mut judged = self.0.lock();
        match judged.verdict {
            Verdict::Wrong(WrongClock::Ahead) => judged.is_admitted = true,
            Verdict::Wrong(wrong) => {
                return Err(BackendError::NotSent {
                    reason: wrong.to_string(),
                });
            }
            Verdict::Right | Verdict::Behind => {
                return Err(BackendError::Unsupported {
                    what: "this backend has no quarantine, and the clock of this server is not in question",
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A day in 2026.
    const NOW: u64 = 1_790_000_000_000_000;

    #[test]
    fn tokens_follow_a_clock_unless_it_is_more_than_a_year_ahead_of_them_or_past_their_limit() {
        for (now, last, floor) in [
            (NOW, 0, Ok(Some(NOW))),
            (NOW, NOW - DAY, Ok(Some(NOW))),
            (NOW, NOW + DAY, Ok(Some(NOW))),
            (NOW + MAX_LEAD, NOW, Ok(Some(NOW + MAX_LEAD))),
            (NOW + MAX_LEAD + 1, NOW, Err(WrongClock::Ahead)),
            (LATEST, 0, Ok(Some(LATEST))),
            (LATEST + 1, 0, Err(WrongClock::Beyond)),
            (u64::MAX, LATEST, Err(WrongClock::Beyond)),
            (0, 0, Ok(Some(EARLIEST))),
            // A clock of 1970 has written them.
            (NOW, EARLIEST + 1_000_000, Ok(Some(NOW))),
            (0, NOW, Ok(None)),
            (NOW, NOW + MAX_LEAD + 1, Ok(None)),
        ] {
            assert_eq!(TokenClock::default().floor(now, last), floor, "{now} {last}");
        }
    }

    #[test]
    fn an_operator_may_admit_a_clock_that_can_be_right() {
        let clock = TokenClock::default();
        assert!(matches!(clock.admit(), Err(BackendError::Unsupported { .. })));
        let later = NOW + 2 * MAX_LEAD;
        assert_eq!(clock.floor(later, NOW), Err(WrongClock::Ahead));
        clock.admit().unwrap();
        assert_eq!(clock.floor(later, NOW), Ok(Some(later)));
        // Once the tokens have followed it, another leap needs another word.
        assert_eq!(clock.floor(later, later), Ok(Some(later)));
        assert_eq!(clock.floor(later + 2 * MAX_LEAD, later), Err(WrongClock::Ahead));
        assert_eq!(clock.floor(LATEST + 1, NOW), Err(WrongClock::Beyond));
        assert!(matches!(clock.admit(), Err(BackendError::NotSent { .. })) && clock.is_wrong());
    }

    #[test]
    fn a_stores_clock_is_wrong_beyond_the_range_or_a_year_from_that_of_the_server() {
        for (store, wall, is_wrong) in [
            (NOW, NOW, false),
            (NOW + MAX_LEAD, NOW, false),
            (NOW, NOW + MAX_LEAD, false),
            (NOW + MAX_LEAD + 1, NOW, true),
            (NOW, NOW + MAX_LEAD + 1, true),
            (LATEST + 1, LATEST + 1, true),
            (EARLIEST - 1, EARLIEST, true),
            (0, 0, true),
        ] {
            assert_eq!(is_one_wrong(store, wall), is_wrong, "{store} {wall}");
        }
    }

    #[test]
    fn a_base_is_usable_while_its_tokens_are_within_their_range() {
        assert!(is_usable(LATEST, RESERVE) && is_usable(FencingToken::MAX - 2 * RESERVE, RESERVE));
        assert!(!is_usable(FencingToken::MAX - RESERVE, 1) && !is_usable(u64::MAX, u64::MAX));
    }
}
