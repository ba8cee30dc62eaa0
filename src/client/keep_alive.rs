//! What keeps a lease alive: a task that renews it, until it is told to give it back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};

use super::calls::{CALL, Calls, FIRST_PAUSE, duration, longer};
use super::doubt;
use super::error::Error;
use super::guard::Held;
use crate::clock;

/// A lease is renewed when a third of its time is over, so that two more tries are left.
const RENEWALS_IN_TTL: u32 = 3;
/// A renewal that is not answered in this part of the time to live is given up for the next try...
const TRIES_IN_TTL: u32 = 6;
/// ... but a busy machine needs so long.
const SHORTEST_TRY: Duration = Duration::from_millis(400);

/// Why a lease cannot be counted on any more.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The server said that it is gone.
    Gone {
        /// `expired`, `released`, `forced`, or `unknown`.
        cause: String,
    },
    /// Its time is over and no renewal was answered: it may be gone.
    Unrenewed,
    /// Its guard has given it back, or was dropped.
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

/// The time of a lease on the clock since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeaseTerm {
    /// When it was granted or renewed at the earliest.
    begin: Duration,
    /// How long it lives from then.
    ttl: Duration,
    /// Until when its client may count on it: a renewal never makes it shorter.
    pub end: Duration,
}

impl LeaseTerm {
    /// That of a lease that was granted at `begin` or later.
    pub(super) fn granted(begin: Duration, ttl: Duration) -> Self {
        Self {
            begin,
            ttl,
            end: begin + ttl,
        }
    }

    /// That after a renewal which was sent at `sent`.
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

    /// How long one renewal may take.
    fn wait_policy(self) -> Duration {
        (self.ttl / TRIES_IN_TTL).max(SHORTEST_TRY).min(CALL)
    }
}

/// What is known about a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// It is held until the end of this term.
    Held(LeaseTerm),
    /// It cannot be counted on.
    Lost(Loss),
}

/// Keeps a lease alive until `stop`, then gives it back. What it knows goes to `told`.
///
/// # Errors
/// Those of the Release.
pub(super) async fn keep(
    calls: Arc<Calls>,
    held: Held,
    term: LeaseTerm,
    told: watch::Sender<LeaseState>,
    stop: oneshot::Receiver<()>,
) -> Result<(), Error> {
    tokio::pin!(stop);
    let doubt = Notify::new();
    let lost = tokio::select! {
        _ = &mut stop => None,
        loss = renew_until_lost(&calls, &held.lease_id, term, &told, &doubt) => Some(loss),
        never = doubt::watch(&calls, &held, &doubt) => match never {},
    };
    if let Some(loss) = lost {
        told.send_replace(LeaseState::Lost(loss.clone()));
        // Fails only when the guard is dropped, which is the same word.
        let _ = stop.await;
        if let Loss::Gone { cause } = loss {
            return Err(Error::LeaseLost { cause });
        }
    }
    told.send_if_modified(|known| {
        let held = matches!(known, LeaseState::Held(_));
        if held {
            *known = LeaseState::Lost(Loss::GivenBack);
        }
        held
    });
    calls.release(&held.lease_id).await
}

/// Renews when it is time to, and whenever there is a doubt.
async fn renew_until_lost(
    calls: &Calls,
    lease_id: &str,
    mut term: LeaseTerm,
    told: &watch::Sender<LeaseState>,
    doubt: &Notify,
) -> Loss {
    let (mut next, mut pause) = (term.due(), FIRST_PAUSE);
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
        match calls.renew_once(term.wait_policy().min(left), lease_id).await {
            Ok(lease) => {
                term = term.renewed(sent, duration(lease.ttl));
                told.send_replace(LeaseState::Held(term));
                (next, pause) = (term.due(), FIRST_PAUSE);
            }
            Err(failed) => match failed.error {
                Error::LeaseLost { cause } => return Loss::Gone { cause },
                // Whatever else it is, it may be better in a moment, and the term's end decides.
                _ => {
                    next = clock::since_boot() + pause;
                    pause = longer(pause);
                }
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
    fn a_lease_is_renewed_at_a_third_of_its_time() {
        let term = LeaseTerm::granted(at(100), TTL);
        assert_eq!((term.due(), term.end), (at(110), at(130)));
        let renewed = term.renewed(at(112), TTL);
        assert_eq!((renewed.due(), renewed.end), (at(122), at(142)));
    }

    #[test]
    fn a_renewal_with_less_takes_nothing_away() {
        let renewed = LeaseTerm::granted(at(100), TTL).renewed(at(101), at(3));
        assert_eq!((renewed.due(), renewed.end), (at(102), at(130)));
    }

    #[test]
    fn a_renewal_is_given_up_while_others_can_follow() {
        assert_eq!(LeaseTerm::granted(at(0), TTL).wait_policy(), at(5));
        assert_eq!(LeaseTerm::granted(at(0), at(3)).wait_policy(), Duration::from_millis(500));
        assert_eq!(LeaseTerm::granted(at(0), at(1)).wait_policy(), SHORTEST_TRY);
    }
}
