//! Which claims a heartbeat lets ask.

use super::*;

const SEEN: WaiterState = WaiterState { born: 1, lost: 0 };

#[tokio::test]
async fn a_claim_that_is_gone_before_its_entry_is_answered_does_not_wait() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    let claim = NewClaim::numbered(1);
    let ahead = QueuePosition {
        position: 1,
        frees_in: None,
    };
    let entering = waiting.entering(claim.id);
    waiting.gone(&lock, &claim.id);
    waiting.add(&lock, &claim, ahead, SEEN);
    drop(entering);
    assert!(waiting.is_empty() && !waiting.knows(&lock, &claim.id));
    // A later entry of the same claim is another matter.
    let entering = waiting.entering(claim.id);
    waiting.add(&lock, &claim, ahead, SEEN);
    drop(entering);
    assert!(waiting.knows(&lock, &claim.id));
}

#[tokio::test]
async fn every_waiter_asks_after_a_beat_without_an_answer_and_where_data_went_back() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    for number in 1..=3 {
        add(&waiting, &lock, number, 5);
    }
    let told = |lost| {
        let beat = beat(lost, false);
        let asked = waiting.asked(&lock).unwrap();
        waiting.told(&lock, &beat, &asked).doubtful.len()
    };
    assert_eq!(told(5), 0, "all is as it was");
    waiting.doubt(&lock);
    assert_eq!((told(5), told(5)), (3, 0), "once after a beat that nobody answered");
    assert_eq!(
        (told(3), told(3)),
        (3, 0),
        "once where the store knows less than before"
    );
}

fn beat(lost: u64, missed: bool) -> HeartbeatAnswer {
    HeartbeatAnswer {
        seen: WaiterState { lost, ..SEEN },
        frees_in: None,
        turns: Vec::new(),
        more: false,
        taken: Vec::new(),
        missed,
    }
}

fn add(waiting: &Waiting, lock: &LockName, number: u8, lost: u64) {
    let ahead = QueuePosition {
        position: number.into(),
        frees_in: None,
    };
    waiting.add(lock, &NewClaim::numbered(number), ahead, WaiterState { lost, ..SEEN });
}

#[tokio::test]
async fn what_a_claim_has_not_seen_is_asked_for_although_it_was_added_during_a_beat() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    add(&waiting, &lock, 1, 5);
    let asked = waiting.asked(&lock).unwrap();
    assert_eq!(asked.taken, 5);
    add(&waiting, &lock, 2, 4);
    waiting.told(&lock, &beat(6, false), &asked);
    assert_eq!(waiting.asked(&lock).unwrap().taken, 4);
}

#[tokio::test]
async fn a_few_ask_at_each_beat_where_the_store_does_not_remember_who_was_taken() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    let all = ASKING + 30;
    for number in 1..=all {
        add(&waiting, &lock, u8::try_from(number).unwrap(), 0);
    }
    let told = |missed| {
        let asked = waiting.asked(&lock).unwrap();
        waiting.told(&lock, &beat(900, missed), &asked).doubtful
    };
    let both = [told(true), told(false)];
    assert_eq!(both.each_ref().map(Vec::len), [ASKING, 30]);
    let different: std::collections::HashSet<_> = both.concat().into_iter().collect();
    assert_eq!((different.len(), told(false).len()), (all, 0));
}

#[tokio::test]
async fn a_beat_names_the_first_claims_in_the_queues_order() {
    let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
    for number in (1..=100).rev() {
        add(&waiting, &lock, number, 0);
    }
    let first: Vec<_> = (1..=16).map(|number| NewClaim::numbered(number).id).collect();
    assert_eq!(waiting.asked(&lock).unwrap().first, first);
}
