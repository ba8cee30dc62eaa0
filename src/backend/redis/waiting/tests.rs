//! Which calls ask the store after a heartbeat.

use super::*;

const STATE: WaiterState = WaiterState { born: 1, lost: 0 };

#[tokio::test]
async fn a_claim_that_is_gone_before_its_acquire_is_answered_does_not_wait() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    let claim = NewClaim::numbered(1);
    let position = QueuePosition {
        position: 1,
        frees_in: None,
    };
    let acquiring = waiting.start_acquire(claim.id);
    waiting.gone(&lock, &claim.id);
    waiting.add(&lock, &claim, position, STATE);
    drop(acquiring);
    assert!(waiting.is_empty() && !waiting.knows(&lock, &claim.id));
    // A later acquire of the same claim waits.
    let acquiring = waiting.start_acquire(claim.id);
    waiting.add(&lock, &claim, position, STATE);
    drop(acquiring);
    assert!(waiting.knows(&lock, &claim.id));
}

#[tokio::test]
async fn every_waiter_asks_after_an_unanswered_heartbeat_and_after_data_went_back() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    for number in 1..=3 {
        add(&waiting, &lock, number, 5);
    }
    let asking = |lost| {
        let heartbeat = waiting.heartbeat(&lock).unwrap();
        waiting.apply(&lock, &heartbeat, &answer(lost, false)).doubtful.len()
    };
    assert_eq!(asking(5), 0, "nothing has changed");
    waiting.doubt(&lock);
    assert_eq!((asking(5), asking(5)), (3, 0), "once after an unanswered heartbeat");
    assert_eq!((asking(3), asking(3)), (3, 0), "once after data went back");
}

fn answer(lost: u64, missed: bool) -> HeartbeatAnswer {
    HeartbeatAnswer {
        state: WaiterState { lost, ..STATE },
        frees_in: None,
        eligible: Vec::new(),
        more: false,
        taken: Vec::new(),
        missed,
    }
}

fn add(waiting: &Waiting, lock: &LockName, number: u8, lost: u64) {
    let position = QueuePosition {
        position: number.into(),
        frees_in: None,
    };
    let state = WaiterState { lost, ..STATE };
    waiting.add(lock, &NewClaim::numbered(number), position, state);
}

#[tokio::test]
async fn a_claim_added_during_a_heartbeat_keeps_its_lower_count_of_taken_waiters() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    add(&waiting, &lock, 1, 5);
    let heartbeat = waiting.heartbeat(&lock).unwrap();
    assert_eq!(heartbeat.taken, 5);
    add(&waiting, &lock, 2, 4);
    waiting.apply(&lock, &heartbeat, &answer(6, false));
    assert_eq!(waiting.heartbeat(&lock).unwrap().taken, 4);
}

#[tokio::test]
async fn a_few_calls_ask_per_heartbeat_if_the_store_does_not_remember_the_taken_waiters() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    let all = ASKING_PER_HEARTBEAT + 30;
    for number in 1..=all {
        add(&waiting, &lock, u8::try_from(number).unwrap(), 0);
    }
    let asking = |missed| {
        let heartbeat = waiting.heartbeat(&lock).unwrap();
        waiting.apply(&lock, &heartbeat, &answer(900, missed)).doubtful
    };
    let both = [asking(true), asking(false)];
    assert_eq!(both.each_ref().map(Vec::len), [ASKING_PER_HEARTBEAT, 30]);
    let different: std::collections::HashSet<_> = both.concat().into_iter().collect();
    assert_eq!((different.len(), asking(false).len()), (all, 0));
}

#[tokio::test]
async fn a_heartbeat_contains_the_first_claims_in_queue_order() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    for number in (1..=100).rev() {
        add(&waiting, &lock, number, 0);
    }
    let first: Vec<_> = (1..=16).map(|number| NewClaim::numbered(number).id).collect();
    assert_eq!(waiting.heartbeat(&lock).unwrap().first, first);
}
