//! What clients of a storm do besides taking and releasing: sessions that break off, re-entries, releases that keep the lock.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::error::Error;
use fencepost_core::locks::{Acquire, LONGEST_GRACE, Locks, SessionStream, UndeliveredGrant};
use fencepost_core::name::{FencingToken, Identity, LeaseKey, Mode};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{Register, call, one, release};
use crate::dice::Dice;

/// How long a release keeps its lock at most.
const KEPT: Duration = Duration::from_secs(3);

/// A session, whose streams break off.
pub struct Session {
    id: String,
    grace: Duration,
}

impl Session {
    pub fn new(dice: &mut Dice) -> Self {
        Self {
            id: format!("session {}", dice.below(1 << 30)),
            grace: dice.time(LONGEST_GRACE),
        }
    }

    pub fn stream(&self, number: u64) -> Arc<SessionStream> {
        SessionStream::new(&self.id, number, self.grace, Identity::anonymous())
    }
}

/// A call on a stream that breaks off, which goes on on the next one at any server. What a server reads of the first stream
/// then changes nothing.
pub async fn resume(
    locks: &[Locks],
    register: &Mutex<Register>,
    dice: &mut Dice,
    request: Acquire,
) -> Option<(UndeliveredGrant, Instant)> {
    let session = Session::new(dice);
    let (stream, at) = (session.stream(1), one(locks, dice).clone());
    let mut call_before = Box::pin(at.acquire_on(Some(&stream), request.clone()));
    let ended = timeout(dice.time(Duration::from_secs(5)), &mut call_before).await;
    stream.broke_off();
    drop(call_before);
    if matches!(ended, Ok(Err(_))) {
        return None;
    }
    // If it was granted, nobody was told.
    drop(ended);
    sleep(dice.time(session.grace + Duration::from_secs(2))).await;
    let next = (request.clone(), Some(session.stream(2)));
    let (granted, arrived) = call(one(locks, dice).clone(), next, dice).await?;
    if dice.heads() {
        let late = Acquire {
            wait: Duration::ZERO,
            ..request
        };
        let stream = session.stream(1);
        let late = one(locks, dice).acquire_on(Some(&stream), late).await;
        let lease = &granted.lease;
        let is_over = Instant::now() >= arrived + lease.waited + lease.ttl || register.lock().may_be_lost(arrived);
        assert!(
            late.is_err() || is_over,
            "an earlier stream was granted {}",
            lease.key.token
        );
    }
    Some((granted, arrived))
}

/// Adds a hold to a claim that is re-entrant, and ends that hold again.
pub async fn reenter(
    locks: &[Locks],
    register: &Mutex<Register>,
    dice: &mut Dice,
    (token, until): (FencingToken, Instant),
    asked: &Acquire,
) {
    let again = Acquire {
        request_id: None,
        wait: Duration::ZERO,
        ..asked.clone()
    };
    let Ok(grant) = one(locks, dice).acquire(again).await else {
        return;
    };
    let lease = grant.delivered();
    // Another claim, if the first has ended.
    let is_same = lease.key.token == token || Instant::now() >= until;
    assert!(
        is_same || register.lock().lost.contains(&token.get()),
        "{token} excluded its owner"
    );
    release(locks, dice, &lease.key).await;
}

/// Releases a lease. If the release keeps the lock, nobody else holds it before the time is over.
pub async fn end(
    locks: &[Locks],
    register: &Mutex<Register>,
    dice: &mut Dice,
    (lease, mode): (&LeaseKey, Mode),
) -> Result<(), Error> {
    let time = match dice.below(3) {
        0 => dice.time(KEPT),
        _ => Duration::ZERO,
    };
    let sent = Instant::now();
    let kept = one(locks, dice).release_keeping(lease, time).await?;
    if let Some(kept) = kept {
        register.lock().count_on(lease.token, mode, sent + kept);
    }
    Ok(())
}
