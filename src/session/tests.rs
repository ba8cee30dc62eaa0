use super::*;
use crate::claim::Cause;

const TTL: Duration = Duration::from_secs(30);

fn named(count: u8) -> Vec<(String, Option<Secret>)> {
    let named = |number| (format!("lease-{number}"), Some(Secret::from_bytes([number; 16])));
    (0..count).map(named).collect()
}

fn gone(cause: Cause) -> Error {
    Error::LeaseLost { cause: Some(cause) }
}

fn lost(lease_id: &str, error: Error) -> Message {
    let lease_id = lease_id.to_owned();
    Message::Lost { lease_id, error }
}

/// Leases of which the first beat began at the returned time.
fn begun(count: u8) -> (KeptLeases, Instant) {
    let (mut leases, now) = (KeptLeases::default(), Instant::now());
    assert_eq!(leases.message(), Some(Message::Ask));
    leases.begin(1, named(count), now);
    (leases, now)
}

fn messages(leases: &mut KeptLeases) -> Vec<Message> {
    std::iter::from_fn(|| leases.message()).collect()
}

#[test]
fn a_beat_is_answered_when_all_leases_have_an_outcome_and_the_next_is_due_at_a_third_of_the_shortest_ttl() {
    let (mut leases, now) = begun(3);
    leases.renewed(2, TTL, now);
    leases.renewed(0, 2 * TTL, now);
    assert!(leases.is_beating() && messages(&mut leases).is_empty());
    leases.lost(1, gone(Cause::Forced));
    assert!(!leases.is_beating());
    let ttls = vec![2 * TTL, Duration::ZERO, TTL];
    let kept = Message::Kept { beat: 1, ttls };
    assert_eq!(messages(&mut leases), [lost("lease-1", gone(Cause::Forced)), kept]);
    let due = now + TTL / 3;
    assert_eq!(leases.next_wake(), Some(due));
    leases.wake(due - Duration::from_millis(1));
    assert!(messages(&mut leases).is_empty());
    leases.wake(due);
    leases.wake(due);
    assert_eq!(messages(&mut leases), [Message::Ask], "asked once");
}

#[test]
fn a_beat_that_takes_too_long_is_answered_without_the_rest() {
    let (mut leases, now) = begun(2);
    leases.renewed(0, TTL, now);
    assert_eq!(leases.next_wake(), Some(now + FIRST_INTERVAL));
    leases.wake(now + FIRST_INTERVAL);
    let ttls = vec![TTL, Duration::ZERO];
    // The TTL of the other one is not known, so the next beat is not put off.
    assert_eq!(messages(&mut leases), [Message::Kept { beat: 1, ttls }, Message::Ask]);
    // An outcome that comes late changes no answer.
    leases.renewed(1, TTL, now);
    assert_eq!(leases.message(), None);
}

#[test]
fn a_store_that_does_not_answer_ends_no_lease() {
    let (mut leases, now) = begun(1);
    leases.unanswered(0, now);
    let ttls = vec![Duration::ZERO];
    assert_eq!(messages(&mut leases), [Message::Kept { beat: 1, ttls }]);
    assert_eq!(leases.next_wake(), Some(now + FIRST_INTERVAL));
}

#[test]
fn a_client_without_leases_is_asked_again() {
    let (mut leases, now) = begun(0);
    assert_eq!(messages(&mut leases), [Message::Kept { beat: 1, ttls: vec![] }]);
    assert_eq!(leases.next_wake(), Some(now + IDLE_INTERVAL));
}

#[test]
fn the_end_of_a_lease_is_told_once() {
    let (mut leases, now) = begun(2);
    let first = leases.index_of(&Secret::from_bytes([0; 16])).unwrap();
    leases.lost(first, gone(Cause::Released));
    // The outcome of the renewal comes after the end, and then the end is seen again.
    leases.renewed(first, TTL, now);
    leases.lost(first, gone(Cause::Expired));
    assert!(leases.is_beating());
    leases.renewed(1, TTL, now);
    let ttls = vec![Duration::ZERO, TTL];
    let kept = Message::Kept { beat: 1, ttls };
    assert_eq!(messages(&mut leases), [lost("lease-0", gone(Cause::Released)), kept]);
    assert_eq!(leases.index_of(&Secret::from_bytes([7; 16])), None);
}

#[test]
fn a_lease_whose_time_is_over_is_looked_at_until_its_end_is_known() {
    let (mut leases, now) = begun(2);
    leases.renewed(0, TTL, now);
    leases.renewed(1, 2 * TTL, now);
    assert_eq!(leases.wake(now + TTL / 3), [] as [usize; 0]);
    messages(&mut leases);
    let over = now + TTL;
    assert_eq!(leases.next_wake(), Some(over));
    assert_eq!(leases.wake(over), [0]);
    // Another client renewed it.
    leases.found(0, TTL / 2, over);
    assert_eq!(leases.next_wake(), Some(over + TTL / 2));
    assert_eq!(leases.wake(over + TTL / 2), [0]);
    // The store does not answer.
    leases.unanswered(0, over + TTL / 2);
    assert_eq!(leases.wake(over + TTL / 2 + LOOK_AGAIN), [0]);
    leases.lost(0, gone(Cause::Expired));
    assert_eq!(messages(&mut leases), [lost("lease-0", gone(Cause::Expired))]);
    assert_eq!(leases.next_wake(), Some(now + 2 * TTL));
}

#[test]
fn a_new_beat_replaces_the_leases() {
    let (mut leases, now) = begun(2);
    leases.renewed(0, TTL, now);
    leases.renewed(1, TTL, now);
    messages(&mut leases);
    leases.begin(2, vec![("other".into(), None)], now + TTL / 3);
    assert_eq!(leases.index_of(&Secret::from_bytes([1; 16])), None);
    leases.renewed(0, TTL, now + TTL / 3);
    let ttls = vec![TTL];
    assert_eq!(messages(&mut leases), [Message::Kept { beat: 2, ttls }]);
}
