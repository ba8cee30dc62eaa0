//! The task that keeps a lease alive until its guard stops it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};

use super::calls::{BACKOFF, CALL, Calls, duration};
use super::doubt;
use super::error::Error;
use super::held::Held;
use crate::clock;

/// The renewals per TTL: a lease is renewed after a third of its TTL, so that two more attempts are
/// possible.
const RENEWALS_IN_TTL: u32 = 3;
/// The deadline of one renewal is the TTL divided by this, so that another attempt can follow.
const DEADLINES_IN_TTL: u32 = 6;
/// The minimum deadline of a renewal, because a busy machine may need this long.
const MIN_RENEWAL_DEADLINE: Duration = Duration::from_millis(400);

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
    fn renewed(self, sent: Duration, ttl: Duration) -> Self {
        Self {
            begin: sent,
            ttl,
            end: self.end.max(sent + ttl),
        }
    }

    /// When the next renewal is due.
    fn due(self) -> Duration {
        self.begin + self.ttl / RENEWALS_IN_TTL
    }

    /// The deadline of one renewal.
    fn renewal_deadline(self) -> Duration {
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

/// Keeps a lease alive until `stop`, then releases it. State changes are sent to `state`.
///
/// # Errors
/// The errors of the Release.
pub(super) async fn keep(
    calls: Arc<Calls>,
    held: Held,
    term: LeaseTerm,
    state: watch::Sender<LeaseState>,
    stop: oneshot::Receiver<()>,
) -> Result<(), Error> {
    tokio::pin!(stop);
    let doubt = Notify::new();
    let lost = tokio::select! {
        _ = &mut stop => None,
        loss = renew_until_lost(&calls, &held.lease_id, term, &state, &doubt) => Some(loss),
        never = doubt::watch(&calls, &held, &doubt) => match never {},
    };
    if let Some(loss) = lost {
        state.send_replace(LeaseState::Lost(loss.clone()));
        // It fails only if the guard was dropped, which stops this task too.
        let _ = stop.await;
        if let Loss::Gone { cause } = loss {
            return Err(Error::LeaseLost { cause });
        }
    }
    state.send_if_modified(|current| {
        let held = matches!(current, LeaseState::Held(_));
        if held {
            *current = LeaseState::Lost(Loss::GivenBack);
        }
        held
    });
    calls.release(&held.lease_id).await
}

/// Renews when a renewal is due, and at each `doubt`.
async fn renew_until_lost(
    calls: &Calls,
    lease_id: &str,
    mut term: LeaseTerm,
    state: &watch::Sender<LeaseState>,
    doubt: &Notify,
) -> Loss {
    let (mut next, mut backoff) = (term.due(), BACKOFF);
    loop {
        tokio::select! {
            () = clock::sleep_until(next.min(term.end)) => {}
            () = doubt.notified() => {}
        }
        let sent = clock::since_boot();
        let left = term.end.saturating_sub(sent);
        if left.is_zero() {
            return Loss::Unrenewed;
        }
        match calls.renew_once(term.renewal_deadline().min(left), lease_id).await {
            Ok(lease) => {
                term = term.renewed(sent, duration(lease.ttl));
                state.send_replace(LeaseState::Held(term));
                next = term.due();
                backoff.reset();
            }
            Err(failed) => match failed.error {
                Error::LeaseLost { cause } => return Loss::Gone { cause },
                // Other errors may be transient; the end of the term decides.
                _ => next = clock::since_boot() + backoff.pause(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_is_renewed_after_a_third_of_its_ttl() {
        let term = LeaseTerm::granted(at(100), TTL);
        assert_eq!((term.due(), term.end), (at(110), at(130)));
        let renewed = term.renewed(at(112), TTL);
        assert_eq!((renewed.due(), renewed.end), (at(122), at(142)));
    }

    #[test]
    fn a_renewal_with_a_shorter_ttl_does_not_shorten_the_term() {
        let renewed = LeaseTerm::granted(at(100), TTL).renewed(at(101), at(3));
        assert_eq!((renewed.due(), renewed.end), (at(102), at(130)));
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
